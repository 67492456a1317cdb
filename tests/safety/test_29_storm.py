"""Test 29: mistakes that concern a whole node: quotas that change to a wrong unit, the card's total for each process.

Then nobody is killed. Tenants who are really over, however many of how many namespaces, are. Who is killed is started
again by the kubelet after a while, under another container id. The loop is the product's own with a scripted clock,
NVML and Executor.
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

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.detection.types import KillDecision
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.nvml.validation import check
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
    mistake: bool = False
    wrong_unit: bool = False
    now: float = 1000.0
    held: int = 1000
    """MiB that each of them holds."""
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
        memory_mib = max(1, 4096 // MIB) if self.wrong_unit and self.mistake else 4096
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
        total = self.mistake and not self.wrong_unit
        rows = tuple(GpuProcess(each.pid, CARD if total else self.held) for each in self.up())
        used = CARD if total else min(CARD, self.held * len(rows))
        sample = GpuSample(uuid=uuid, total_mib=CARD, used_mib=used, processes=rows)
        check(sample)
        return sample

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
def storm(seed: int, *, wrong_unit: bool = False) -> Iterator[Storm]:
    chance = random.Random(seed)
    tenants = [
        Tenant(
            number, chance.choice(["asr", "tts", "chat"]), 1000.0 + chance.choice([0, chance.uniform(0, 200)]),
            chance.choice([OnExceed.KILL, OnExceed.KILL_CONTAINER]),
        )
        for number in range(chance.randint(2, 16))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        yield Storm(Path(folder), tenants, chance, wrong_unit=wrong_unit)


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("unit", [True, False], ids=["a wrong unit", "the total for each process"])
def test_a_mistake_about_all_of_a_node_kills_nobody_and_is_reported(*, unit: bool) -> None:
    every, killed, silent = extent.trials(3, 100), 0, 0
    for seed in range(every):
        with storm(seed, wrong_unit=unit) as found:
            enforcer = found.enforcer()
            found.look(enforcer, 220)
            found.mistake = True
            found.look(enforcer, 300)
            enforcer.close()
            enforcer = found.enforcer()  # and no restart forgets it
            found.look(enforcer, 200)
            told = {each.reason for each in found.notices} if unit else found.status()["problemReasons"]
            silent += not told
            found.mistake = False
            found.look(enforcer, 20)
            killed += len(found.kills)
            enforcer.close()
    assert (killed, silent) == (0, 0)
    what = "quotas in a wrong unit" if unit else "the card's total reported for each process"
    extent.figure("29", f"kills by {what}, for 500 s on a node of 2 to 16 tenants", f"{killed} in {every:,}")


def test_however_many_are_over_at_once_each_is_ended() -> None:
    """Most of all namespaces, as after the enforcer was away: nothing stops the kills."""
    every, late = extent.trials(3, 100), 0.0
    for seed in range(every):
        with storm(seed) as found:
            for tenant in found.tenants:
                tenant.starts = found.now
            found.tenants, found.held = found.tenants[:3], 5000
            enforcer = found.enforcer()
            began = found.now
            while len(found.killed) < len(found.tenants):
                found.look(enforcer, POLL)
                assert found.now < began + HOUR
            late = max(late, found.now - began)
            enforcer.close()
    assert late <= 5.0 + 4 * POLL
    extent.figure(
        "29", "seconds until all of 2 or 3 containers that are over at once are killed", f"{late:.1f} at most"
    )
