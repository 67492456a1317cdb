"""The enforcer's NVML client: requests to a process of its own, each with a deadline.

Why a process and not a thread: a fault in the driver's library must not end the enforcer, and a call that the kernel
does not come back from can be left behind only together with its process. What happens when there is no answer:

- a caller waits for ``deadline`` and no longer, for all questions of one look together; while an answer is overdue,
  hardly at all;
- an answer that comes late is thrown away, and the process asked again: nothing is lost when a driver wakes up;
- a process that missed its deadline is kept, so that a slow driver is heard. Beside it another is tried, and
  replaced after ``trial``: a driver may serve new calls and never return the old ones;
- no other is tried beside it while one that was killed has not exited: the kernel keeps them in the driver;
- a silent one is killed after ``patience``;
- one that cannot be killed is left and named; with ``MOST_LEFT`` of them no other is started;
- one that ends by itself is replaced at once, and after that happened a few times in a minute, after a while.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from enforcer.nvml import wire
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import ComputeMode, Gpu, GpuSample, Utilization
from enforcer.nvml.worker_handle import WorkerExited, WorkerProcess
from gpushare.errors import NvmlError
from gpushare.reasons import Reason

MOST_LEFT: Final = 3
FREE_STARTS: Final = 6
"""Processes that may end by themselves in ``WINDOW`` seconds before the next has to wait."""
WINDOW: Final = 60.0
MOMENT: Final = 0.02
"""Share of ``deadline`` that is waited for an answer while another is overdue."""
REAP: Final = 0.2
"""Seconds in which a killed process is expected to be gone."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlTimeouts:
    """Seconds: until a caller gets an error, for one that is tried, until a silent one is killed, between restarts.

    ``patience`` is how long NVML may take to initialise: without persistence mode, seconds for each GPU.
    """

    deadline: float = 2.0
    trial: float = 0.5
    patience: float = 60.0
    restart: float = 0.5
    most_restart: float = 5.0


@dataclass(frozen=True, slots=True)
class _Overdue:
    """An answer that a process owes, and to which question.

    ``due``: callers wait for it until then. The end of a look may have cut that short. ``given_up``: from then on
    another process is asked.
    """

    number: int
    what: str
    due: float
    given_up: float


@dataclass(frozen=True, slots=True)
class _Silent:
    """A silent process that may be slow, the answer it owes, and when it is killed."""

    process: WorkerProcess
    overdue: _Overdue
    kill_at: float


class NvmlClient(GpuReader):
    """Asks NVML as ``enforcer.nvml.reader.NvmlReader`` does, from another process. Safe to use from several threads.

    Every question may raise ``NvmlError``, with reason ``NvmlHung`` or ``NvmlCrashed`` where the process did not
    answer.

    Args:
        command: starts the process (``enforcer.nvml.worker_handle.command``).
        waits: see there.
    """

    def __init__(self, command: Sequence[str], waits: NvmlTimeouts | None = None) -> None:
        self._command, self._waits = command, waits or NvmlTimeouts()
        self._lock = threading.Lock()
        self._kept: WorkerProcess | None = None
        self._overdue: _Overdue | None = None
        self._silent: _Silent | None = None
        self._number = 0
        self._crashes: list[float] = []
        self._left: list[WorkerProcess] = []
        self._stopped = self._paused = False
        self._mine = threading.local()
        """When this thread's look is over, where one is under way."""

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Let all that this thread asks meanwhile share one ``deadline``: a slow driver has many GPUs to be slow on."""
        self._mine.look_end = time.monotonic() + self._waits.deadline
        try:
            yield
        finally:
            del self._mine.look_end

    def gpus(self) -> tuple[Gpu, ...]:
        """Enumerate the GPUs, then the MIG instances on them."""
        found: tuple[Gpu, ...] = self._ask("gpus")
        return found

    def sample(self, uuid: str) -> GpuSample:
        """Read who holds how much on one GPU."""
        found: GpuSample = self._ask("sample", uuid)
        return found

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Say who may open contexts on a GPU."""
        found: ComputeMode = self._ask("compute_mode", uuid)
        return found

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may open contexts on a GPU; without an answer it may have been changed, or be so later."""
        self._ask("set_compute_mode", uuid, int(mode))

    def limits_cgroups(self, uuid: str, cgroup: str) -> bool:
        """Say whether the driver keeps memory limits of cgroups on a GPU."""
        return bool(self._ask("limits_cgroups", uuid, cgroup))

    def cgroup_limit_mib(self, uuid: str, cgroup: str) -> int | None:
        """Read a cgroup directory's hard limit in MiB; ``None``: none is set."""
        found: int | None = self._ask("cgroup_limit_mib", uuid, cgroup)
        return found

    def set_cgroup_limit(self, uuid: str, cgroup: str, mib: int) -> None:
        """Let allocations in a cgroup fail that would bring it above ``mib``."""
        self._ask("set_cgroup_limit", uuid, cgroup, mib)

    def ailment(self, uuid: str) -> Reason | None:
        """Say whether a GPU has memory errors that only a reset repairs."""
        found: Reason | None = self._ask("ailment", uuid)
        return found

    def critical_errors(self) -> list[tuple[str, int]]:
        """Say which critical errors (XIDs) happened since the last question."""
        found: list[tuple[str, int]] = self._ask("critical_errors")
        return found

    def utilization(self, uuid: str, after: int) -> Utilization | None:
        """Read each process's utilization after a moment, microseconds since 1970; ``None``: the driver has none."""
        found: Utilization | None = self._ask("utilization", uuid, after)
        return found

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            self._drop_all()

    def stop(self) -> None:
        """End the process for good: a thread of ours that has not ended yet must not start another."""
        with self._lock:
            self._stopped = True
            self._drop_all()

    def pause(self) -> None:
        """End the process, and start no other until ``resume``: a driver is upgraded only while nobody uses NVML."""
        with self._lock:
            self._paused = True
            self._drop_all()

    def resume(self) -> bool:
        """Let the next question start a process again; return whether NVML was paused."""
        paused, self._paused = self._paused, False
        return paused

    @property
    def problem(self) -> str | None:
        """Name the processes that could not be killed; ``None`` where there are none."""
        left = [each for each in self._left if not each.exited]
        pids, what = ", ".join(str(each.pid) for each in left), "stuck in the driver (drain the node and reboot it)"
        return f"NVML worker processes still run after SIGKILL, {what}: {pids}" if left else None

    def _ask(self, what: str, *arguments: Any) -> Any:
        now = time.monotonic()
        end = min(now + self._waits.deadline, getattr(self._mine, "look_end", math.inf))
        if end <= now or not self._lock.acquire(timeout=end - now):
            raise NvmlError(
                f"NVML is still busy after {self._waits.deadline:g} s, so the enforcer did not call {what}",
                Reason.NVML_HUNG,
            )
        try:
            return self._asked(end, what, arguments)
        except WorkerExited as error:
            raise self._crashed(what, str(error)) from error
        finally:
            self._lock.release()

    def _asked(self, end: float, what: str, arguments: tuple[Any, ...]) -> Any:
        kept = self._running(end)
        self._number += 1
        overdue = self._awaited(what, time.monotonic(), tried=self._silent is not None)
        kept.send(wire.encode_request(self._number, what, arguments))
        while (line := kept.receive(min(end, overdue.due))) is not None:
            try:
                number, found = wire.request_id(line)
                if number == self._number:
                    self._end_silent()
                    return wire.decode_value(what, found)
            except ValueError as error:
                raise WorkerExited(f"invalid answer: {error}") from error
        self._overdue = overdue
        raise self._hung(what)

    def _awaited(self, what: str, now: float, *, tried: bool) -> _Overdue:
        """Say how long an answer is waited for: of a process that is tried beside another, hardly at all."""
        due = now + self._waits.deadline * (MOMENT if tried else 1.0)
        return _Overdue(self._number, what, due, now + self._waits.trial if tried else due)

    def _running(self, end: float) -> WorkerProcess:
        """Return a process that owes no answer. Raises ``NvmlError`` while there is none, ``WorkerExited``."""
        self._left = [each for each in self._left if not each.exited]
        if self._silent is not None:
            self._check_silent(self._silent)
        if self._kept is not None and self._overdue is not None:
            self._catch_up(self._kept, self._overdue, end)
        if self._kept is None:
            self._kept = self._started()
        return self._kept

    def _check_silent(self, silent: _Silent) -> None:
        """Ask the silent process again if it has answered; end it after ``patience``, or if it has exited."""
        try:
            answered = _answered(silent.process, silent.overdue.number, 0.0)
        except WorkerExited:
            self._end_silent()
            return
        if answered:
            self._drop()
            self._kept, self._silent = silent.process, None
        elif time.monotonic() >= silent.kill_at:
            self._end_silent()

    def _catch_up(self, kept: WorkerProcess, overdue: _Overdue, end: float) -> None:
        """Take the answer that is overdue, if it is there; else ask another process, once the time is up."""
        moment = max(time.monotonic() + self._waits.deadline * MOMENT, min(overdue.due, end))
        if _answered(kept, overdue.number, moment):
            self._overdue = None
            self._end_silent()
            return
        if (now := time.monotonic()) < overdue.given_up:
            raise self._hung(overdue.what)
        if self._silent is None:
            log.warning("NVML hangs", reason=str(Reason.NVML_HUNG), pid=kept.pid, question=overdue.what)
            self._silent = _Silent(kept, overdue, now + self._waits.patience)
            self._kept = self._overdue = None
        else:
            self._drop()

    def _drop(self) -> None:
        self._overdue = None
        kept, self._kept = self._kept, None
        if kept is not None:
            self._end(kept)

    def _end_silent(self) -> None:
        silent, self._silent = self._silent, None
        if silent is not None:
            self._end(silent.process)

    def _end(self, process: WorkerProcess) -> None:
        if not process.kill(REAP):
            self._left.append(process)
            log.error(
                "NVML worker process still runs after SIGKILL, stuck in the driver",
                reason=str(Reason.UNKILLABLE),
                pid=process.pid,
            )

    def _drop_all(self) -> None:
        self._drop()
        self._end_silent()

    def _started(self) -> WorkerProcess:
        if self._stopped:
            raise NvmlError("the enforcer is stopping and no longer calls NVML")
        if self._paused:
            raise NvmlError("NVML is closed while the GPU driver is upgraded", Reason.DRIVER_UPGRADE)
        if self._left and self._silent is not None:
            raise self._hung(self._silent.overdue.what)
        if len(self._left) >= MOST_LEFT:
            raise NvmlError(f"the enforcer no longer calls NVML: {self.problem}; reboot the node", Reason.NVML_HUNG)
        now = time.monotonic()
        self._crashes = [when for when in self._crashes if now - when < WINDOW]
        late = len(self._crashes) - FREE_STARTS
        pause = 0.0 if late <= 0 else min(self._waits.restart * 2.0 ** (late - 1), self._waits.most_restart)
        if self._crashes and now < self._crashes[-1] + pause:
            raise NvmlError(
                f"the NVML worker process failed {len(self._crashes)} times in a minute; the enforcer restarts it soon",
                Reason.NVML_CRASHED,
            )
        try:
            return WorkerProcess(self._command)
        except OSError as error:
            raise NvmlError(f"the enforcer cannot start the NVML worker process: {error}") from error

    def _crashed(self, what: str, cause: str) -> NvmlError:
        kept = self._kept
        self._crashes.append(time.monotonic())
        self._drop()
        how = cause or (kept.exit_reason if kept is not None and kept.exited else "no cause known")
        log.warning("NVML worker process failed", reason=str(Reason.NVML_CRASHED), question=what, how=how)
        return NvmlError(f"the NVML worker process failed during request {what!r:.80} ({how})", Reason.NVML_CRASHED)

    def _hung(self, what: str) -> NvmlError:
        deadline = self._waits.deadline
        return NvmlError(
            f"NVML does not answer request {what!r:.80} within {deadline:g} s: the driver hangs", Reason.NVML_HUNG
        )


def _answered(process: WorkerProcess, number: int, end: float) -> bool:
    """Return whether a process answers a question before ``end``; what it says is thrown away. Raises WorkerExited."""
    while (line := process.receive(end)) is not None:
        with suppress(ValueError):
            if wire.request_id(line)[0] == number:
                return True
    return False
