import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ContainerProcess
from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind, read, verify
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import REFUSALS, KillTimeouts, ProcessKiller
from enforcer.kill.report import KillResult
from enforcer.quota.types import OnExceed, Quota
from enforcer.status.messages import NOTE_BYTES, UserMessage
from gpushare.errors import MpsError, RecordError
from gpushare.reasons import Reason
from tests.support.quotas import in_force
from tests.support.wiring import Messages, Usages
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, holder, quota


@dataclass
class Process:
    """A process as the executor meets it. It dies of what it is reported to die of."""

    identity: Identity
    mib: int
    dies_of: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)
    ended: bool = False
    got: list[signal.Signals] = field(default_factory=list)
    holds: bool = True


class Handle(PidHandle):
    def __init__(self, process: Process, world: "World") -> None:
        super().__init__(process.identity.pid, -1)
        self.process, self.world = process, world

    def ended(self, seconds: float = 0.0) -> bool:
        return self.process.ended

    def ignores(self, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
        assert number is signal.SIGTERM
        return self.pid in self.world.ignorant

    def duplicate(self) -> "Handle":
        return Handle(self.process, self.world)

    def send(self, number: signal.Signals) -> bool:
        if self.process.ended:
            return False
        assert self.world.kinds()[-1] == "INTENT", "a signal without a durable INTENT"
        self.process.got.append(number)
        self.world.story.append(f"{number.name} {self.pid}")
        self.process.ended = number in self.process.dies_of
        if self.process.ended and self.pid in self.world.leaders:
            for each in self.world.processes.values():
                each.ended = True
        return True


class World:
    """Everything around the executor, scripted."""

    def __init__(self, folder: Path, *processes: Process) -> None:
        self.processes = {process.identity.pid: process for process in processes}
        self.audit_log = AuditLog(folder / "audit")
        self.writer = AuditWriter(self.audit_log, "gpu-7")
        self.folder = folder / "audit"
        self.blind, self.looks, self.mps_fails = False, 0, False
        self.on_look: Callable[[int], None] = lambda _: None
        self.story: list[str] = []
        self.notices: list[UserMessage] = []
        self.answer: bool | None = None
        self.leaders: set[int] = set()
        """Whose end is everybody's."""
        self.ignorant: set[int] = set()
        self.refused: set[int] = set()
        self.mps_reason: Reason | None = None
        self.timeouts, self.respawns, self.overdrawn = KillTimeouts(term=0, kill=0), False, False
        self.quotas, self.killer = in_force(), ProcessKiller(self)
        self.message: Path | None = None

    def identify(self, pid: int) -> Identity | None:
        process = self.processes.get(pid)
        return None if process is None or process.ended else process.identity

    def pin(self, pid: int) -> PidHandle | None:
        process = self.processes.get(pid)
        return None if process is None else Handle(process, self)

    def leads_namespace(self, pid: int) -> bool:
        return pid in self.leaders

    def in_force(self, quota: Quota) -> Quota | None:
        return self.quotas.in_force(quota)

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        assert quota.container_id == CONTAINER
        self.looks += 1
        self.on_look(self.looks)
        if self.blind:
            return None
        living = [each for each in self.processes.values() if each.holds and not each.ended]
        ours = [each for each in living if each.identity.owner and each.identity.owner.container_id == CONTAINER]
        return tuple(ProcessUsage(each.identity, each.mib) for each in ours)

    def terminate(self, pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        assert (gpu, ended()) == (GPU, self.processes[pid].ended)
        self.story.append(f"terminate_client {pid}")
        if self.mps_fails:
            raise MpsError("nobody answers", self.mps_reason)
        return False if pid in self.refused else self.answer

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        return [read(line) for file in segments(self.folder) for line in file.read_bytes().splitlines(keepends=True)]

    def processes_of(self, container: ContainerRef) -> list[ContainerProcess]:
        """Everybody there; the leaders lead the container's namespace."""
        living = [
            each.identity for each in self.processes.values() if not each.ended and each.identity.owner == container
        ]
        return [ContainerProcess(each, (each.pid, 1 if each.pid in self.leaders else each.pid)) for each in living]

    def run(self, *targets: Process, about: Quota | None = None) -> KillResult:
        parts = KillDependencies(
            usage=Usages(self.usages_of),
            quotas=in_force(self.in_force),
            processes=self,
            audit_log=self.writer,
            killer=self.killer,
            events=Messages(self.notices),
            containers=self,  # type: ignore[arg-type] # a stand-in
        )
        self.executor = getattr(self, "executor", None) or KillExecutor("gpu-7", parts, self.timeouts)
        chosen = targets or tuple(self.processes.values())
        holders = tuple(ProcessUsage(each.identity, each.mib) for each in chosen)
        decision = KillDecision(
            decision=Decision.KILL, quota=about or quota(), used_mib=sum(each.used_mib for each in holders),
            over_for=5.0, kill_in=0.0, targets=holders, respawns=self.respawns, overdrawn=self.overdrawn,
        )  # fmt: skip
        return self.executor.execute(decision)

    def termination_message(self, container: ContainerRef) -> Path | None:
        assert container.container_id == CONTAINER
        return self.message

    def signals(self) -> list[str]:
        return [line for line in self.story if line.startswith("SIG")]

    def whole(self) -> bool:
        lines = [line for file in segments(self.folder) for line in file.read_bytes().splitlines(keepends=True)]
        return verify(lines).ok


def process(pid: int = 501, mib: int = 9000, **changes: Any) -> Process:
    return Process(holder(pid, mib).identity, mib, **changes)


def test_a_kill_goes_mps_then_term_then_kill_and_all_is_on_record(tmp_path: Path) -> None:
    world = World(tmp_path, process(dies_of=(signal.SIGKILL,)))
    world.answer = True
    result = world.run()
    assert world.story == ["terminate_client 501", "SIGTERM 501", "SIGKILL 501"]
    assert result.reason is Reason.KILLED
    assert result.acted
    intent, outcome = world.records()
    assert (intent["kind"], outcome["kind"]) == ("INTENT", "OUTCOME")
    assert outcome["intent"] == intent["seq"]
    assert intent["overFor"] == "5.0s"
    assert intent["targets"] == [{"pid": 501, "start": 5010, "usedMiB": 9000}]
    assert outcome["targets"][0]["steps"] == "terminate_client,SIGTERM,SIGKILL"
    assert world.whole()


def test_the_owner_is_notified_with_the_chains_head(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.run()
    assert [notice.reason for notice in world.notices] == [Reason.KILLED]
    assert str(world.audit_log.head) in world.notices[0].note
    assert "pid 501" in world.notices[0].note
    assert len(world.notices[0].note.encode()) <= NOTE_BYTES


def test_a_refusal_by_mps_means_no_signal_at_all(tmp_path: Path) -> None:
    for world in (World(tmp_path / "refused", process()), World(tmp_path / "silent", process())):
        world.answer = False
        world.mps_fails = world.folder.parent.name == "silent"
        result = world.run()
        assert world.signals() == []
        assert result.reason is Reason.TERMINATE_FAILED
        assert world.records()[-1]["result"] == "TerminateFailed"


def test_who_makes_mps_refuse_again_and_again_is_ended_by_signals(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.answer = False
    for _ in range(REFUSALS - 1):
        assert world.run().reason is Reason.TERMINATE_FAILED
    assert world.signals() == []
    assert world.run().reason is Reason.KILLED
    assert world.records()[-1]["targets"][0]["steps"].startswith("terminate_client refused,SIGTERM")


def test_a_blocked_daemon_delays_the_end_and_does_not_prevent_it(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.mps_fails, world.mps_reason = True, Reason.MPS_CONTROL_BLOCKED
    assert world.run().reason is Reason.KILLED
    assert world.records()[-1]["targets"][0]["steps"].startswith("MpsControlBlocked,SIGTERM")


def test_after_a_refusal_the_others_are_let_be(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 8000))
    world.answer = False
    world.run()
    assert world.story == ["terminate_client 501"]


def test_nobody_is_killed_whose_kill_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, process())

    def full(*_: object) -> None:
        raise RecordError("no space left")

    monkeypatch.setattr(world.audit_log, "append", full)
    result = world.run()
    assert result == KillResult(Reason.AUDIT_UNWRITABLE)
    assert world.story == []
    assert world.notices[0].reason is Reason.AUDIT_UNWRITABLE


def test_back_under_before_the_intent_leaves_no_record(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.processes[501].holds = False
    assert world.run().reason is Reason.BACK_UNDER_QUOTA
    assert not world.folder.exists()


def at_look(world: World, number: int, change: Callable[[], None]) -> None:
    world.on_look = lambda look: change() if look == number else None


def test_back_under_while_the_disk_was_busy_is_aborted_without_a_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    at_look(world, 2, lambda: setattr(world.processes[501], "holds", False))
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.BACK_UNDER_QUOTA, [], ["INTENT", "ABORTED"])
    assert world.records()[1]["intent"] == 1


def test_blind_while_the_disk_was_busy_is_aborted_without_a_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    at_look(world, 2, lambda: setattr(world, "blind", True))
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.NVML_UNAVAILABLE, [], ["INTENT", "ABORTED"])


def test_ended_by_itself_in_between_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    at_look(world, 2, lambda: setattr(world.processes[501], "ended", True))
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.ALREADY_EXITED, [], ["INTENT", "OUTCOME"])
    assert world.records()[1]["result"] == "AlreadyExited"
    assert not result.acted


def test_ended_between_the_last_check_and_the_signal_is_gone_too(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.terminate = lambda pid, gpu, ended: setattr(world.processes[pid], "ended", True)  # type: ignore[method-assign]
    assert world.run().reason is Reason.ALREADY_EXITED
    assert world.signals() == []


def test_all_ended_before_anything_was_done_leaves_no_record(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.processes[501].ended = True
    assert world.run().reason is Reason.ALREADY_EXITED
    assert not world.folder.exists()


CHANGES: Sequence[dict[str, Any]] = [
    {"start": 1},
    {"cgroup_inode": 8},
    {"owner": ContainerRef(POD, NEIGHBOUR)},
    {"owner": ContainerRef(POD.replace("0a", "ff"), CONTAINER)},
    {"owner": None},
    {"kernel_thread": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_whoever_has_the_pid_now_is_not_the_one_that_was_evaluated(tmp_path: Path, change: dict[str, Any]) -> None:
    evaluated = process()
    world = World(tmp_path, replace(evaluated, identity=replace(evaluated.identity, **change)))
    assert world.run(evaluated).reason is Reason.IDENTITY_CHANGED
    assert world.story == []


@pytest.mark.parametrize("change", CHANGES[1:], ids=str)
def test_a_pid_that_changes_hands_while_the_disk_is_busy_is_spared(tmp_path: Path, change: dict[str, Any]) -> None:
    evaluated, other = process(501, 9000), process(502, 9000, holds=True)
    world = World(tmp_path, replace(evaluated), other)

    def swap() -> None:
        world.processes[501].identity = replace(evaluated.identity, **change)

    at_look(world, 2, swap)
    world.answer = True
    world.run(evaluated)
    assert (world.processes[501].got, "terminate_client 501" in world.story) == ([], False)


def test_a_container_that_is_not_the_quotas_is_never_touched(tmp_path: Path) -> None:
    stranger = Process(holder(501, 9000, NEIGHBOUR).identity, 9000)
    world = World(tmp_path, stranger)
    assert world.run().reason is Reason.IDENTITY_CHANGED
    assert world.story == []


def test_only_as_many_as_needed_even_if_more_were_chosen(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 3000), process(503, 1000))
    result = world.run()
    assert world.signals() == ["SIGTERM 501"]
    assert result.reason is Reason.KILLED


def test_kill_container_goes_through_with_all_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 3000), process(503, 1000))
    world.run(about=quota(on_exceed=OnExceed.KILL_CONTAINER))
    assert world.signals() == ["SIGTERM 501", "SIGTERM 502", "SIGTERM 503"]


def test_what_appears_meanwhile_has_an_intent_of_the_whole_container(tmp_path: Path) -> None:
    first = process(501, 9000)
    world = World(tmp_path, first)

    def fork(look: int) -> None:
        if look in {3, 5}:
            pid = 600 + look
            world.processes[pid] = process(pid, 9000)

    world.on_look = fork
    result = world.run(first)
    assert world.signals() == ["SIGTERM 501", "SIGTERM 603", "SIGTERM 605"]
    assert world.kinds() == ["INTENT", "OUTCOME", "INTENT", "OUTCOME"]
    assert [target["pid"] for target in world.records()[3]["targets"]] == [603, 605]
    assert result.reason is Reason.KILLED


def test_endless_forking_ends_the_episode_not_the_enforcer(tmp_path: Path) -> None:
    first = process(501, 9000)
    world = World(tmp_path, first)

    def fork(look: int) -> None:
        world.processes[600 + look] = process(600 + look, 9000)

    world.on_look = fork
    assert world.run(first).reason is Reason.LIMIT_EXCEEDED
    assert world.kinds() == ["INTENT", "OUTCOME"] * 2


def test_what_sigkill_does_not_end_is_reported_and_not_signalled_again(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()), process(502, 100))
    assert world.run().reason is Reason.UNKILLABLE
    assert world.signals() == ["SIGTERM 501", "SIGKILL 501"], "nobody is ended in its place"
    assert world.run(world.processes[501]).reason is Reason.UNKILLABLE
    assert len(world.signals()) == 2
    world.executor.reap_pending()
    world.writer.close()
    assert world.kinds() == ["INTENT", "UNKILLABLE"]


def test_an_outcome_that_cannot_be_recorded_is_reported_at_the_next_start(tmp_path: Path, monkeypatch: Any) -> None:
    world = World(tmp_path, process())
    append = world.audit_log.append

    def half(kind: Kind, fields: Any) -> Any:
        if kind is Kind.OUTCOME:
            raise RecordError("no space left")
        return append(kind, fields)

    monkeypatch.setattr(world.audit_log, "append", half)
    assert world.run().reason is Reason.KILLED
    world.audit_log.close()
    AuditWriter(AuditLog(world.folder), "gpu-7").open()
    last = world.records()[-1]
    assert (last["kind"], last["intent"], last["result"]) == ("OUTCOME", 1, "Interrupted")
    assert last["pod"]["uid"] == POD
    assert AuditLog(world.folder).open() == []
