"""Acting where something fails in the middle of it."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.audit.kill_records import process_outcome
from enforcer.audit.record import Kind
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill.report import KillResult, ended_after_all, summarize
from enforcer.status import messages
from gpushare.errors import RecordError
from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import Handle, World, at_look, process
from tests.unit.enforcer.made import CONTAINER, GPU, holder, quota


def _fails(world: World, monkeypatch: pytest.MonkeyPatch, *kinds: Kind) -> None:
    append = world.audit_log.append

    def full(kind: Kind, fields: Any) -> Any:
        if kind in kinds:
            raise RecordError("no space left")
        return append(kind, fields)

    monkeypatch.setattr(world.audit_log, "append", full)


def test_an_answer_that_could_not_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, process())
    with monkeypatch.context() as patched:
        _fails(world, patched, Kind.OUTCOME)
        assert world.run().reason is Reason.KILLED
        world.writer.retry_pending()
        world.writer.close()
        assert world.kinds() == ["INTENT"]
    world.writer.retry_pending()
    world.writer.retry_pending()
    world.writer.close()
    assert world.kinds() == ["INTENT", "OUTCOME"]
    assert world.records()[1]["targets"][0]["steps"] == "SIGTERM"
    assert world.whole()


def test_a_bug_after_the_intent_is_on_record_with_what_was_done(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 8000, dies_of=()))
    ended = Handle.ended

    class Broken(Handle):
        def ended(self, seconds: float = 0.0) -> bool:
            if self.process.got and self.pid == 502:
                raise OverflowError("timeout is too large")
            return ended(self, seconds)

    world.pin = lambda pid: Broken(world.processes[pid], world)  # type: ignore[method-assign]
    with pytest.raises(OverflowError):
        world.run()
    intent, outcome = world.records()
    assert (outcome["kind"], outcome["intent"], outcome["result"]) == ("OUTCOME", intent["seq"], "InternalError")
    assert [(each["pid"], each["steps"]) for each in outcome["targets"]] == [(501, "SIGTERM"), (502, "SIGTERM")]
    assert [notice.reason for notice in world.notices] == [Reason.INTERNAL]


def test_with_too_few_descriptors_the_largest_go_first_and_the_others_after_them(tmp_path: Path) -> None:
    world = World(tmp_path, *(process(500 + n, 5000 + n) for n in range(4)))
    pin, opened = world.pin, []

    def scarce(pid: int) -> PidHandle | None:
        opened.append(pid)
        if len(opened) % 3 == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return pin(pid)

    world.pin = scarce  # type: ignore[method-assign]
    assert world.run(*sorted(world.processes.values(), key=lambda each: -each.mib)).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 503", "SIGTERM 502", "SIGTERM 501", "SIGTERM 500"]
    assert world.kinds() == ["INTENT", "OUTCOME"]


def test_who_let_go_of_the_gpu_meanwhile_is_spared_though_the_container_is_still_over(tmp_path: Path) -> None:
    server, kernel = process(501, 5000), process(502, 4900)
    world = World(tmp_path, server, kernel)

    def hand_over() -> None:
        server.holds, kernel.mib = False, 9000

    at_look(world, 2, hand_over)
    assert world.run().reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 502"]
    assert [target["pid"] for target in world.records()[-1]["targets"]] == [502]


def test_what_hung_and_has_ended_is_answered_at_the_next_look_and_once(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()))
    world.run()
    world.processes[501].ended = True
    for _ in range(2):
        world.executor.reap_pending()
    world.writer.close()
    assert world.kinds() == ["INTENT", "UNKILLABLE", "OUTCOME"]
    assert world.records()[-1]["intent"] == 1
    assert world.records()[-1]["targets"][0] == {
        "pid": 501, "start": 5010, "usedMiB": 9000, "result": "Killed", "steps": "SIGTERM,SIGKILL",
    }  # fmt: skip
    assert [notice.reason for notice in world.notices] == [Reason.UNKILLABLE, Reason.KILLED]


def test_what_hung_beside_one_that_was_refused_is_let_go_of_once_it_has_ended(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 9000, dies_of=()))
    world.answer, world.refused = True, {501}
    assert world.run(world.processes[502], world.processes[501]).reason is Reason.TERMINATE_FAILED
    world.processes[502].ended = True
    world.executor.reap_pending()
    assert world.killer.unkillable == {}


def test_while_it_hangs_that_is_on_record_as_the_intents(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()))
    world.run()
    world.writer.close()
    intent, hanging = world.records()
    assert (hanging["kind"], hanging["intent"], hanging["result"]) == ("UNKILLABLE", intent["seq"], "Unkillable")


def test_that_it_hangs_and_cannot_be_recorded_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()))

    def fails(kind: Kind, fields: Any, failed: Callable[[RecordError], object]) -> None:
        assert (kind, fields["intent"]) == (Kind.UNKILLABLE, 1)
        failed(RecordError("no space left"))

    monkeypatch.setattr(world.writer, "append_async", fails)
    assert world.run().reason is Reason.UNKILLABLE
    assert [notice.reason for notice in world.notices] == [Reason.UNKILLABLE]


def test_of_those_that_hung_and_others_only_theirs_is_put_right() -> None:
    hung, gone = (
        process_outcome(holder(501, 9000), Reason.UNKILLABLE, "SIGKILL"),
        process_outcome(holder(502, 8), Reason.ALREADY_EXITED),
    )
    found = ended_after_all(KillResult(Reason.UNKILLABLE, (hung, gone)))
    assert found == KillResult(Reason.KILLED, (replace(hung, result=Reason.KILLED), gone))


@pytest.mark.parametrize("reason", [*sorted(messages.CUT_SHORT), Reason.BACK_UNDER_QUOTA, Reason.KILLED])
def test_after_a_kill_the_result_has_why_the_enforcer_stopped_early(reason: Reason) -> None:
    killed = process_outcome(holder(501, 9000), Reason.KILLED, "SIGTERM")
    early = {Reason.NVML_UNAVAILABLE, Reason.NOT_ENFORCING, Reason.IDENTITY_CHANGED}
    assert summarize(reason, [killed]) == KillResult(Reason.KILLED, (killed,), reason if reason in early else None)
    assert summarize(reason, []) == KillResult(reason)
    hung = replace(killed, result=Reason.UNKILLABLE)
    assert ended_after_all(summarize(reason, [hung])) == summarize(reason, [killed])


def test_of_nobody_nothing_is_made_of_the_whole_container(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.run(world.processes[501])
    nobody = KillDecision(decision=Decision.KILL, quota=quota(), used_mib=9000, respawns=True)
    assert world.executor.execute(nobody) == KillResult(Reason.IDENTITY_CHANGED)


def test_a_process_that_has_the_pid_of_one_that_hung_is_ended_like_any_other(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()))
    world.run()
    world.processes[501].ended = True
    world.executor.reap_pending()
    world.processes[501] = process(501, 9000)
    assert world.run().reason is Reason.KILLED


def test_one_that_ended_by_itself_is_reported_to_be_gone_beside_one_that_had_to_be_ended(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 9000))
    at_look(world, 2, lambda: setattr(world.processes[501], "ended", True))
    assert world.run().reason is Reason.KILLED
    intent, outcome = world.records()
    assert intent["node"] == "gpu-7"
    about = {"gpu": GPU, "container": "model", "containerId": CONTAINER, "quotaMiB": 4096, "ceilingMiB": 4096}
    assert {name: value for name, value in outcome.items() if name not in {"time", "prev", "hash", "pod"}} == {
        **about, "seq": 2, "kind": "OUTCOME", "node": "gpu-7", "intent": 1, "result": "Killed", "ended": 2,
        "targets": [
            {"pid": 501, "start": 5010, "usedMiB": 9000, "result": "AlreadyExited", "steps": ""},
            {"pid": 502, "start": 5020, "usedMiB": 9000, "result": "Killed", "steps": "SIGTERM"},
        ],
    }  # fmt: skip


def test_blind_after_one_was_released_that_one_is_ended_and_nobody_after_it(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 5000))
    world.answer = True
    world.on_look = lambda look: setattr(world, "blind", look == 3)
    assert world.run().reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501"]
    assert messages.CUT_SHORT[Reason.NVML_UNAVAILABLE] in world.notices[0].note


def test_those_that_were_gone_already_are_named(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.processes[501].ended = True
    assert world.run() == KillResult(
        Reason.ALREADY_EXITED, (process_outcome(holder(501, 9000), Reason.ALREADY_EXITED),)
    )


def test_where_others_hold_it_now_nothing_is_recorded_of_those_that_were_evaluated(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, holds=False), process(502, 9000))
    assert world.run(world.processes[501]) == KillResult(Reason.IDENTITY_CHANGED)
    assert not world.folder.exists()


def test_what_proc_says_of_a_pid_counts_though_the_gpu_still_names_who_was_evaluated(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.answer = True
    another = replace(process().identity, start=1)
    at_look(world, 2, lambda: setattr(world, "identify", lambda _: another))
    world.run()
    assert world.story == []
