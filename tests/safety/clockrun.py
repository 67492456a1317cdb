"""One enforcer's loop over scripted minutes while its wall clock jumps: ``python -m tests.safety.clockrun``.

Needs ``wallclock.c`` in LD_PRELOAD. The boot clock and what NVML says are scripted, so two runs that decide alike say
exactly the same. Prints JSON: a digest of everything decided and said, and how far the wall clock was moved.
"""

import ctypes
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.log import AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import KillDecision
from enforcer.kill import circuit_breaker
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import OnExceed
from enforcer.runtime import background
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Attribution, Messages, loop_parts
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.test_loop import CARD, card

POLL: Final = 0.5
YEARS: Final = 10 * 365 * 86400
TENANTS: Final = 5
LIBRARY: Final = ctypes.CDLL(None)

Jump = Callable[[float, float], float]
"""Seconds of the run, and the moment that the run has for a jump, to seconds the wall clock is off."""
JUMPS: Final[dict[str, Jump]] = {
    "none": lambda _, __: 0,
    "ten years ahead": lambda now, at: YEARS if now > at else 0,
    "ten years back": lambda now, at: -YEARS if now > at else 0,
    "an hour ahead": lambda now, at: 3600 if now > at else 0,
    "an hour back": lambda now, at: -3600 if now > at else 0,
    "there and back every second": lambda now, _: YEARS if int(now) % 2 else -3600,
    "a second back each second": lambda now, _: -2 * now,
}


class Run(GpuReader):
    """A node, one seed's script of it, and what was decided."""

    def __init__(self, folder: Path, seed: int, seconds: int, jump: Jump, *, saboteur: bool) -> None:
        self.folder, self.chance, self.jump, self.saboteur = folder, random.Random(seed), jump, saboteur
        self.seconds, self.at, self.now, self.off = seconds, self.chance.uniform(0, seconds), 0.0, 0.0
        self.held = [4000] * TENANTS
        self.lives = [0] * TENANTS
        self.blind = False
        self.trace: list[str] = []
        self.kills = 0

    def clock(self) -> float:
        return 1000.0 + self.now + (self.off if self.saboteur else 0.0)

    def container_id(self, number: int) -> str:
        return f"{number:032x}{self.lives[number]:032x}"

    def enforcer(self) -> EnforcementLoop:
        checkpoint = Checkpoint(self.folder)
        parts = loop_parts(
            watch=UsageSampler(self, Attribution(self.identify)), quotas=checkpoint.read, executor=self,
            audit_log=AuditWriter(AuditLog(self.folder / "audit"), "gpu-7"), events=Messages(self._told),
            metrics=Metrics(),
        )  # fmt: skip
        return EnforcementLoop("gpu-7", self.folder, parts, clock=FakeClock(self.clock))

    def write_quotas(self) -> None:
        kinds = [OnExceed.KILL, OnExceed.KILL_CONTAINER, OnExceed.WARN]
        Checkpoint(self.folder).write(
            [
                quota(
                    container_id=self.container_id(n), pod_uid=f"pod-{n}", namespace=f"ns-{n}",
                    on_exceed=kinds[n % 3], grace_seconds=5.0 * n,
                )
                for n in range(TENANTS)
            ]
        )  # fmt: skip

    def gpus(self) -> tuple[Any, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        if self.blind:
            raise NvmlError("the driver does not answer")
        rows = tuple(GpuProcess(100 + n, mib) for n, mib in enumerate(self.held))
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=CARD, processes=rows)

    def identify(self, pid: int) -> Identity:
        n = pid - 100
        return Identity(
            pid=pid, start=self.lives[n], owner=ContainerRef(f"pod-{n}", self.container_id(n)), cgroup_inode=7
        )

    def _told(self, notice: UserMessage) -> None:
        self.trace.append(f"{notice.reason} {notice.note}")

    def execute(self, verdict: KillDecision) -> KillResult:
        n = int(verdict.quota.pod_uid.removeprefix("pod-"))
        self.trace.append(
            f"kill {n} {verdict.over_for} {verdict.used_mib} {[each.identity for each in verdict.targets]}"
        )
        self.kills += 1
        self.lives[n], self.held[n] = self.lives[n] + 1, 1000
        self.write_quotas()
        return KillResult(
            Reason.KILLED, (ProcessOutcome(pid=1, start=1, used_mib=1, result=Reason.KILLED, steps=("SIGKILL",)),)
        )

    def step(self) -> None:
        """Let half a second pass: memory grows and shrinks, NVML fails now and then, the wall clock jumps."""
        self.now += POLL
        self.off = self.jump(self.now, self.at)
        LIBRARY.wall_jump(ctypes.c_longlong(int(self.off)))
        for n in range(TENANTS):
            self.held[n] = max(0, self.held[n] + self.chance.randint(-120, 130))
        self.blind = self.chance.random() < (0.5 if self.blind else 0.02)

    def go(self) -> None:
        """All of it, in several lives of the enforcer."""
        self.write_quotas()
        enforcer = self.enforcer()
        while self.now < self.seconds:
            self.step()
            if self.chance.random() < 0.02:  # an operator who looks now and then
                circuit_breaker.reset(self.folder)
            if self.chance.random() < 0.01:
                enforcer.close()
                self.now += self.chance.choice([1, 3, 12])
                enforcer = self.enforcer()
            enforcer.poll()
            for future in enforcer._pending:
                future.result(60)
            status = json.loads((self.folder / "status.json").read_text())
            self.trace.append(json.dumps([status["containers"], status["kills"]]))
        enforcer.close()


def main(name: str, seeds: int, seconds: int, *, saboteur: bool) -> dict[str, Any]:
    """Run so many seeds, of so many seconds each, under one kind of jump."""
    digest, kills, moved = hashlib.sha256(), 0, 0.0
    for seed in range(seeds):
        # The last write of the state may still be on its way when the enforcer is closed.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = Run(Path(folder), seed, seconds, JUMPS[name], saboteur=saboteur)
            begun = time.time()
            run.go()
            moved = max(moved, abs(time.time() - begun))
            LIBRARY.wall_jump(ctypes.c_longlong(0))
            kills += run.kills
            digest.update("\n".join(run.trace).encode())
    return {"digest": digest.hexdigest(), "kills": kills, "moved": moved}


if __name__ == "__main__":
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    # A look that could not wait for a slow disk would decide otherwise than the others.
    with mock.patch.object(background, "WAIT_SECONDS", 60.0):
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), saboteur=sys.argv[4:] == ["saboteur"])))
