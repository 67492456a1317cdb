"""What the driver does when the kubelet asks: prepare a claim, undo it. Both may come twice, and be cut off anywhere.

The kubelet tries again only after 60 to 90 s, so what will soon be well is waited for, within its patience of 45 s.

The order is what makes that safe. Preparing: freeze on disk, then write the files, then answer. Undoing: remove the
files, then what is on disk. So whatever exists is known to the checkpoint, and doing it again ends in the same state.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog

from enforcer.attribution.living_pods import living_pods
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.dra import capacity_check, contexts
from enforcer.dra.allocation import PrepareRequest, compute_limits, reserved_pod, still_valid
from enforcer.dra.cdi_files import CdiFileStore
from enforcer.dra.claim_status import ClaimStatusPublisher
from enforcer.dra.compute_caps import capped_by_memory, with_caps
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.keyed_lock import KeyedLock
from enforcer.dra.mps_readiness import wait_until_ready
from enforcer.dra.prepared_claim import PreparedClaim, safe_uid
from enforcer.dra.program_view import with_view
from enforcer.dra.returned_memory import wait_until_returned, with_loan_where_free
from enforcer.mps.launcher import shared_memory_of
from enforcer.nvml.types import Gpu
from enforcer.quota.from_claims import Object
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import capacity_mib, device_name
from enforcer.runtime.manager import Wake
from enforcer.status.eviction import evict
from gpushare.contract import NODE_MODE
from gpushare.errors import ClusterError, NvmlError, PermissionRefused, PrepareError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.reasons import Reason

log = structlog.get_logger()

READ_SECONDS: Final = 5.0
"""For each of three objects."""
API_PATIENCE: Final = 10.0
CALL_PATIENCE: Final = 38.0
"""Seconds since the call came; until then MPS daemons and room are waited for within the call."""
PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """The device of a request, as in the answer to the kubelet."""

    request: str
    pool: str
    device: str
    share_id: str | None
    cdi_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrepareCall:
    """One call: when it came, for how many seconds it waits, and an event that is set if nobody waits any more."""

    patience: float = math.inf
    came: float = field(default_factory=time.monotonic)
    abandoned: threading.Event = field(default_factory=threading.Event)

    def goes_on(self, patience: float) -> bool:
        """Tell whether to try again within the call."""
        return time.monotonic() - self.came < min(patience, self.patience) and not self.abandoned.is_set()


class Driver:
    """Prepares and undoes claims. Safe to use from several threads: calls for one claim wait for each other.

    Args:
        parts: see there.
        files: of the claims.

    Attributes:
        crowded: set when a claim did not fit, although the scheduler thought so.
    """

    def __init__(self, parts: DraPluginConfig, files: CdiFileStore) -> None:
        self._parts, self._files = parts, files
        self._publisher = ClaimStatusPublisher(parts.cluster, parts.writer, parts.limiter, shared_memory_of(parts.run))
        self._claims = KeyedLock()
        self.crowded: Final = Wake()
        self._moved = threading.Condition()
        """Set whenever GPU memory was freed."""
        self._room = threading.Lock()
        """Locked from the capacity check until the claim is on disk."""

    def recover(self) -> None:
        """Bring files back to what the checkpoint says: a reboot empties some directories, a crash leaves half of it.

        Raises:
            OSError: the disk refuses.
        """
        store, files = self._parts.store, self._files
        store.load()
        files.cleanup()
        for claim in store.prepared():
            self._write(claim)
            if claim.answers:  # somebody may still wait for one
                self._publisher.publish(claim)

    def _rewrite(self, uid: str) -> None:
        with self._claims.hold(uid):
            if claim := self._parts.store.get(uid):
                self._write(claim)

    def _write(self, claim: PreparedClaim) -> None:
        try:
            self._files.write(claim)
        except (PrepareError, OSError) as error:  # its GPU has left, or the disk is full: the kubelet may ask again
            reason = error.reason if isinstance(error, PrepareError) else Reason.FILES_UNWRITABLE
            log.warning("claim's files not restored", reason=str(reason), claim=claim.name, error=str(error))

    def prepare(self, ref: ClaimRef, call: PrepareCall | None = None) -> tuple[PreparedDevice, ...]:
        """Prepare a claim, or say again what it was given.

        Args:
            ref: the claim.
            call: waits for the answer; by default as long as the kubelet does.

        Raises:
            PrepareError: not now, or not at all; the sentence says why.
        """
        if not safe_uid(ref.uid):
            raise PrepareError(f"invalid claim UID {ref.uid!r:.80}", Reason.BAD_REQUEST)
        call = call or PrepareCall()
        with self._claims.hold(ref.uid), _explained():
            known = self._parts.store.get(ref.uid)
            self._parts.upgrade.check(prepared=known is not None)
            if known is None and (why := self._parts.claim_wait.refusal(ref.namespace)):
                raise PrepareError(why, Reason.TOO_MANY_KILLS)
            kept = known is not None and self._fits(known, ref)
            asked = known if known is not None and kept else self._ask(ref, call)
            with self._parts.modes.hold(asked.gpus) as modes:
                claim = _shared_by(asked, modes)
                if (keeper := self._parts.mps) is not None:
                    wait_until_ready(keeper, claim.gpus, lambda: call.goes_on(CALL_PATIENCE))
                self._wait_until_watched(claim.gpus, call)
                with (waits := self._parts.claim_wait).for_memory(claim.pod_uid):
                    if not kept:
                        claim = self._commit_when_capacity_free(claim, known, call)
                    wait_until_returned(claim, self._parts.watch, waits, lambda: call.goes_on(CALL_PATIENCE))
                devices = self._files.write(claim)
            if not kept:  # under the lock: statuses of a claim are written in the order of events
                self._publisher.publish(claim)
        if not kept:
            log.info(
                "claim prepared", reason=str(Reason.CLAIM_PREPARED), namespace=claim.namespace, claim=claim.name,
                pod=claim.pod, gpus=claim.gpus, memory_mib={each.container: each.memory_mib for each in claim.limits},
            )  # fmt: skip
        # Of several devices of a request the first brings what all of them need: a container gets all of the request's.
        return tuple(
            PreparedDevice(each.request, each.pool, each.device, each.share_id, devices.pop(each.request, ()))
            for each in claim.granted
        )

    def unprepare(self, ref: ClaimRef) -> None:
        """Undo a claim, whether it was prepared or not, without asking the API server: the claim is gone there.

        Raises:
            PrepareError: the disk refuses; the kubelet tries again.
        """
        if not safe_uid(ref.uid):
            return
        with self._claims.hold(ref.uid), _explained():
            self._files.remove(ref.uid)
            claim = self._parts.store.get(ref.uid)
            if claim is None:
                self._parts.store.remove(ref.uid)
                return
            self._undo(claim)
        log.info(
            "claim undone", reason=str(Reason.CLAIM_UNPREPARED), namespace=ref.namespace, claim=ref.name, pod=claim.pod
        )

    def update(self, uid: str, change: Callable[[PreparedClaim], PreparedClaim]) -> PreparedClaim | None:
        """Put a prepared claim in force as ``change`` makes it; ``None`` where it is prepared no more.

        On disk first, so that the enforcer that starts after a crash writes the files that belong to it.

        Raises:
            PrepareError: the disk refuses. Asked again, the files are brought to what is kept.
        """
        with self._claims.hold(uid), _explained():
            known = self._parts.store.get(uid)
            if known is None:
                return None
            claim = change(known)
            if claim != known:
                self._parts.store.put(claim)
                self._parts.quotas_changed.set()
            self._files.write(claim)
            self._publisher.publish(claim)
        return claim

    def restore(self) -> None:
        """Write removed files again, for containers that start again; not of a claim that somebody works on."""
        claims, pods = self._files.claims(), self._files.pods()
        for each in self._parts.store.prepared():
            there = each.uid in claims and (each.pod_uid in pods or not each.has_status)
            if not there and not self._claims.is_taken(each.uid):
                self._rewrite(each.uid)

    def forget_finished(self) -> None:
        """Forget undone claims whose processes have ended by now, and follow the shared memory of MPS.

        A pod of MPS that is older than the setting has none. Containers that start again after it was replaced need it.
        """
        if self._files.memory_changed():
            for claim in self._parts.store.prepared():
                self._rewrite(claim.uid)
        views = self._look() if (ending := self._parts.store.terminating()) else ()
        for claim in ending:
            if capacity_check.has_processes(claim, views) is False:
                self._parts.store.forget(claim.uid)
                self._notify_listeners()

    def _undo(self, claim: PreparedClaim) -> None:
        with self._room:
            others = [each for each in self._parts.store.prepared() if each.uid != claim.uid]
            if all(each.pod_uid != claim.pod_uid for each in others):
                self._files.remove_status(claim.pod_uid)
            alive = bool(claim.gpus) and capacity_check.has_processes(claim, self._look()) is not False
            self._parts.store.remove(claim.uid, ending=alive)
        self._parts.quotas_changed.set()
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def _look(self) -> Sequence[GpuSnapshot]:
        try:
            return self._parts.watch.sample()
        except NvmlError:
            return ()

    def _fits(self, known: PreparedClaim, ref: ClaimRef) -> bool:
        """Compare with the API server; while it does not answer, what was frozen counts."""
        try:
            claim = self._claim(ref)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise
            return True
        return still_valid(known, self._parts.node, claim, self._devices())

    def _ask(self, ref: ClaimRef, call: PrepareCall) -> PreparedClaim:
        while True:
            try:
                return self._ask_once(ref)
            except ClusterError as error:
                if error.final or not call.goes_on(API_PATIENCE):
                    raise
            time.sleep(PAUSE)

    def _ask_once(self, ref: ClaimRef) -> PreparedClaim:
        cluster, claim = self._parts.cluster, self._claim(ref)
        pod = cluster.get(path(CORE_V1, "pods", reserved_pod(claim)["name"], ref.namespace), timeout=READ_SECONDS)
        namespace = cluster.get(path(CORE_V1, "namespaces", ref.namespace), timeout=READ_SECONDS)
        ask, devices = PrepareRequest(claim, pod, namespace, self._parts.host_access()), self._devices()
        try:
            prepared, backends = compute_limits(self._parts.node, ask, devices), self._parts.limiter.backends()
        except PermissionRefused:
            self._release(pod)
            raise
        seen = with_view(prepared, ask, devices.values(), backends, frameworks=self._parts.framework_variables)
        capacity = {gpu.uuid: capacity_mib(gpu, self._parts.policy) for gpu in devices.values()}
        return capped_by_memory(seen, namespace, self._parts.default_compute, capacity)

    def _release(self, pod: Object) -> None:
        """Evict a pod that has not started: while it exists, the scheduler reserves for it what it will not get."""
        metadata = pod["metadata"]
        if metadata["uid"] not in living_pods(self._parts.attributor):
            write = partial(evict, self._parts.cluster, metadata["namespace"], metadata["name"], metadata["uid"])
            self._parts.writer.put("pod of a refused claim not evicted", write)

    def _claim(self, ref: ClaimRef) -> Object:
        where = path(RESOURCE_V1, "resourceclaims", ref.name, ref.namespace)
        claim = self._parts.cluster.get(where, timeout=READ_SECONDS)
        if claim["metadata"]["uid"] != ref.uid:
            raise PrepareError(
                f"claim {ref.name} with UID {ref.uid} was deleted; another claim has its name; create the pod again",
                Reason.CLAIM_UNKNOWN,
            )
        return claim

    def _devices(self) -> Mapping[str, Gpu]:
        return {device_name(view.gpu): view.gpu for view in self._parts.watch.sample()}

    def _wait_until_watched(self, gpus: Sequence[str], call: PrepareCall) -> None:
        """Wait until NVML reads these GPUs: quotas of containers that start before that would not be enforced."""
        while unread := set(gpus) - {view.gpu.uuid for view in self._parts.watch.sample() if view.sample is not None}:
            if not call.goes_on(CALL_PATIENCE):
                message = f"NVML cannot read {min(unread)} at the moment; the kubelet retries"
                raise PrepareError(message, Reason.NVML_UNAVAILABLE)
            time.sleep(PAUSE)

    def _commit_when_capacity_free(
        self, claim: PreparedClaim, before: PreparedClaim | None, call: PrepareCall
    ) -> PreparedClaim:
        crowded = False
        while True:
            try:
                return self._commit(claim, before)
            except PrepareError as error:
                if error.reason is not Reason.GPU_MEMORY_IN_USE:
                    raise
                if not crowded:
                    self.crowded.set()
                crowded = True
                if not call.goes_on(CALL_PATIENCE):
                    raise
            with self._moved:
                self._moved.wait(PAUSE)

    def _commit(self, claim: PreparedClaim, before: PreparedClaim | None) -> PreparedClaim:
        """Keep the claim, with the caps that follow from what is prepared now; returns it."""
        with self._room:
            self._parts.upgrade.check(prepared=before is not None)  # it may have begun since the call came
            others = [each for each in self._parts.store.prepared() if each.uid != claim.uid]
            _check_alone(claim, others)
            claim = with_caps(claim, others)
            views = {view.gpu.uuid: view for view in self._parts.watch.sample()}
            contexts.check_fits(claim, [view.gpu for view in views.values()])
            capacity = {
                gpu: capacity_mib(view.gpu, self._parts.policy, mode=claim.modes.get(gpu))
                for gpu, view in views.items()
            }
            capacity_check.check_capacity(claim, others, self._parts.store.terminating(), views, capacity)
            claim = with_loan_where_free(claim, others, capacity)
            if before is not None and all(each.pod_uid != before.pod_uid for each in (*others, claim)):
                self._files.remove_status(before.pod_uid)
            self._parts.store.put(claim)
        self._parts.quotas_changed.set()
        return claim


def _shared_by(claim: PreparedClaim, modes: Mapping[str, Mode | None]) -> PreparedClaim:
    """Prepare a claim for its GPUs as they are shared now."""
    unknown = next((gpu for gpu, mode in modes.items() if mode is None), None)
    if unknown is not None:
        message = f"the DRA driver has no sharing mode for {unknown}; the kubelet retries"
        hint = f"if this error stays, correct or remove the node label {NODE_MODE}"
        raise PrepareError(f"{message}; {hint}", Reason.MODE_UNKNOWN)
    shared = claim.shared_by(modes)
    for each in shared.granted:
        if each.mode is Mode.MPS and len(shared.of(each.request)) > 1:
            message = f"request {each.request} has several GPUs, and {each.gpu} is shared through MPS"
            hint = f"request one GPU, or use a node with the label {NODE_MODE}={Mode.TIME_SLICING}"
            raise PrepareError(f"{message}: a process can use one MPS daemon, but each GPU has its own; {hint}")
    return shared


def _check_alone(claim: PreparedClaim, others: Sequence[PreparedClaim]) -> None:
    """A container uses one GPU: two claims would write the same variables."""
    taken = {limit.container: each.name for each in others if each.pod_uid == claim.pod_uid for limit in each.limits}
    for limit in claim.limits:
        if limit.container in taken:
            message = f"container {limit.container} uses claim {taken[limit.container]} and claim {claim.name}"
            raise PrepareError(f"{message}; a container can use one GPU: remove one of the two claims from it")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what can go wrong into a sentence for the pod's Events."""
    try:
        yield
    except ClusterError as error:
        reason = Reason.CLAIM_UNKNOWN if error.status == HTTPStatus.NOT_FOUND else Reason.API_UNREACHABLE
        raise PrepareError(f"the driver cannot read the claim: {error.message}; the kubelet retries", reason) from error
    except NvmlError as error:
        # What NVML says may name another tenant's process: that is for the enforcer's log.
        log.warning("GPUs cannot be read", reason=str(error.reason), error=error.message)
        raise PrepareError("the driver cannot read the node's GPUs; the kubelet retries", error.reason) from error
    except OSError as error:
        message = f"the driver cannot write the files of the claim: {error}; the kubelet retries"
        raise PrepareError(message, Reason.FILES_UNWRITABLE) from error
