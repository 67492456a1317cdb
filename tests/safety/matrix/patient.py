"""The enforcer under test: the loop and all its real parts in a process of its own; only NVML and MPS are scripted."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from enforcer import loop
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.audit import log as audit
from enforcer.audit.log import FOLDER, AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import Decision, DetectorConfig, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.nvml.validation import check
from enforcer.quota.checkpoint import Checkpoint
from enforcer.runtime import lock
from enforcer.runtime.clock import Clock
from enforcer.runtime.logs import configure_logging
from enforcer.runtime.manager import Manager
from enforcer.status.metrics import Metrics
from gpushare import metrics_server
from gpushare.errors import ConfigError, MpsError, NvmlError, RecordError
from gpushare.reasons import Reason
from gpushare.signals import stopped_by_signal
from tests.safety.matrix.instruments import Instruments
from tests.safety.matrix.page import Page, Switch
from tests.safety.matrix.trace import Moment, Moments, Trace, now
from tests.support.quotas import in_force
from tests.support.wiring import Messages, loop_parts

UUID: Final = "GPU-00000000-0000-0000-0000-000000000001"
CARD_MIB: Final = 81920
POLL: Final = 0.02
RULES: Final = DetectorConfig(max_gap=0.4, first=POLL, window=2.4, cool_down=0.6, kill_interval=1.2)
"""As by default, a minute being 2.4 s."""
PATIENCE: Final = KillTimeouts(term=0.08, kill=0.5)
HANG_SECONDS: Final = 0.4
DISK_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 4.0
"""After which an enforcer that was told to stop says where its threads are."""
CLOSED: Final = 2
"""Exit code of an enforcer that may not start."""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What one enforcer is told. ``before`` is the look before which the fault strikes, where it is before a sample."""

    state: Path
    proc: Path
    page: Page
    pipe: int
    go_on: int
    moment: Moment
    before: int = 0
    at_once: bool = False
    """Strike when the judge has spoken, not when its verdict is taken up."""
    client: bool = False
    port: int | None = None
    sabotage: Sequence[Callable[["Patient"], None]] = ()


@dataclass
class Patient:
    """The parts, before they are put together; saboteurs exchange some."""

    orders: Orders
    trace: Trace
    moments: Moments
    rules: DetectorConfig = RULES
    wrap: Callable[[Any], Any] = lambda executor: executor
    kept: list[Any] = field(default_factory=list)


class Remembered(Clock):
    """The enforcer's clock. ``after`` is called with the time that it gives next: that of a look which has ended."""

    def __init__(self) -> None:
        self.after: Callable[[float], None] | None = None

    def boottime(self) -> float:
        time, after, self.after = now(), self.after, None
        if after is not None:
            after(time)
        return time


class Reader(GpuReader):
    """NVML as the page has it."""

    def __init__(self, orders: Orders, trace: Trace, moments: Moments, clock: Remembered) -> None:
        self._orders, self._page, self._trace, self._moments = orders, orders.page, trace, moments
        self._main, self._looks, self._clock = threading.get_ident(), 0, clock

    def gpus(self) -> tuple[Gpu, ...]:
        if self._page.on(Switch.NVML_LOST):
            return ()
        if self._page.on(Switch.NVML_CRASH):
            raise NvmlError("NVML's process has ended")
        return (
            Gpu(
                uuid=UUID, index=0, minor=0, model="H100", memory_mib=CARD_MIB, reserved_mib=0,
                compute_capability=(9, 0), pci_bus_id="", driver_version="570", cuda_version=(12, 8),
            ),
        )  # fmt: skip

    def sample(self, uuid: str) -> GpuSample:
        if threading.get_ident() == self._main:
            if self._looks >= self._orders.before:
                self._moments.reached(Moment.BEFORE_SAMPLE)
            self._looks += 1
        try:
            sample = self._sample(uuid)
            check(sample)
        except NvmlError:
            self._trace_rows(None)
            raise
        self._trace_rows([(each.pid, each.used_mib) for each in sample.processes])
        return sample

    def _trace_rows(self, rows: list[tuple[int, int]] | None) -> None:
        if threading.get_ident() == self._main:
            self._clock.after = lambda clock: self._trace.tell("sample", clock=clock, rows=rows)
        else:
            self._trace.tell("sample", clock=now(), rows=rows)

    def _sample(self, uuid: str) -> GpuSample:
        page, rows = self._page, self._page.rows()
        if page.on(Switch.NVML_HANG):
            _while_on(page, Switch.NVML_HANG, HANG_SECONDS)
            raise NvmlError("NVML did not answer in time")
        for switch in (Switch.NVML_ERROR, Switch.NVML_CRASH, Switch.NVML_LOST):
            if page.on(switch):
                raise NvmlError("no answer", Reason.GPU_LOST if switch is Switch.NVML_LOST else None)
        if page.on(Switch.NVML_INSANE):
            rows = [(pid, 2**44 - 1) for pid, _ in rows]
        processes = tuple(GpuProcess(pid, mib) for pid, mib in rows if _exists(pid))
        return GpuSample(
            uuid=uuid, total_mib=CARD_MIB, used_mib=min(sum(each.used_mib for each in processes) + 100, CARD_MIB),
            processes=processes,
        )  # fmt: skip


def _while_on(page: Page, switch: Switch, seconds: float) -> None:
    end = time.monotonic() + seconds
    while page.on(switch) and time.monotonic() < end:
        time.sleep(0.005)


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class Mps:
    """MPS's daemon. Letting go of a client counts as a signal."""

    def __init__(self, orders: Orders, trace: Trace) -> None:
        self._page, self._client, self._trace = orders.page, orders.client, trace

    def terminate(self, pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        if ended():
            return None
        self._trace.tell("signal", pid=pid, number=0, via="terminate_client")
        if self._page.on(Switch.MPS_BLOCKED):
            time.sleep(0.05)
            raise MpsError("somebody keeps the socket", Reason.MPS_CONTROL_BLOCKED)
        if self._page.on(Switch.MPS_DEAD):
            raise MpsError("no daemon")
        if self._page.on(Switch.MPS_REFUSES):
            return False
        return True if self._client or self._page.on(Switch.MPS_LYING) else None


class Acting:
    """Tells when a verdict is taken up and when it is done with."""

    def __init__(self, executor: Any, trace: Trace, moments: Moments) -> None:
        self._executor, self._trace, self._moments = executor, trace, moments

    def execute(self, verdict: KillDecision) -> Any:
        container = verdict.quota.container_id
        self._trace.tell("act", container=container)
        self._moments.reached(Moment.AFTER_DECISION)
        reason = ""
        try:
            result = self._executor.execute(verdict)
            reason = str(result.reason)
        finally:
            self._trace.tell("acted", container=container, reason=reason)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def live(orders: Orders) -> int:
    """Be one enforcer until told to stop; returns the exit code."""
    trace = Trace(orders.pipe)
    moments = Moments(orders.moment, orders.page, trace, orders.go_on)
    Instruments(orders.state, orders.page, trace, moments).install()
    configure_logging("info")
    patient = Patient(orders, trace, moments)
    for sabotage in orders.sabotage:
        sabotage(patient)
    try:
        with lock.acquire_lock(orders.state, wait=True) as hold:
            return _run(patient, hold)
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        return CLOSED


def _run(patient: Patient, hold: lock.StateLock) -> int:
    orders, trace = patient.orders, patient.trace
    written = AuditLog(orders.state / FOLDER)
    vars(audit)["utc_now"] = partial(_wall, orders.page)
    audit_log = AuditWriter(written, "gpu-7", wait=DISK_SECONDS, lock=hold)
    with suppress(RecordError):
        audit_log.open()
    end = (
        None
        if orders.port is None
        else metrics_server.serve("--metrics", ("127.0.0.1", orders.port), _registry(), lambda: None)
    )
    enforcer = _enforcer(patient, audit_log)
    manager = Manager()
    stopped = stopped_by_signal(manager.stopped)
    manager.add("lock", lambda: None if hold.lost() is None else stopped.set(), every=2 * POLL)
    manager.start()
    trace.tell("ready", pid=os.getpid(), **_resources())
    closing = enforcer.close

    def close() -> None:
        trace.tell("closing", **_resources())
        faulthandler.dump_traceback_later(STUCK_SECONDS)  # into the log that a failed run shows
        closing()

    vars(enforcer)["close"] = close
    enforcer.run(stopped, POLL)
    trace.tell("closed", **_resources())
    audit_log.close()
    if end is not None:
        end()
    return 0


def _enforcer(patient: Patient, audit_log: AuditWriter) -> EnforcementLoop:
    orders, trace = patient.orders, patient.trace
    attributor = CgroupAttributor(orders.proc)
    clock = Remembered()
    watch = UsageSampler(Reader(orders, trace, patient.moments, clock), attributor)
    events = Messages(lambda notice: trace.tell("notice", reason=str(notice.reason)))
    dependencies = KillDependencies(
        usage=watch, quotas=in_force(), processes=HostProcesses(attributor), audit_log=audit_log,
        killer=ProcessKiller(Mps(orders, trace)), events=events,
    )  # fmt: skip
    executor = KillExecutor("gpu-7", dependencies, PATIENCE)
    parts = loop_parts(
        watch=watch, quotas=Checkpoint(orders.state).read,
        executor=Acting(patient.wrap(executor), trace, patient.moments),
        audit_log=audit_log, events=events, metrics=Metrics(),
    )  # fmt: skip
    _tell_decisions(patient)
    return EnforcementLoop("gpu-7", orders.state, parts, rules=patient.rules, clock=clock)


def _tell_decisions(patient: Patient) -> None:
    decide = vars(loop)["decide"]

    def told(*args: Any, **more: Any) -> Any:
        state, verdicts = decide(*args, **more)
        for verdict in verdicts:
            if verdict.decision is Decision.KILL:
                patient.trace.tell("decided", container=verdict.quota.container_id)
                if patient.orders.at_once:
                    patient.moments.reached(Moment.AFTER_DECISION)
        return state, verdicts

    vars(loop)["decide"] = told


def _registry() -> CollectorRegistry:
    return CollectorRegistry()


def _wall(page: Page) -> str:
    return (datetime.now(UTC) + timedelta(seconds=page.wall)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _resources() -> dict[str, Any]:
    """Descriptors, those of processes among them, threads, and resident KiB."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(str(path.readlink()))
    with Path("/proc/self/statm").open() as file:
        pages_held = int(file.read().split()[1])
    handles = sum("pidfd" in link for link in links)
    return {
        "fds": len(links),
        "handles": handles,
        "threads": threading.active_count(),
        "kib": pages_held * 4,
        "at": now(),
    }
