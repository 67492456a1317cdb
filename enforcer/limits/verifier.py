"""Verify limits periodically: read the evidence of every container, believe what was found twice, and report it."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.hidden import Verified, VerifiedLimits
from enforcer.limits.applier import AppliedLimit, LimitApplier
from enforcer.limits.backend import Backend
from enforcer.limits.environ_limits import EnvironLimit
from enforcer.limits.process_environ import EnvironReader
from enforcer.limits.verification import BAD, Evidence, Process, VerificationHistory, debounce, verify_limit
from enforcer.mps.manager import MpsManager
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import LimitStatus, Quota
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.dedup import QUIET
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from gpushare.errors import MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()

LOOK_AT_MOST_EVERY: Final = 1.0
"""Seconds between two questions whether it is time to look."""
SUSPECT_EVERY: Final = 4
"""What was seen once is looked at again after this part of the time between looks."""
Key = tuple[str, str]
"""A container's id and a GPU's UUID."""
Findings = frozenset[tuple[str, str, LimitStatus]]
"""Container, GPU and what is known of its limit, of one claim."""


class NodeEvidence:
    """Where evidence on this node comes from.

    Args:
        limiter: who keeps limits, and what they are.
        mps: the MPS daemons; ``None``: there are none.
        modes: how GPUs are shared.
    """

    def __init__(self, limiter: LimitApplier, mps: MpsManager | None, modes: SharingModeController) -> None:
        self._limiter, self._mps, self._modes = limiter, mps, modes
        self._environments = EnvironReader()

    def backends(self) -> Mapping[str, Backend]:
        """Who keeps limits on which GPU."""
        return self._limiter.backends()

    def read(self, quota: Quota) -> AppliedLimit:
        """Read a limit back."""
        return self._limiter.read(quota)

    def limit_of(self, pid: int, start: int) -> EnvironLimit | None:
        """Return the limit in a process's environment; ``None`` where that cannot be read."""
        return self._environments.limit_of(pid, start)

    def clients(self, gpus: Collection[str]) -> Mapping[str, Collection[int]]:
        """List the MPS clients of these GPUs; those whose daemon does not say are left out.

        One question for each server, however many containers it has.
        """
        found: dict[str, Collection[int]] = {}
        daemons = {} if self._mps is None else self._mps.daemons
        for gpu, daemon in daemons.items():
            if gpu in gpus and self._modes.has_daemon(gpu):
                with suppress(MpsError):
                    found[gpu] = daemon.all_clients()
        return found


class ConditionWriter(Protocol):
    """Writes what is known of limits into the status of claims; ``enforcer.dra.plugin.DraPlugin`` does."""

    def write_conditions(self, claim_uid: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        """Take all that is known of a claim's limits; return false where it has to be written again."""


class LimitVerifier:
    """Proves the limits of one node. For one thread; others read ``proven``.

    Args:
        eyes: where evidence comes from.
        watch: samples the GPUs.
        checkpoint: what was declared.
        events: takes messages to the owners of pods.
        conditions: takes what is known of each claim; ``None``: it is written nowhere.
        every: seconds between looks.
    """

    def __init__(
        self,
        eyes: NodeEvidence,
        watch: UsageSampler,
        checkpoint: Checkpoint,
        events: EventRecorder,
        conditions: ConditionWriter | None,
        every: float,
        clock: Clock = CLOCK,
    ) -> None:
        self._eyes, self._watch, self._checkpoint, self._events = eyes, watch, checkpoint, events
        self._conditions, self._every, self._looked = conditions, every, -every
        self._known: dict[Key, VerificationHistory] = {}
        self._written: dict[str, Findings | None] = {}
        """What the status of each claim has; ``None``: that is not known, because an earlier enforcer wrote it."""
        self._at_first: Findings | None = None
        """What a claim has that is new to us: at our first look it may be an earlier enforcer's."""
        self._clock = clock
        self._warned: dict[tuple[Key, Reason], float] = {}
        """When the owner of a pod was notified last of a limit not in force."""
        self.verified: Final = VerifiedLimits()
        """Of ``proven`` what the latest look found again, and the processes that it looked at."""
        self.proven: Mapping[Key, LimitStatus] = {}
        """What is known of each limit, by container id and GPU."""

    @property
    def suspected(self) -> bool:
        """Whether something was seen once and has to be looked at again soon."""
        return any(each.suspected is not None for each in self._known.values())

    def run_once(self) -> None:
        """Look if it is time: every so many seconds, and sooner where something was seen once."""
        now = self._clock.monotonic()
        if now - self._looked >= self._every / (SUSPECT_EVERY if self.suspected else 1):
            self._looked = now
            self.verify_all()

    def verify_all(self) -> None:
        """Look once at every container that runs and was given something, and tell what changed."""
        given = [each for each in self._checkpoint.read() if each.memory_mib]
        quotas = {(each.container_id, each.gpu): each for each in given if each.container_id is not None}
        views = {view.gpu.uuid: view for view in self._watch.latest}
        backends = self._eyes.backends()
        looked = {key: quota for key, quota in quotas.items() if quota.gpu in backends and quota.gpu in views}
        readings = {gpu: view.reading for gpu, view in views.items()}
        # The clients come last: a process with memory by then was a client before.
        clients = self._eyes.clients(_to_ask(looked.values(), backends, readings))
        processes = dict[Key, frozenset[Identity]]()
        before, self._known = self._known, {key: self._known[key] for key in quotas.keys() & self._known.keys()}
        for key, quota in looked.items():
            reading = readings[quota.gpu]
            holders = None if reading is None else reading.get(key[0], ())
            evidence = self._evidence(quota, backends[quota.gpu], holders, clients.get(quota.gpu))
            known = debounce(
                before.get(key, VerificationHistory()), verify_limit(evidence), idle=holders is not None and not holders
            )
            self._take(key, quota, known)
            processes[key] = frozenset(each.identity for each in holders or ())
        self.proven = {key: known.reported for key, known in self._known.items() if known.reported is not None}
        sure = {key for key, known in self._known.items() if known.suspected is None} & self.proven.keys()
        self.verified.replace({key: Verified(self.proven[key], processes[key]) for key in sure & processes.keys()})
        self._notify(given, quotas)

    def _evidence(
        self, quota: Quota, backend: Backend, holders: Sequence[ProcessUsage] | None, clients: Collection[int] | None
    ) -> Evidence:
        applied = self._eyes.read(quota)
        by_mps = backend.by_mps
        return Evidence(
            backend=backend,
            quota_mib=quota.most_mib,
            ceiling_mib=quota.ceiling_mib,
            reserved_mib=max(quota.reserved_mib or 0, quota.most_mib),
            applied_mib=applied.mib,
            unread=applied.why,
            processes=(
                None if holders is None else tuple(self._process(each, clients, by_mps=by_mps) for each in holders)
            ),
        )

    def _process(self, holder: ProcessUsage, clients: Collection[int] | None, *, by_mps: bool) -> Process:
        pid = holder.identity.pid
        return Process(
            pid=pid,
            used_mib=holder.used_mib,
            environ=self._eyes.limit_of(pid, holder.identity.start) if by_mps else None,
            client=None if clients is None else pid in clients,
        )

    def _take(self, key: Key, quota: Quota, known: VerificationHistory) -> None:
        before = self._known.get(key, VerificationHistory()).reported
        self._known[key] = known
        if known.reported is None or before == known.reported:
            return
        log.info(
            "limit", reason=str(known.reported.state), namespace=quota.namespace, pod=quota.pod,
            container=quota.container, gpu=quota.gpu, backend=known.reported.backend, found=known.reported.sentence,
        )  # fmt: skip
        bad = known.reported.state in BAD and known.reported.backend != Backend.WATCH_ONLY
        if bad and self._is_new(key, known.reported.state):
            self._events.record(warning(quota, known.reported))

    def _is_new(self, key: Key, state: Reason) -> bool:
        """Return whether its owner was not notified lately: the claim has each state, Events come once in a while."""
        now = self._clock.monotonic()
        self._warned = {each: at for each, at in self._warned.items() if now - at < QUIET}
        news = (key, state) not in self._warned
        self._warned.setdefault((key, state), now)
        return news

    def _notify(self, given: Sequence[Quota], quotas: Mapping[Key, Quota]) -> None:
        """Write into the status of each claim what it does not have, and take away what is no longer so.

        A claim with a container that was not looked at, or of which something was seen once, has to wait.
        """
        self._written = {each.claim_uid: self._written.get(each.claim_uid, self._at_first) for each in given}
        self._at_first = frozenset()
        settled = {key for key, known in self._known.items() if known.suspected is None}
        undecided = {quota.claim_uid for key, quota in quotas.items() if key not in settled}
        for claim in sorted(self._written.keys() - undecided):
            keys = [key for key, quota in quotas.items() if quota.claim_uid == claim and key in self.proven]
            found = frozenset((quotas[key].container, key[1], self.proven[key]) for key in keys)
            if self._written[claim] != found and self._write(claim, [(quotas[key], self.proven[key]) for key in keys]):
                self._written[claim] = found

    def _write(self, claim: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        return self._conditions is None or self._conditions.write_conditions(claim, proofs)


def warning(quota: Quota, found: LimitStatus) -> UserMessage:
    """Say that a limit is not in force."""
    note = f"the limit of container {quota.container} on {quota.gpu} ({found.backend}): {found.sentence}"
    return UserMessage(quota=quota, reason=found.state, note=note, action="Prove")


def _to_ask(
    quotas: Collection[Quota], backends: Mapping[str, Backend], readings: Mapping[str, Mapping[str, object] | None]
) -> frozenset[str]:
    """The GPUs whose daemons have to be asked: those on which a container limited by MPS holds memory."""
    return frozenset(
        quota.gpu
        for quota in quotas
        if backends[quota.gpu].by_mps and quota.container_id in (readings[quota.gpu] or {})
    )
