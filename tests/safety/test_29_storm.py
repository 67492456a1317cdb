"""Test 29: a storm of kills, by quotas in the wrong unit or by an NVML that reports the card's total for every process.

Tenants come at random times, all of them over; who is killed is started again by the kubelet after a while, under
another container id, and is over again. The loop is the product's own with a scripted clock, NVML and Executor.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from prometheus_client import generate_latest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.detection.types import DetectorConfig, KillDecision
from enforcer.kill import circuit_breaker
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.quota.types import OnExceed, Quota
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from gpushare.reasons import Reason
from tests.support import extent
from tests.support.clock import FakeClock
from tests.support.wiring import Attribution, Messages, loop_parts
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.test_loop import CARD, card

POLL: Final = 0.5
HOUR: Final = 3600.0
MIB: Final = 1024**2


@dataclass(slots=True)
class Tenant:
    """One pod with one container; ``starts`` is when its container comes up next."""

    number: int
    namespace: str
    starts: float
    on_exceed: OnExceed
    lives: int = 0

    @property
    def container_id(self) -> str:
        return f"{self.number:032x}{self.lives:032x}"

    @property
    def pid(self) -> int:
        return 1000 * (self.number + 1) + self.lives


@dataclass
class Storm(GpuReader):
    """A node on which everybody is over, and what its enforcer did."""

    folder: Path
    tenants: list[Tenant]
    chance: random.Random
    wrong_unit: bool
    now: float = 1000.0
    kills: list[float] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    """Numbers of the tenants that were killed."""
    notices: list[UserMessage] = field(default_factory=list)

    def enforcer(self) -> EnforcementLoop:
        """A new life of the enforcer."""
        self.metrics = Metrics()
        parts = loop_parts(
            watch=UsageSampler(self, Attribution(self.identify)), quotas=self.quotas, executor=self, audit_log=_NoLog(),
            events=Messages(self.notices), metrics=self.metrics,
        )  # fmt: skip
        return EnforcementLoop("gpu-7", self.folder, parts, clock=FakeClock(lambda: self.now))

    def up(self) -> list[Tenant]:
        return [tenant for tenant in self.tenants if tenant.starts <= self.now]

    def quotas(self) -> list[Quota]:
        """All of 4096 MiB; in the wrong unit that is 4096 bytes, so the least there is."""
        memory_mib = max(1, 4096 // MIB) if self.wrong_unit else 4096
        return [
            quota(
                container_id=each.container_id if each.starts <= self.now else None, pod_uid=f"pod-{each.number}",
                namespace=each.namespace, memory_mib=memory_mib, grace_seconds=5.0, on_exceed=each.on_exceed,
            )
            for each in self.tenants
        ]  # fmt: skip

    def gpus(self) -> tuple[Any, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        held = 1000 if self.wrong_unit else CARD
        rows = tuple(GpuProcess(each.pid, held) for each in self.up())
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=CARD, processes=rows)

    def identify(self, pid: int) -> Identity | None:
        (tenant,) = [each for each in self.tenants if each.pid == pid]
        owner = ContainerRef(f"pod-{tenant.number}", tenant.container_id)
        return Identity(pid=pid, start=pid, owner=owner, cgroup_inode=pid)

    def execute(self, verdict: KillDecision) -> KillResult:
        """It dies, and comes up again as the kubelet has it: after 1 to 300 s."""
        (tenant,) = [each for each in self.tenants if each.container_id == verdict.quota.container_id]
        self.kills.append(self.now)
        self.killed.add(tenant.number)
        tenant.lives, tenant.starts = tenant.lives + 1, self.now + self.chance.uniform(1, 300)
        return KillResult(
            Reason.KILLED, (ProcessOutcome(pid=1, start=1, used_mib=1, result=Reason.KILLED, steps=("SIGKILL",)),)
        )

    def look(self, enforcer: EnforcementLoop, seconds: float) -> None:
        """Let so much time pass, and each kill come to its end before the next look."""
        for _ in range(int(seconds / POLL)):
            self.now += POLL
            enforcer.poll()
            for future in enforcer._pending:
                future.result(60)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found


class _NoLog:
    """Takes every record."""

    head: Final = type("Head", (), {"seq": 0, "hash": ""})()

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


@contextmanager
def storm(seed: int) -> Iterator[Storm]:
    chance = random.Random(seed)
    tenants = [
        Tenant(
            number, chance.choice(["asr", "tts", "chat"]), 1000.0 + chance.choice([0, chance.uniform(0, 200)]),
            chance.choice([OnExceed.KILL, OnExceed.KILL_CONTAINER]),
        )
        for number in range(chance.randint(2, 16))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        yield Storm(Path(folder), tenants, chance, wrong_unit=seed % 2 == 0)


def opened(found: Storm, enforcer: EnforcementLoop) -> bool:
    """Look once more; whether that opened the breaker."""
    found.look(enforcer, POLL)
    return (found.folder / circuit_breaker.NAME).exists()


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


def test_a_storm_ends_after_three_kills_is_notified_at_once_and_only_an_operator_goes_on() -> None:
    every, most, again, late = extent.trials(3, 200), 0, 0, 0
    for seed in range(every):
        with storm(seed) as found:
            enforcer = found.enforcer()
            while not opened(found, enforcer):
                assert found.now < 1000 + HOUR, (seed, found.kills)
            status, before = found.status(), len(found.kills)
            told = (
                any("circuit breaker is open" in each for each in status["problems"]) and status["kills"]["breakerOpen"]
            )
            late += not (told and "gpu_share_breaker_open 1.0" in generate_latest(found.metrics.registry).decode())
            most, again = max(most, len(found.killed)), max(again, before - len(found.killed))
            for _ in range(3):  # no time and no restart closes it
                found.look(enforcer, 40)
                enforcer.close()
                enforcer = found.enforcer()
            (found.folder / "detector.json").unlink()  # nor another boot
            found.look(enforcer, 20)
            assert len(found.kills) == before
            assert {each.reason for each in found.notices} >= {Reason.BREAKER_OPEN}
            assert circuit_breaker.reset(found.folder)
            reset, tenants = found.now, found.tenants
            found.tenants = tenants[:1]
            tenants[0].starts = 0.0
            found.look(enforcer, 12)
            assert len(found.kills) > before, "one alone is no storm, also if it comes back at once"
            assert not (found.folder / circuit_breaker.NAME).exists()
            assert found.kills[before] >= reset + 5.0, "after a full grace period"
            enforcer.close()
    assert most <= DetectorConfig().kills
    assert late == 0
    extent.figure(
        "29", "containers killed before the breaker opened", f"{most} at most in {every:,} storms of 2 to 16 tenants"
    )
    extent.figure("29", "repeated kills of these containers, which came back over quota", f"{again} at most")
    extent.figure("29", "storms not reported with the sample that opened the breaker", f"{late} of {every:,}")
