"""Our enforcer inside an experiment: the product's loop, judge, executor and audit log, with a stopwatch at its doors.

Nothing of it is replaced. Its doors (NVML, MPS, pidfds) are wrapped, so that it can be told when it saw and did what;
and who cannot make control groups says which process belongs to which container.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import FOLDER, AuditLog, segments
from enforcer.audit.record import read, verify
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import Decision, DetectorConfig, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, MpsClient, ProcessKiller
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.mps.manager import MpsManager
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import Gpu, GpuSample
from enforcer.quota.types import Quota
from enforcer.status.metrics import Metrics
from gpushare.errors import NvmlError
from tests.support.quotas import in_force
from tests.support.wiring import Messages, Usages, loop_parts

NODE = "experiment"
MANY = 1_000_000
"""Kills a minute: the breaker has tests of its own and must not stand between a trial and the next."""
RULES = DetectorConfig(kills=MANY)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something our enforcer did at its doors; ``at`` on the monotonic clock."""

    at: float
    what: str
    pid: int


class Journal:
    """When our enforcer did what to whom. Safe to use from several threads."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def note(self, what: str, pid: int) -> None:
        self.entries.append(Entry(time.monotonic(), what, pid))

    def took(self, begin: str, end: str) -> list[float]:
        """Seconds from each beginning to the end that belongs to it."""
        begun = {each.pid: each.at for each in self.entries if each.what == begin}
        return [each.at - begun[each.pid] for each in self.entries if each.what == end and each.pid in begun]

    def first(self, pid: int, *what: str) -> float | None:
        """When the first of these was done to a process; of anything where nothing is named."""
        found = (each.at for each in self.entries if each.pid == pid and (not what or each.what in what))
        return next(found, None)


class SeenReader(GpuReader):
    """A ``GpuReader`` that remembers how long it took to answer, and when it first saw each process hold how much."""

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader
        self.took: list[float] = []
        self.seen: list[tuple[float, Mapping[int, int]]] = []

    def gpus(self) -> tuple[Gpu, ...]:
        return self._reader.gpus()

    def sample(self, uuid: str) -> GpuSample:
        begun = time.monotonic()
        found = self._reader.sample(uuid)
        self.took.append(time.monotonic() - begun)
        self.seen.append((time.monotonic(), {process.pid: process.used_mib for process in found.processes}))
        return found

    def close(self) -> None:
        self._reader.close()

    def above(self, pid: int, mib: int) -> float | None:
        """When a process was first seen to hold more than that."""
        return next((at for at, held in list(self.seen) if held.get(pid, 0) > mib), None)


class Membership(CgroupAttributor):
    """Attributes by control group as in the product, and by this list where a process is in none of a pod's."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, ContainerRef] = {}

    def join(self, pid: int, pod_uid: str, container_id: str) -> None:
        """Say whose a process is, where its control group cannot."""
        self._owners[pid] = ContainerRef(pod_uid, container_id)

    def identify(self, pid: int) -> Identity | None:
        found = super().identify(pid)
        if found is None or found.owner is not None:
            return found
        return replace(found, owner=self._owners.get(pid))

    @property
    def kind(self) -> str:
        """How processes were attributed, for the record."""
        return "a list: no control group of a pod could be made" if self._owners else "control groups"


class TimedMps:
    """An MPS client that notes when it was asked, and when it had answered."""

    def __init__(self, mps: MpsClient, journal: Journal) -> None:
        self._mps, self._journal = mps, journal

    def terminate(self, pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        self._journal.note("terminate", pid)
        try:
            return self._mps.terminate(pid, gpu, ended)
        finally:
            self._journal.note("terminated", pid)


def noting(journal: Journal) -> type[PidHandle]:
    """Open pidfds that note which signals went through them."""

    class Noted(PidHandle):
        def send(self, number: signal.Signals) -> bool:
            journal.note(number.name, self.pid)
            return super().send(number)

    return Noted


class Guard:
    """One enforcer, in this process.

    Args:
        folder: for its state and its audit log; must be ours alone.
        reader: its door to NVML.
        mps: the daemons' manager; ``None``: nobody is an MPS client.
        poll: seconds between its looks.
        rules: how careful it is.
    """

    def __init__(
        self,
        folder: Path,
        reader: NvmlReader,
        mps: MpsClient | None = None,
        *,
        poll: float = 0.5,
        rules: DetectorConfig = RULES,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.journal, self.events, self.members = Journal(), Messages(), Membership()
        self.reader, self.poll, self.quotas = SeenReader(reader), poll, list[Quota]()
        self._folder, self._mps = folder, TimedMps(mps or MpsManager(), self.journal)
        self._log = AuditWriter(AuditLog(folder / FOLDER), NODE)
        self._log.open()
        watch = UsageSampler(self.reader, self.members)
        parts = loop_parts(
            watch=watch, quotas=lambda: tuple(self.quotas), executor=self._executor(watch), audit_log=self._log,
            events=self.events, metrics=Metrics(),
        )  # fmt: skip
        self._enforcer = EnforcementLoop(NODE, folder, parts, rules=rules)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._enforcer.run, args=(self._stopped, poll), daemon=True)

    def _executor(self, usage: UsageSampler) -> KillExecutor:
        parts = KillDependencies(
            usage=usage, quotas=in_force(), processes=HostProcesses(self.members, noting(self.journal)),
            audit_log=self._log, killer=ProcessKiller(self._mps), events=self.events,
        )  # fmt: skip
        return KillExecutor(NODE, parts, KillTimeouts())

    def start(self) -> None:
        """Let it look from now on."""
        self._thread.start()

    def end_now(self, quota: Quota, pid: int) -> KillResult:
        """Have one process ended by the executor alone, as on a verdict that it is over its quota."""
        identity = self.members.identify(pid)
        if identity is None:
            raise ProcessLookupError(pid)
        holder = ProcessUsage(identity, quota.ceiling_mib + 1)
        verdict = KillDecision(decision=Decision.KILL, quota=quota, used_mib=holder.used_mib, targets=(holder,))

        def held(_: Quota) -> tuple[ProcessUsage, ...]:
            """It is ended in any case: another experiment tests what NVML shows of it."""
            return (holder,) if self.members.identify(pid) == identity else ()

        return self._executor(Usages(held)).execute(verdict)

    def lines(self) -> list[bytes]:
        """The audit log as it is now."""
        files = segments(self._folder / FOLDER)
        return list(chain.from_iterable(file.read_bytes().splitlines(keepends=True) for file in files))

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Its records of one kind."""
        return [record for record in map(read, self.lines()) if record["kind"] == kind]

    def verified(self) -> bool:
        """Whether the chain holds and each INTENT has its one answer."""
        answered = [record["intent"] for kind in ("ABORTED", "OUTCOME") for record in self.records(kind)]
        return verify(self.lines()).ok and sorted(map(str, answered)) == sorted(
            str(record["seq"]) for record in self.records("INTENT")
        )

    def close(self) -> None:
        """Stop looking, let what has begun come to its end, close the log."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._enforcer.close()
        self._log.close()
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Sampler:
    """Looks at one GPU much more often than the enforcer, through a door of its own: the truth to compare with."""

    def __init__(self, reader: NvmlReader, gpu: str, every: float = 0.02) -> None:
        self._reader, self._gpu, self._every = reader, gpu, every
        self._stopped = threading.Event()
        self.seen: list[tuple[float, Mapping[int, int], int]] = []
        """When, MiB by pid, MiB used of the whole card."""
        self.blind = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self.look()

    def look(self) -> None:
        try:
            found = self._reader.sample(self._gpu)
        except NvmlError:
            # Lists and totals are read one after the other; what ends in between makes them contradict each other.
            self.blind += 1
            return
        held = {process.pid: process.used_mib for process in found.processes}
        self.seen.append((time.monotonic(), held, found.used_mib))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._reader.close()


def ended_pids(records: Sequence[Mapping[str, Any]]) -> set[int]:
    """Whom the OUTCOME records say our enforcer ended."""
    rows = chain.from_iterable(record.get("targets", ()) for record in records)
    return {int(row["pid"]) for row in rows if row["steps"]}
