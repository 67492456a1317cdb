"""Tells the API server what became of a claim, in ``claim.status.devices``: for people, and no pod waits for it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.dra.prepared_claim import AllocatedDevice, PreparedClaim
from enforcer.limits.applier import LimitApplier
from enforcer.limits.verification import STEADY
from enforcer.mps.shared_memory import server_files
from enforcer.quota.types import LimitStatus, Mode, Quota
from enforcer.status.api_writer import ApiWriter
from gpushare.contract import DRIVER, LIMIT_IN_FORCE
from gpushare.errors import ClusterError
from gpushare.kube_client import APPLY_PATCH, RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason

Object = dict[str, Any]
MANAGER: Final = f"{DRIVER}/driver"
PROVER: Final = f"{DRIVER}/proof"
"""Another field manager than of what Prepare says, so that neither has to know the other's fields."""
_SHARE: Final = ("driver", "pool", "device", "shareID")
WORST: Final = (Reason.LIMIT_ESCAPED, Reason.NOT_APPLIED, Reason.PER_PROCESS_ONLY, Reason.UNKNOWN, Reason.IN_FORCE)
MAX_MESSAGE: Final = 1024
FILES: Final = 16
"""So many owners and modes of files of MPS are written down."""
Files = Sequence[tuple[int, int]]
"""Owner and mode of each file that MPS servers keep for their clients."""
Proofs = Sequence[tuple[Quota, LimitStatus]]
"""What is known of a claim's limits."""

log = structlog.get_logger()


class ClaimStatusPublisher:
    """Writes the status of prepared claims.

    Args:
        cluster: the API server.
        writer: does the writes.
        limiter: says which back end keeps limits on which GPU.
        memory: folder of the shared memory of MPS.
    """

    def __init__(self, cluster: KubeClient, writer: ApiWriter, limiter: LimitApplier, memory: Path) -> None:
        self._cluster, self._writer, self._limiter, self._memory = cluster, writer, limiter, memory

    def publish(self, claim: PreparedClaim) -> None:
        """Take a claim that was prepared; never waits and never fails."""
        body = status_of(claim, datetime.now(UTC), self._limiter.backends(), server_files(self._memory))
        where = path(RESOURCE_V1, "resourceclaims", claim.name, claim.namespace) + "/status"
        write = partial(self._cluster.patch, where, body, APPLY_PATCH, fieldManager=MANAGER, force="true")
        self._writer.put("claim status not written", write)


def status_of(
    claim: PreparedClaim, when: datetime, backends: Mapping[str, str] | None = None, files: Files = ()
) -> Object:
    """Write what server-side apply needs to set our entries, and nobody else's."""
    time = _time(when)
    ways = {each: _ways(each, backends or {}, files) for each in claim.granted}
    return _object(claim) | {"status": {"devices": [_entry(claim, each, ways[each], time) for each in claim.granted]}}


def _object(claim: PreparedClaim) -> Object:
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}


def _time(when: datetime) -> str:
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def _share(granted: AllocatedDevice) -> Object:
    """What tells the entries of a claim's status apart."""
    found = dict(zip(_SHARE, (DRIVER, granted.pool, granted.device, granted.share_id), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def _ways(granted: AllocatedDevice, backends: Mapping[str, str], files: Files) -> Object:
    """How limits are made to hold on its GPU; who keeps them, and the files of MPS, only where that is known by now."""
    backend = backends.get(granted.gpu or "")
    found = [{"user": user, "mode": mode} for user, mode in files[:FILES]] if granted.mode is Mode.MPS else []
    known = ({} if backend is None else {"limitBackend": str(backend)}) | ({"mpsFiles": found} if found else {})
    return {"mode": str(granted.mode)} | known


def _entry(claim: PreparedClaim, granted: AllocatedDevice, ways: Object, time: str) -> Object:
    ready = {"type": "Ready", "status": "True", "reason": str(Reason.CLAIM_PREPARED), "lastTransitionTime": time}
    entry: Object = {
        "driver": DRIVER,
        "pool": granted.pool,
        "device": granted.device,
        "conditions": [ready | {"message": _sentence(claim, granted)}],
    }
    if granted.share_id is not None:
        entry["shareID"] = granted.share_id
    if granted.gpu is not None:
        limits = [
            {"container": each.container, "memoryMiB": each.memory_mib, "computePercent": each.compute}
            | ({"computeCap": claim.caps[granted.request]} if granted.request in claim.caps else {})
            for each in claim.limits_of(granted.request)
        ]
        entry["data"] = _answers(claim, granted) | {
            "uuid": granted.gpu, **ways, "memoryMiB": granted.memory_mib, "computePercent": granted.compute,
            "limits": limits,
            "pod": claim.pod, "podUid": claim.pod_uid,
        }  # fmt: skip
    return entry


def _answers(claim: PreparedClaim, granted: AllocatedDevice) -> Object:
    """Results of resize requests; nothing where there were none."""
    here = {each.container for each in claim.limits_of(granted.request)}
    answers = [
        {
            "container": each.container, "asked": each.asked, "done": each.done, "beforeMiB": each.before_mib,
            "reason": each.reason, "note": each.note, "effect": each.effect,
        }
        for each in claim.answers
        if each.container in here
    ]  # fmt: skip
    return {"resizes": answers} if answers else {}


def _sentence(claim: PreparedClaim, granted: AllocatedDevice) -> str:
    if granted.gpu is None:
        return "this device is not a GPU: it mounts the status directory into the pod"
    limits = claim.limits_of(granted.request)
    names = ", ".join(each.container for each in limits)
    noun = "containers" if len(limits) > 1 else "container"
    users = f"for {noun} {names}" if names else "and no container uses it"
    text = f"the claim holds {granted.memory_mib} MiB of {granted.gpu} {users}"
    if granted.mode is Mode.TIME_SLICING and any(each.compute for each in limits):
        # The scheduler counts the percentage all the same; nothing on the node holds anybody to it.
        text += "; the GPU is time-sliced, so nothing limits its compute"
    return text


def write_condition(cluster: KubeClient, claim: PreparedClaim, proofs: Proofs) -> bool:
    """Say in a claim's status whether its limits are in force; only where something else stands there.

    Returns false where the API server did not take it and may do so later.
    """
    body = limit_condition(claim, proofs, datetime.now(UTC))
    where = path(RESOURCE_V1, "resourceclaims", claim.name, claim.namespace)
    try:
        if already_published(cluster.get(where), body):
            return True
        cluster.patch(f"{where}/status", body, APPLY_PATCH, fieldManager=PROVER, force="true")
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            log.warning(
                "limit condition not written", reason=str(error.reason), final=error.final, claim=claim.name,
                error=error.message,
            )  # fmt: skip
        return error.final
    return True


def limit_condition(claim: PreparedClaim, proofs: Proofs, when: datetime) -> Object:
    """Write what server-side apply needs to set the conditions of GPUs that something is known about, and no others."""
    found = [(each, _of_request(claim, each, proofs)) for each in claim.granted]
    devices = [_share(each) | {"conditions": [_condition(mine, _time(when))]} for each, mine in found if mine]
    return _object(claim) | {"status": {"devices": devices}}


def already_published(claim: Object, body: Object) -> bool:
    """Tell whether a claim's status says that already, or the claim is another by now."""
    if claim["metadata"]["uid"] != body["metadata"]["uid"]:
        return True
    return _states(body) == _states(claim)


def _states(claim: Object) -> set[tuple[object, ...]]:
    """The key for deduplication: of bad states the name alone, because the sentence names short-lived processes."""
    entries = (claim.get("status") or {}).get("devices") or []
    shown = [(entry, each) for entry in entries for each in entry.get("conditions") or []]
    return {
        (*map(entry.get, _SHARE), each.get("reason"), each.get("reason") in STEADY and each.get("message"))
        for entry, each in shown
        if each.get("type") == LIMIT_IN_FORCE
    }


def _of_request(claim: PreparedClaim, granted: AllocatedDevice, proofs: Proofs) -> Proofs:
    names = {each.container for each in claim.limits_of(granted.request)}
    return [each for each in proofs if each[0].gpu == granted.gpu and each[0].container in names]


def _condition(proofs: Proofs, time: str) -> Object:
    """Several containers share a request: the worst counts."""
    state = min((found.state for _, found in proofs), key=WORST.index)
    status = {Reason.IN_FORCE: "True", Reason.UNKNOWN: "Unknown"}.get(state, "False")
    sentences = (
        f"{quota.container} ({found.backend}): {found.sentence}" for quota, found in proofs if found.state is state
    )
    return {
        "type": LIMIT_IN_FORCE, "status": status, "reason": str(state), "lastTransitionTime": time,
        "message": "; ".join(sentences)[:MAX_MESSAGE],
    }  # fmt: skip
