"""What keeps a pod with a share from running, and how its containers ended."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare import contract
from gpushare.claim_messages import claim_in_use_message
from gpushare.pod_claims import containers
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare.shared_memory import ROOT, barred, brings_memory, user_of
from gpushare_cli.explain import no_share, pod_events
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord, container_statuses, is_unseen, shortened
from gpushare_cli.explain.unplaced import unplaced

AS_ROOT: Final = "image will run as root"
"""Words of the kubelet for a container that may not run as root."""
OOM_KILLED: Final = "OOMKilled"
SIGKILLED: Final = 137
"""The exit code of a process that SIGKILL ended."""


def claims_in_use(record: PodRecord) -> Iterator[Finding]:
    """Yield claims that another pod has: this one may hold nothing of them, whatever its annotations say."""
    for claim in record.known_claims:
        if first := record.first_pod_of(claim):
            users = objects(mapping(claim, "status"), "reservedFor")
            gone = all(user.get("uid") != first.get("podUid") for user in users)
            who = "this pod has a quota of 0 MiB on that claim, so its containers are over quota with any GPU memory"
            name = text(mapping(claim, "metadata"), "name")
            message = claim_in_use_message(name, text(first, "pod"), who, gone=gone)
            yield Finding(type=FindingType.OBSTACLE, message=message, reason=Reason.CLAIM_IN_USE)


def obstacles(record: PodRecord) -> Iterator[Finding]:
    """Yield what keeps a pod from running, each in the words of the component that says it."""
    if record.waits_for_node:
        yield from _of_placement(record)
    for each in container_statuses(record.pod):
        waiting = mapping(mapping(each, "state"), "waiting")
        if message := text(waiting, "message"):
            hint = "set securityContext.runAsUser to another user" if AS_ROOT in message else ""
            whole = f"container {text(each, 'name')} waits: {message}"
            yield Finding(type=FindingType.OBSTACLE, message=whole, hint=hint)
    if not record.has_ended:
        yield from _of_mps_file(record)
    # Where the status has no reason, a condition has that of an eviction, a preemption, or a node that is gone.
    ended = [each for each in objects(record.status, "conditions") if each.get("type") == "DisruptionTarget"][:1]
    parts = ([text(each, key) for key in ("reason", "message") if text(each, key)] for each in (record.status, *ended))
    reasons = next(filter(None, parts), [])
    if record.status.get("phase") == "Failed" and reasons:
        yield Finding(type=FindingType.OBSTACLE, message=f"failed: {': '.join(reasons)}")
    yield from pod_events.troubles(record)


def _of_placement(record: PodRecord) -> Iterator[Finding]:
    # Claims that people write are shared in each namespace with the label, also where the webhook is never called.
    excluded = no_share.is_excluded(record.namespace_name, record.release)
    closed = [] if excluded else no_share.closed(record.namespace, record.namespace_name, record.release)
    yield from (Finding(type=FindingType.OBSTACLE, message=message, hint=hint) for message, hint in closed)
    yield from unplaced(record)
    name, known = text(record.spec, "schedulerName"), ", ".join(record.schedulers)
    if name not in {"", *record.schedulers}:
        message = f"schedulerName is {shortened(name)}: only Kubernetes' own scheduler places shares ({known})"
        hint = f"write schedulerName: {record.schedulers[0]}, unless webhook.schedulerNames lists {shortened(name)}"
        yield Finding(type=FindingType.OBSTACLE, message=message, hint=hint)
    elif is_unseen(record.pod):
        message = "no scheduler has tried to place the pod yet"
        hint = "if that stays so for a minute, kube-scheduler does not run; an operator looks at its pod and log"
        yield Finding(type=FindingType.OBSTACLE, message=message, hint=hint)


def _of_mps_file(record: PodRecord) -> Iterator[Finding]:
    failed = {text(each, "name") for each in container_statuses(record.pod) if _has_failed(each)} - {contract.SIDECAR}
    for container in containers(record.pod):
        if text(container, "name") in failed:
            claims = [claim for claim, _ in record.used_claims(container)]
            for message in _barred(record.pod, container, claims):
                yield Finding(type=FindingType.OBSTACLE, message=message, container=text(container, "name"))


def _barred(pod: Object, container: Object, claims: Sequence[Object]) -> Iterator[str]:
    """Say why a container that failed opens none of the files that MPS servers had when its claims were prepared.

    Either it mounts a volume of its own there, or its user may open none. Drivers from 580 on keep no file in /dev/shm.
    """
    user, files = user_of(pod, container), [each for claim in claims for each in _mps_files(claim)]
    if files and brings_memory(container):
        yield (
            f"container {text(container, 'name')} mounts a volume of its own at {contract.SHARED_MEMORY_PATH}, where "
            "it needs the file of its MPS server, so CUDA probably fails with error 805: remove that volumeMount"
        )
        return
    if user is None or not barred(user, files):
        return
    modes = ", ".join(sorted({f"mode {mode:04o}, user {owner}" for owner, mode in files}))
    others = sorted({owner for owner, _ in files} - {ROOT})
    advice = f"set runAsUser to {others[0]}" if others else "only root may open it; ask the cluster's operators"
    yield (
        f"container {text(container, 'name')} runs as user {user}, which may not open the file of the MPS server in "
        f"{contract.SHARED_MEMORY_PATH} ({modes}), so CUDA probably fails with error 805: {advice}"
    )


def _mps_files(claim: Object) -> Iterator[tuple[int, int]]:
    """Owner and mode of each file, as the driver wrote them."""
    for entry in objects(mapping(claim, "status"), "devices"):
        for file in objects(mapping(entry, "data"), "mpsFiles"):
            owner, mode = file.get("user"), file.get("mode")
            if entry.get("driver") == contract.DRIVER and isinstance(owner, int) and isinstance(mode, int):
                yield owner, mode


def _has_failed(status: Object) -> bool:
    """Return whether the last run that ended did so by an error, also where the next one runs by now.

    A restart whose last run is not available counts as one: a container that fails at once runs whenever it is asked.
    """
    ends = [end for key in ("state", "lastState") if (end := mapping(mapping(status, key), "terminated"))]
    return bool(ends[0].get("exitCode") if ends else status.get("restartCount"))


def wide(record: PodRecord) -> Iterator[Finding]:
    """Yield what a container that asks for several GPUs waits for beside room."""
    several = [key for key, value in record.annotations.items() if value != "1"]
    found = [shortened(key) for key in several if key == contract.GPUS or key.startswith(contract.GPUS_OF)]
    if found and not record.node:
        where = f"time-slices its GPUs (node label {contract.NODE_MODE}: {contract.TIME_SLICING})"
        message = f"{found[0]}: the pod needs a node that {where} and has free capacity on that many GPUs"
        yield Finding(type=FindingType.OBSTACLE, message=message)


def endings(record: PodRecord) -> Iterator[Finding]:
    """Yield when and how the containers of a pod that has ended did so."""
    for status in container_statuses(record.pod):
        end = mapping(mapping(status, "state"), "terminated")
        name = text(status, "name")
        if record.has_ended and end and name != contract.SIDECAR:
            reason, code = text(end, "reason"), end.get("exitCode")
            message = f"container {name} ended with exit code {code}"
            yield Finding(
                type=FindingType.ENDED, message=message, reason=reason, time=text(end, "finishedAt"), container=name,
                hint=_why(record, name, reason, code),
            )  # fmt: skip


def _why(record: PodRecord, container: str, reason: str, code: object) -> str:
    if any(pod_events.container_of(each) == container for each in pod_events.kills(record)):
        return "the container exceeded its quota, so the enforcer killed its processes; see last kill"
    if reason == OOM_KILLED:
        return "the container exceeded its RAM limit (resources.limits.memory), which is not GPU memory"
    if code == SIGKILLED and record.events is not None:
        return "SIGKILL ended the container; no kill Event exists (the API server keeps Events for 1 h by default)"
    return ""


def ended_at(record: PodRecord) -> str:
    """Return when the last container of a pod that has ended did so; empty where that is not known."""
    ends = (mapping(mapping(each, "state"), "terminated") for each in container_statuses(record.pod))
    return max((text(end, "finishedAt") for end in ends), default="") if record.has_ended else ""
