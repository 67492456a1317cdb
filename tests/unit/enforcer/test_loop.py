import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import ChainHead, read
from enforcer.audit.writer import AuditWriter
from enforcer.detection import state_file
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill import circuit_breaker
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.types import Quota
from enforcer.runtime import files
from enforcer.runtime.clock import CLOCK
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from enforcer.status.node_status_file import LOOKS
from gpushare.errors import NvmlError, RecordError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Messages, loop_parts
from tests.unit.enforcer.made import CONTAINER, GPU, OTHER_GPU, POD, neighbour, quota

CARD, RESTARTED = 16384, "d" * 64


def card(uuid: str, index: int) -> Gpu:
    return Gpu(
        uuid=uuid, index=index, minor=index, model="NVIDIA A100", memory_mib=CARD, reserved_mib=512,
        compute_capability=(8, 0), pci_bus_id="", driver_version="570", cuda_version=(12, 8), sms=74,
    )  # fmt: skip


@dataclass
class Reader(GpuReader):
    used: dict[str, dict[int, int]] = field(default_factory=lambda: {GPU: {}, OTHER_GPU: {}})
    broken: set[str] = field(default_factory=set)
    all_broken: bool = False
    counted: int = 0
    driver: str = "570"

    def gpus(self) -> tuple[Gpu, ...]:
        self.counted += 1
        if self.all_broken:
            raise NvmlError("the driver is gone")
        return tuple(card(uuid, number)._replace(driver_version=self.driver) for number, uuid in enumerate(self.used))

    def sample(self, uuid: str) -> GpuSample:
        if self.all_broken or uuid in self.broken:
            raise NvmlError("the GPU fell off the bus")
        rows = tuple(GpuProcess(pid, mib) for pid, mib in self.used[uuid].items())
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=sum(self.used[uuid].values()) + 100, processes=rows)


@dataclass
class World:
    enforcer: EnforcementLoop
    reader: Reader
    metrics: Metrics
    folder: Path
    decisions: list[KillDecision]
    notices: list[UserMessage]
    quotas: list[Quota]
    clock: list[float]
    execute: Callable[[KillDecision], KillResult]

    def look(self, times: int = 1) -> dict[str, Any]:
        for _ in range(times):
            self.clock[0] += 0.5
            self.enforcer.poll()
        self.written()
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found

    def written(self) -> None:
        """Wait until nothing is left to be written: a slow disk is not what most tests are about."""
        self.enforcer._disk.submit("everything before", lambda: None).result(30)

    def records(self) -> list[dict[str, Any]]:
        lines = [
            line for file in segments(self.folder / "audit") for line in file.read_bytes().splitlines(keepends=True)
        ]
        return [read(line) for line in lines]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]

    def scrape(self) -> str:
        return generate_latest(self.metrics.registry).decode()


class Attributor(CgroupAttributor):
    """Pid 1xx is our container's, 2xx another's, 3xx ours after its restart, 9xx nobody's, 666 has ended."""

    def identify(self, pid: int) -> Identity | None:
        if pid == 666:
            return None
        owner = {
            1: ContainerRef(POD, CONTAINER),
            2: ContainerRef("other", "e" * 64),
            3: ContainerRef(POD, RESTARTED),
        }.get(pid // 100)
        return Identity(pid=pid, start=pid, owner=owner)

    def is_alive(self, _: int) -> bool:
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def make(folder: Path, *, enforcing: bool) -> Iterator[World]:
    reader, metrics, clock = Reader(), Metrics(), [1000.0]
    decisions: list[KillDecision] = []
    notices: list[UserMessage] = []
    quotas: list[Quota] = [quota(grace_seconds=0.0)]

    class Executor:
        def execute(self, decision: KillDecision) -> KillResult:
            decisions.append(decision)
            return made.execute(decision)

    parts = loop_parts(
        watch=UsageSampler(reader, Attributor()), quotas=lambda: quotas, executor=Executor(),
        audit_log=AuditWriter(AuditLog(folder / "audit"), "gpu-7"), events=Messages(notices), metrics=metrics,
        problems=lambda: ["something else"],
    )  # fmt: skip
    enforcer = EnforcementLoop("gpu-7", folder, parts, enforcing=enforcing, clock=FakeClock(lambda: clock[0]))
    made = World(
        enforcer, reader, metrics, folder, decisions, notices, quotas, clock, lambda _: KillResult(Reason.KILLED)
    )
    yield made
    enforcer.close()


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_status_says_what_is_seen(world: World) -> None:
    world.reader.used[GPU] = {101: 1000, 102: 500, 201: 300, 900: 200, 666: 50}
    world.quotas.append(neighbour(container_id=None, gpu=OTHER_GPU))
    status = world.look()
    assert status["version"] == 1
    assert status["enforcing"] is True
    assert status["problems"] == ["something else"]
    gpu = status["gpus"][0]
    assert (gpu["uuid"], gpu["usedMib"], gpu["unaccountedMib"], gpu["blind"]) == (GPU, 2150, 0, None)
    ours, other = status["containers"]
    assert (ours["usedMib"], ours["quotaMib"], ours["state"]) == (1500, 4096, "Within")
    assert ours["processes"] == [{"pid": 101, "usedMib": 1000}, {"pid": 102, "usedMib": 500}]
    assert other["state"] == "NotStarted"
    assert [row["pid"] for row in status["strangers"]] == [201, 900]
    assert status["auditLog"]["seq"] == 0


def test_a_container_on_a_gpu_it_has_no_quota_for_is_a_stranger_there(world: World) -> None:
    world.reader.used[GPU], world.reader.used[OTHER_GPU] = {101: 1000}, {101: 9000}
    assert [(row["gpu"], row["pid"]) for row in world.look()["strangers"]] == [(OTHER_GPU, 101)]


def test_a_container_that_was_given_nothing_is_listed_warned_and_handed_over_once_it_holds_something(
    world: World,
) -> None:
    world.quotas[0] = quota(memory_mib=0, grace_seconds=0.0)
    assert world.look()["containers"] == []
    world.reader.used[GPU] = {101: 50}
    (row,) = world.look(2)["containers"]
    assert (row["usedMib"], row["quotaMib"], row["limit"], row["state"]) == (50, 0, None, "Over")
    world.look()
    wait_for(lambda: bool(world.decisions) and all(future.done() for future in world.enforcer._pending))
    assert world.notices[0].note.startswith(f"container model holds 50 MiB of its 0 MiB on {GPU}")
    world.reader.used[GPU] = {}
    assert [row["container"] for row in world.look()["containers"]] == ["model"], "what came of it can be read up"


def test_over_quota_is_warned_recorded_and_handed_over_once(world: World) -> None:
    world.reader.used[GPU] = {101: 5000}
    assert world.look(2)["containers"][0]["state"] == "Over"
    world.look()
    wait_for(lambda: bool(world.decisions))
    assert [notice.reason for notice in world.notices] == [Reason.OVER_QUOTA]
    wait_for(lambda: world.enforcer._parts.audit_log.head.seq == 2)
    assert world.kinds() == ["GRACE_STARTED", "WARNED"]
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    assert world.look(5)["containers"][0]["state"] == "CoolingDown"
    assert len(world.decisions) == 1
    assert 'gpu_share_limit_violations_total{action="killed"} 1.0' in world.scrape()
    assert 'gpu_share_namespace_kills_total{namespace="asr"} 1.0' in world.scrape()


def test_the_loop_goes_on_while_a_kill_takes_its_time(world: World) -> None:
    release = threading.Event()

    def slow(_: KillDecision) -> KillResult:
        assert release.wait(60)
        return KillResult(Reason.KILLED)

    world.execute = slow
    world.reader.used[GPU] = {101: 5000}
    assert world.look(20)["containers"][0]["state"] == "Killing"
    assert not all(future.done() for future in world.enforcer._pending)
    release.set()


def test_a_container_that_restarts_while_it_is_killed_is_not_killed_twice(world: World) -> None:
    proceed = threading.Event()
    world.execute = lambda _: KillResult(Reason.KILLED if proceed.wait(30) else Reason.ALREADY_EXITED)
    world.reader.used[GPU] = {101: 9000}
    world.look(3)
    world.quotas[:] = [quota(container_id=RESTARTED, grace_seconds=0.0)]
    world.reader.used[GPU] = {301: 9000}
    world.look(6)
    proceed.set()
    wait_for(lambda: bool(world.decisions))
    assert [each.quota.container_id for each in world.decisions] == [CONTAINER]


def test_a_kill_is_remembered_before_it_is_made_and_its_cool_down_when_reported_to_stop(world: World) -> None:
    remembered: list[bytes] = []

    def execute(_: KillDecision) -> KillResult:
        remembered.append((world.folder / state_file.NAME).read_bytes())
        return KillResult(Reason.KILLED)

    world.execute = execute
    world.reader.used[GPU] = {101: 5000}
    world.look(3)
    wait_for(lambda: bool(remembered))
    assert len(json.loads(remembered[0])["kills"]) == 1
    world.enforcer.close()
    assert len(json.loads((world.folder / state_file.NAME).read_bytes())["containers"]) == 1


def test_while_the_breakers_file_stands_nobody_is_killed_and_without_it_grace_starts_again(world: World) -> None:
    world.reader.used[GPU] = {101: 5000}
    (world.folder / circuit_breaker.NAME).write_text("")
    status = world.look(40)
    assert (world.decisions, status["kills"]["breakerOpen"]) == ([], True)
    assert status["containers"][0]["state"] == "Postponed"
    assert any("an operator stopped all kills" in problem for problem in status["problems"])
    assert "gpu_share_breaker_open 1.0" in world.scrape()
    assert [notice.reason for notice in world.notices] == [Reason.OVER_QUOTA, Reason.BREAKER_OPEN]
    assert circuit_breaker.reset(world.folder)
    assert world.look(2)["kills"]["breakerOpen"] is False
    assert world.decisions == [], "three samples are wanted again"
    world.look(1)
    wait_for(lambda: bool(world.decisions))
    assert "gpu_share_breaker_open 0.0" in world.scrape()


def test_answers_that_are_owed_are_asked_for_at_every_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(world.enforcer._parts.audit_log, "retry_pending", lambda: asked.append(1))
    world.look(3)
    assert len(asked) == 3


def test_a_bug_while_acting_is_counted_and_ends_nothing(world: World) -> None:
    def bug(_: KillDecision) -> KillResult:
        raise ZeroDivisionError

    world.execute = bug
    world.reader.used[GPU] = {101: 5000}
    world.look(3)
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    assert world.look(3)["kills"]["lastMinute"] == 1, "somebody may have been ended before it showed"
    assert "gpu_share_enforcer_failures_total 1.0" in world.scrape()


def test_a_gpu_that_cannot_be_read_blinds_only_itself(world: World) -> None:
    world.reader.used[GPU] = {101: 5000}
    world.reader.broken = {GPU}
    status = world.look(20)
    assert world.decisions == []
    assert status["gpus"][0]["blind"] == "the GPU fell off the bus"
    assert status["gpus"][1]["blind"] is None
    assert (status["containers"][0]["state"], status["containers"][0]["usedMib"]) == ("Unknown", None)
    assert any("NVML unavailable" in problem for problem in status["problems"])
    assert f'gpu_share_gpu_nvml_unavailable{{gpu="{GPU}"}} 1.0' in world.scrape()
    world.reader.broken = set()
    world.look(3)
    wait_for(lambda: bool(world.decisions))


def test_without_a_driver_it_waits_for_one(world: World) -> None:
    world.reader.all_broken = True
    assert world.look(5)["gpus"] == []
    assert 'gpu_share_nvml_errors_total{reason="NvmlUnavailable"} 5.0' in world.scrape()
    world.reader.all_broken = False
    assert len(world.look()["gpus"]) == 2


def test_a_driver_that_goes_and_comes_back_is_met_again(world: World) -> None:
    world.look(3)
    world.reader.all_broken = True
    assert all(gpu["blind"] for gpu in world.look(3)["gpus"])
    world.reader.all_broken = False
    assert not any(gpu["blind"] for gpu in world.look()["gpus"])


def test_a_disk_that_hangs_stops_no_look_and_no_decision(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()

    def hang(*_: object) -> ChainHead:
        assert back.wait(60)
        raise RecordError("no disk")

    monkeypatch.setattr(world.enforcer._parts.audit_log._log, "append", hang)
    world.reader.used[GPU] = {101: 5000}
    world.look(20)
    wait_for(lambda: bool(world.decisions))
    assert [decision.decision for decision in world.decisions] == [Decision.KILL]
    back.set()


def test_gpus_are_not_counted_at_every_look(world: World) -> None:
    world.look(50)
    assert world.reader.counted == 1


def test_an_unwritable_warning_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RecordError("no space left")

    monkeypatch.setattr(world.enforcer._parts.audit_log._log, "append", full)
    world.reader.used[GPU] = {101: 5000}
    world.look(5)
    wait_for(lambda: "gpu_share_audit_write_errors_total 2.0" in world.scrape())


def test_an_unwritable_status_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    world.look()
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", full)
        world.look(LOOKS)
    assert any("status.json" in problem for problem in world.look()["problems"])
    assert world.look()["problems"] == ["something else"]


def test_without_enforcement_there_are_warnings_alone(tmp_path: Path) -> None:
    for world in make(tmp_path, enforcing=False):
        world.reader.used[GPU] = {101: 5000}
        status = world.look(30)
        assert world.decisions == []
        assert [notice.reason for notice in world.notices] == [Reason.OVER_QUOTA]
        assert status["enforcing"] is False
        (row,) = status["containers"]
        assert (row["killIn"], "only warns" in row["sentence"]) == (None, True)
        assert "gpu_share_enforcer_enforcing 0.0" in world.scrape()


def test_metrics_show_use_against_quota_and_forget_who_is_gone(world: World) -> None:
    world.reader.used[GPU] = {101: 1000}
    world.look()
    series = f'{{container="model",gpu="{GPU}",namespace="asr",pod="tts-0"}}'
    assert f"gpu_share_container_memory_used_bytes{series} {1000 * 2**20:.10g}" in _plain(world.scrape())
    assert f"gpu_share_container_memory_quota_bytes{series} {4096 * 2**20:.10g}" in _plain(world.scrape())
    world.quotas.clear()
    world.look()
    assert series not in world.scrape()


def _plain(text: str) -> str:
    """Write numbers without exponents."""
    rows: Sequence[str] = text.splitlines()
    return "\n".join(f"{row.rsplit(' ', 1)[0]} {float(row.rsplit(' ', 1)[1]):.10g}" for row in rows if row[0] != "#")


def test_it_stops_when_reported_to_and_keeps_its_pace(tmp_path: Path) -> None:
    for world in make(tmp_path, enforcing=True):
        stopped = threading.Event()
        world.enforcer._clock = CLOCK
        thread = threading.Thread(target=world.enforcer.run, args=(stopped, 0.02))
        thread.start()
        wait_for(lambda: world.reader.counted >= 1)  # noqa: B023 - of this turn
        stopped.set()
        thread.join(30)
        assert not thread.is_alive()
