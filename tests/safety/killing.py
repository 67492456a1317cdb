"""The executor on real processes: only what NVML says of them, and what MPS answers, is scripted."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import read, verify
from enforcer.audit.writer import AuditWriter
from enforcer.detection.targets import select_targets
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, MpsClient, ProcessKiller
from enforcer.kill.report import KillResult
from enforcer.mps.manager import MpsManager
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.types import Quota
from enforcer.status.messages import UserMessage
from tests.safety.reuse import CARD, GPU
from tests.support.quotas import in_force
from tests.support.wiring import Messages

__all__ = ["GPU", "Bench"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that went out: ``at`` in nanoseconds of the monotonic clock."""

    at: int
    pid: int
    number: signal.Signals


def noting(sent: list[Sent]) -> type[PidHandle]:
    """Real pidfds that note what is sent through them."""

    class Noting(PidHandle):
        def send(self, number: signal.Signals) -> bool:
            sent.append(Sent(time.monotonic_ns(), self.pid, number))
            return super().send(number)

    return Noting


class Bench(GpuReader):
    """One executor.

    Args:
        folder: of its audit log.
        held: what NVML says at each look: pids, each with its MiB.
        mps: the daemons.
        patience: scaled.
    """

    def __init__(
        self, folder: Path, held: Callable[[], Sequence[tuple[int, int]]], mps: MpsClient | None = None,
        patience: KillTimeouts | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._held = folder / "audit", held
        self.writer = AuditWriter(AuditLog(self._folder), "gpu-7")
        self.watch = UsageSampler(self, CgroupAttributor())
        self.watch.sample()
        self.notices = list[UserMessage]()
        self.sent: list[Sent] = []
        parts = KillDependencies(
            usage=self.watch, quotas=in_force(), processes=HostProcesses(CgroupAttributor(), noting(self.sent)),
            audit_log=self.writer, killer=ProcessKiller(mps or MpsManager()), events=Messages(self.notices),
        )  # fmt: skip
        self.executor = KillExecutor("gpu-7", parts, patience or KillTimeouts(term=0.2, kill=1.0))

    def gpus(self) -> tuple[Gpu, ...]:
        return (CARD,)

    def sample(self, uuid: str) -> GpuSample:
        found = [GpuProcess(pid, mib) for pid, mib in self._held()]
        return GpuSample(
            uuid=uuid, total_mib=CARD.memory_mib, used_mib=sum(each.used_mib for each in found), processes=tuple(found)
        )

    def decision(self, quota: Quota) -> KillDecision:
        """What the detector would decide after this sample."""
        holders = self.watch.usages_of(quota) or ()
        used = sum(each.used_mib for each in holders)
        return KillDecision(decision=Decision.KILL, quota=quota, used_mib=used, targets=select_targets(quota, holders))

    def kill(self, quota: Quota) -> KillResult:
        return self.executor.execute(self.decision(quota))

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        return [record for record in map(read, self._lines()) if kind in {"", record["kind"]}]

    def last(self, kind: str) -> dict[str, Any]:
        """The last record of a kind; of a long log no other is looked at."""
        return next(record for record in map(read, reversed(self._lines())) if record["kind"] == kind)

    def whole(self) -> bool:
        """The chain holds, and each INTENT has its one answer."""
        answered = sorted(record["intent"] for record in self.records() if record["kind"] in {"ABORTED", "OUTCOME"})
        return verify(self._lines()).ok and answered == [record["seq"] for record in self.records("INTENT")]

    def _lines(self) -> list[bytes]:
        found = segments(self._folder) if self._folder.exists() else []
        return [line for path in found for line in path.read_bytes().splitlines(keepends=True)]

    def signals(self) -> list[tuple[int, str]]:
        """Pid and name of each signal, in order."""
        return [(each.pid, each.number.name) for each in self.sent]

    def close(self) -> None:
        self.writer.close()
