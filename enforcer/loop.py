"""The loop: sample, attribute, detect, start kills, report. Kills run in threads beside it."""

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.kill_records import RECORDED, warning_fields
from enforcer.audit.log import utc_now
from enforcer.audit.record import Kind
from enforcer.audit.writer import AuditWriter
from enforcer.detection import close_look, nvml_outage, state_file
from enforcer.detection.claim_wait import ClaimWait
from enforcer.detection.decide import decide
from enforcer.detection.detector import record_kill_result
from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.detection.lending import seconds_of_need
from enforcer.detection.types import ContainerKey, Decision, DetectorConfig, DetectorState, KillDecision, container_key
from enforcer.kill.circuit_breaker import CircuitBreaker
from enforcer.kill.executor import KillExecutor
from enforcer.kill.report import KillResult
from enforcer.limits.verifier import LimitVerifier
from enforcer.oom.reporter import OomReporter
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import OnExceed, Quota
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.runtime import files
from enforcer.runtime.background import BackgroundExecutor
from enforcer.runtime.boot import boot_id
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.runtime.manager import Manager
from enforcer.runtime.problem import Problem
from enforcer.status import messages, node_status
from enforcer.status.dedup import EventDeduplicator, Repetition
from enforcer.status.events import EventRecorder, NodeEvent
from enforcer.status.hidden_notices import HiddenNotices
from enforcer.status.metrics import Metrics
from enforcer.status.mps_clients import MpsClients
from enforcer.status.node_status import Snapshot
from enforcer.status.node_status_file import StatusCache, StatusFile
from enforcer.status.pod_status_files import PodStatusWriter
from enforcer.status.utilization import UtilizationMonitor
from gpushare.errors import NvmlError, RecordError
from gpushare.files import read_regular_file
from gpushare.reasons import Reason

log = structlog.get_logger()

WORKERS: Final = 4
"""Kills at once: an unkillable process must not keep others waiting."""
STALLED_SECONDS: Final = 10.0
"""Beyond the interval, after which a loop without an iteration watches nothing: the process is not ready."""
DISK_SECONDS: Final = 10.0
"""For what a restart must know to be written; what takes longer is not acted upon, as with the audit log."""
_TO_KEEP: Final = {Decision.KILL, Decision.BREAKER_OPEN}
"""What is written before the next iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDependencies:
    """What an enforcer is made of."""

    watch: UsageSampler
    checkpoint: Checkpoint
    """The quotas in force."""
    executor: KillExecutor
    audit_log: AuditWriter
    pods: PodStatusWriter
    """Brings the status files of pods up to date."""
    metrics: Metrics
    manager: Manager
    """Knows the problems of the other parts."""
    events: EventRecorder
    """Takes messages to pods' owners, and to operators what lasts of blindness."""
    oom: OomReporter
    """Knows why containers failed."""
    clients: MpsClients
    """Warn of too many MPS clients."""
    hidden: HiddenMemory
    """Knows the memory that nobody is counted for."""
    notices: HiddenNotices
    """Tell containers that they may hold it."""
    availability: GpuAvailability
    """Knows of the GPUs what they do not hold."""
    utilization: UtilizationMonitor
    """Knows how much of the time each container runs kernels."""
    verifier: LimitVerifier
    """Knows whether each limit is in force."""
    claim_wait: ClaimWait
    """Lets new claims of namespaces without budget wait."""
    setup: Mapping[str, Any]
    """See ``enforcer.status.node_status.Snapshot``."""


class EnforcementLoop:
    """One node's enforcer.

    Args:
        node: its name.
        state: directory for ``status.json``.
        parts: see there.
        rules: how careful the detector is.
        enforcing: false: over-quota containers are warned and nothing more.
    """

    def __init__(
        self,
        node: str,
        state: Path,
        parts: LoopDependencies,
        *,
        rules: DetectorConfig | None = None,
        enforcing: bool = True,
        clock: Clock = CLOCK,
    ) -> None:
        self._node, self._folder, self._parts = node, state, parts
        self._rules, self._enforcing, self._clock = rules or DetectorConfig(), enforcing, clock
        self._boot = boot_id()
        self._disk = BackgroundExecutor(f"the disk of {state}")
        self._quotas: tuple[Quota, ...] = ()
        self._other_problems: tuple[Problem, ...] = ()
        self._knows = False
        """Whether quotas and problems were read. Before, nothing is evaluated: what a restart has to take over of grace
        periods would be compared with no quota, and forgotten."""
        self._remembered, self._kept, self._unkept = b"", Future[None](), ""
        self._state = self._recall()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="kill")
        self._pending: dict[Future[KillResult], KillDecision] = {}
        self._file, self._editions = StatusFile(state), StatusCache()
        self._sight: nvml_outage.Outages = {}
        self._armed: dict[ContainerKey, float] = {}
        self._deduplicator = EventDeduplicator()
        self._breaker = CircuitBreaker(state, self._disk)
        self._polled, self._interval = self._clock.boottime(), 0.0
        parts.manager.add_ready_check(self.stalled)

    def stalled(self) -> str | None:
        """Return since how many seconds no iteration has come to its end; ``None`` while they do. Takes no lock."""
        age = self._clock.boottime() - self._polled
        late = age > STALLED_SECONDS + 1.5 * self._interval
        return f"the enforcer's loop has not sampled the GPUs for {age:.0f} s and enforces no quota" if late else None

    def run(self, stopped: threading.Event, interval: float) -> None:
        """Look every ``interval`` seconds until stopped; then wait for what is being acted upon.

        Each interval is 0.5 to 1.5 times as long: nobody can free memory just before each sample.
        """
        due, self._interval = self._clock.boottime(), interval
        while not stopped.is_set():
            self.poll()
            due = max(due + interval * random.uniform(0.5, 1.5), self._clock.boottime())  # noqa: S311 - no secret depends on it
            self.watch_closely(stopped, due)
            pause = min(close_look.SECONDS, 0.5 * interval)  # after a slow read, too
            stopped.wait(max(pause, due - self._clock.boottime()))
        self.close()

    def watch_closely(self, stopped: threading.Event, due: float) -> None:
        """Until the next iteration is due, read the GPUs on which a kill may come every 80 ms, and start the kills.

        Nothing else is done meanwhile: a restart then knows what the last iteration wrote, or that a kill was decided.
        """
        while (left := due - self._clock.boottime()) >= 2 * close_look.SECONDS:
            now = self._clock.boottime()
            gpus = close_look.gpus_to_watch(self._state, self._enforced(), now, left, self._rules)
            if not gpus or stopped.wait(close_look.SECONDS):
                return
            views, now = self._parts.watch.sample_some(gpus), self._clock.boottime()
            self._disk.reset_budget()
            for decision in self._evaluate(views, now, only=gpus):
                self._act_on(decision)

    def poll(self) -> None:
        """One turn. What NVML does not answer makes it blind, never stops it."""
        with self._parts.metrics.seconds.time():
            now = self._clock.boottime()
            self._disk.reset_budget()
            self._take_results(now)
            if (found := self._disk.run_within("asked", self._ask, None)) is not None:
                (self._quotas, self._other_problems), self._knows = found, True
            views, now = self._read_gpus()
            if self._knows:
                self._parts.hidden.take(views, self._quotas, now)
            for decision in self._evaluate(views, now) if self._knows else ():
                self._act_on(decision)
            self._parts.claim_wait.update({} if self._state.open else self._state.accounts, now)
            self._parts.executor.reap_pending()
            self._parts.audit_log.retry_pending()
            self._report(views, self._quotas, now)
        self._polled = self._clock.boottime()

    def _evaluate(
        self, views: Sequence[GpuSnapshot], now: float, only: frozenset[str] | None = None
    ) -> Sequence[KillDecision]:
        state = self._breaker.sync_from_disk(self._state) if only is None else self._state
        hidden, quotas = self._parts.hidden, self._enforced()
        readings, waiting = hidden.readings(views), self._parts.claim_wait.pods
        self._state, decisions = decide(state, quotas, views, readings, now, self._rules, only=only, waiting=waiting)
        for seconds in seconds_of_need(state, self._state):
            self._parts.metrics.reclaim_seconds.observe(seconds)
        if only is None or any(each.decision in _TO_KEEP for each in decisions):
            self._remember()  # first: should we die over a kill, the next enforcer counts it
        return [hidden.marked(each) for each in decisions]

    def _enforced(self) -> tuple[Quota, ...]:
        if self._enforcing:
            return self._parts.hidden.enforced(self._quotas)
        return tuple(replace(each, on_exceed=OnExceed.WARN) for each in self._quotas)

    def _ask(self) -> tuple[tuple[Quota, ...], tuple[Problem, ...]]:
        """Ask for all that may wait for a disk, at once: each time that another thread is waited for costs."""
        return self._parts.checkpoint.read(), tuple(self._parts.manager.problems())

    def close(self) -> None:
        """Let kills that have begun come to their end, and take in what came of them."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._disk.reset_budget()
        self._take_results(self._clock.boottime())
        if self._knows:
            self._remember()

    def _recall(self) -> DetectorState:
        why = "the file is damaged, or from another boot or another version"
        try:
            data = read_regular_file(self._folder / state_file.NAME, state_file.MAX_BYTES)
            if self._boot and (found := state_file.decode(data, self._boot, self._clock.boottime())) is not None:
                return found
        except FileNotFoundError:
            return DetectorState()
        except OSError as error:
            why = str(error)
        log.warning("budgets restarted", reason=str(Reason.INTERRUPTED), file=state_file.NAME, error=why)
        return DetectorState()

    def _remember(self) -> None:
        """Keep what a restart must not lose. It may be lost with the machine: that ends the processes as well.

        Where the disk takes its time, looking goes on, and who is to be ended has to wait; see ``_execute``.
        """
        data = state_file.encode(self._state, self._boot)
        if data != self._remembered:
            self._remembered, kept = data, partial(self._keep, data)
            self._kept = self._disk.submit("memory", kept)
        self._disk.wait_briefly(self._kept)

    def _keep(self, data: bytes) -> None:
        try:
            files.replace(self._folder / state_file.NAME, data)
        except OSError as error:
            if str(error) != self._unkept:
                log.warning("budgets not saved", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))
            self._unkept = str(error)
            self._remembered = b""  # the next look tries again
        else:
            self._unkept = ""

    def _execute(self, kept: Future[None], decision: KillDecision) -> KillResult:
        """Act, once a restart would know of it; on a disk that refuses all the same, on one that says nothing not.

        The breaker's file may have been there already, and the disk too slow to say so in time.
        """
        try:
            kept.result(DISK_SECONDS)
        except TimeoutError:
            log.critical("no process killed", reason=str(Reason.AUDIT_UNWRITABLE), error=self._disk.problem)
            self._parts.events.record(messages.audit_unavailable(decision))
            return KillResult(Reason.AUDIT_UNWRITABLE)
        return KillResult(Reason.BREAKER_OPEN) if self._breaker.is_open else self._parts.executor.execute(decision)

    def _read_gpus(self) -> tuple[tuple[GpuSnapshot, ...], float]:
        """Return the samples, and the time after them: how long the read took is no time over quota."""
        try:
            views = self._parts.watch.sample()
            problems = {view.gpu.uuid: view.problem for view in views if view.problem is not None}
        except NvmlError as error:
            views, problems = (), {nvml_outage.EVERYWHERE: error}
        now = self._clock.boottime()
        for problem in problems.values():
            self._parts.metrics.nvml_errors.labels(str(problem.reason)).inc()
        self._sight, changes = nvml_outage.update(self._sight, problems, now)
        for change in changes:
            self._report_outage(change)
        return views, now

    def _report_outage(self, change: nvml_outage.OutageChange) -> None:
        """Report once when NVML cannot be read and once when it can again; operators get an Event for what lasts."""
        back = change.transition is nvml_outage.Transition.BACK
        reason = Reason.RECOVERED if back else change.outage.reason
        if back:
            log.info("NVML readable again", reason=str(reason), gpu=change.gpu)
        elif change.transition is nvml_outage.Transition.LOST:
            log.warning("NVML unavailable", reason=str(reason), gpu=change.gpu, error=change.outage.why)
        if (note := nvml_outage.operator_message(change, self._clock.boottime())) is not None:
            self._parts.events.record_on_node(NodeEvent(reason, note, warning=not back))

    def _act_on(self, decision: KillDecision) -> None:
        quota = decision.quota
        repetition = self._deduplicator.register(decision, self._clock.boottime())
        armed = decision.decision is Decision.GRACE_STARTED and self._should_test_disk(decision)
        quiet = repetition is None or (decision.decision is Decision.GRACE_STARTED and not armed)
        (log.debug if quiet else log.info)(
            "decided", reason=str(decision.reason),
            decision=str(decision.decision), namespace=quota.namespace, pod=quota.pod, container=quota.container,
            gpu=quota.gpu, used_mib=decision.used_mib, quota_mib=quota.memory_mib, over_for=round(decision.over_for, 1),
        )  # fmt: skip
        self._parts.metrics.count(decision)
        if repetition is not None:
            self._tell(decision, repetition)
        if armed:
            self._record(Kind.GRACE_STARTED, decision)
        if decision.decision is Decision.KILL:
            self._pending[self._workers.submit(self._execute, self._kept, decision)] = decision

    def _tell(self, decision: KillDecision, repetition: Repetition) -> None:
        if (words := messages.DECIDED.get(decision.decision)) is not None:
            self._parts.events.record(words(decision, repetition))
        if (kind := RECORDED.get(decision.decision)) is not None:
            self._record(kind, decision, repetition.times)

    def _should_test_disk(self, decision: KillDecision) -> bool:
        """Tell whether to try the disk when grace begins: a dead disk is to be known before a container is killed.

        Once in a while for each place is enough: a container that goes over and back in turn does not fill the disk.
        """
        now, place = self._clock.boottime(), container_key(decision.quota)
        self._armed = {each: at for each, at in self._armed.items() if now - at < self._rules.window}
        fresh = place not in self._armed
        self._armed.setdefault(place, now)
        return fresh

    def _record(self, kind: Kind, decision: KillDecision, times: int = 1) -> None:
        self._parts.audit_log.append_async(kind, warning_fields(self._node, decision, times), self._unrecorded)

    def _unrecorded(self, error: RecordError) -> None:
        self._parts.metrics.record_errors.inc()
        log.warning("warning not recorded", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)

    def _take_results(self, now: float) -> None:
        for future in [future for future in self._pending if future.done()]:
            decision = self._pending.pop(future)
            acted, back = self._report_result(future, decision)
            self._state = record_kill_result(
                self._state, decision.quota, now, self._rules, acted=acted, back=back,
                reclaimed=decision.reclaim_mib > 0,
            )  # fmt: skip

    def _report_result(self, future: Future[KillResult], decision: KillDecision) -> tuple[bool, bool]:
        """Report one result. Return whether anything was done, and whether the container was back within its quota."""
        if future.cancelled():
            return False, False
        metrics, quota = self._parts.metrics, decision.quota
        if (bug := future.exception()) is not None:
            metrics.failures.inc()
            log.critical("kill failed", reason=str(Reason.INTERNAL), container=quota.container, exc_info=bug)
            return True, False  # what was done before it is not known, and counts for the most a minute allows
        result = future.result()
        metrics.finish(decision, result.reason)
        if result.reason is Reason.AUDIT_UNWRITABLE:
            metrics.record_errors.inc()
        for outcome in result.outcomes:
            metrics.signalled.labels(str(outcome.result)).inc()
        log.warning(
            "kill done", reason=str(result.reason), namespace=quota.namespace, pod=quota.pod, container=quota.container,
            gpu=quota.gpu, ended=result.some_pids, ended_total=len(result.outcomes),
        )  # fmt: skip
        return result.acted, result.reason is Reason.BACK_UNDER_QUOTA

    def _report(self, views: Sequence[GpuSnapshot], quotas: Sequence[Quota], now: float) -> None:
        parts, hidden = self._parts, self._parts.hidden
        snapshot = Snapshot(
            node=self._node, time=utc_now(), now=now, enforcing=self._enforcing, views=views, state=self._state,
            quotas=node_status.status_quotas(self._state, quotas), rules=self._rules, head=parts.audit_log.head,
            problems=self._problems(), standing=parts.availability.cached(), failures=parts.oom.findings(),
            proven=parts.verifier.proven, sight=self._sight, hidden=hidden.found, unaccounted=hidden.amounts,
            peaks=parts.pods.peaks, utilization=parts.utilization.latest, gpu_utilization=parts.utilization.gpus,
            setup=parts.setup,
        )  # fmt: skip
        snapshot, found = self._editions.render(snapshot)
        parts.metrics.latest.update(found)
        for part in (parts.oom, parts.clients, parts.notices):
            part.observe(snapshot)
        parts.pods.write(snapshot)
        if self._file.wants(found, now):
            self._disk.run_within("status", partial(self._file.put, found, now), None)

    def _problems(self) -> list[Problem]:
        own = (
            (self._breaker.problem, Reason.BREAKER_OPEN),
            (self._file.problem, Reason.AUDIT_UNWRITABLE),
            (self._disk.problem, Reason.AUDIT_UNWRITABLE),
            *((f"NVML unavailable for {gpu}: {blind.why}", blind.reason) for gpu, blind in self._sight.items()),
        )
        return [*(Problem(each, reason) for each, reason in own if each is not None), *self._other_problems]
