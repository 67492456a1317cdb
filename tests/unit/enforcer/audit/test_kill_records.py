"""What records hold, word for word: people and programs read them for years."""

from dataclasses import replace
from typing import Any

import pytest

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit import kill_records
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import WHOLE_POD, OnExceed
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, POD, holder, quota

ABOUT = {
    "node": "gpu-7",
    "gpu": GPU,
    "pod": {"namespace": "asr", "name": "tts-0", "uid": POD},
    "container": "model",
    "containerId": CONTAINER,
    "quotaMiB": 4096,
    "ceilingMiB": 4196,
}
QUOTA = quota(tolerance_mib=100)
DECISION = KillDecision(decision=Decision.KILL, quota=QUOTA, used_mib=9500, over_for=5.25)
RECORD = {"seq": 7, "gpu": GPU, "pod": {"uid": POD}, "container": "model", "containerId": CONTAINER, "pid": 501}
KEPT = {"node": "gpu-8", "gpu": GPU, "pod": {"uid": POD}, "container": "model", "containerId": CONTAINER, "intent": 7}


def test_a_record_says_whom_it_is_about() -> None:
    assert kill_records.target_fields("gpu-7", QUOTA) == ABOUT


def test_a_warning_says_by_how_much_and_for_how_long() -> None:
    assert kill_records.warning_fields("gpu-7", DECISION) == {**ABOUT, "usedMiB": 9500, "overFor": "5.2s"}


def test_a_loan_says_how_much_is_borrowed_of_how_much() -> None:
    lent = KillDecision(decision=Decision.LENT, quota=quota(tolerance_mib=100, limit_mib=12_288), used_mib=9500)
    about = {**ABOUT, "ceilingMiB": 12_388, "usedMiB": 9500, "limitMiB": 12_288, "borrowedMiB": 5404}
    assert kill_records.warning_fields("gpu-7", lent, 3) == {**about, "times": 3}


@pytest.mark.parametrize(("times", "text"), [(1, {}), (2, {"times": 2})])
def test_one_that_stands_for_several_says_for_how_many(times: int, text: dict[str, int]) -> None:
    assert kill_records.warning_fields("gpu-7", DECISION, times) == {
        **ABOUT,
        "usedMiB": 9500,
        "overFor": "5.2s",
        **text,
    }


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ({}, {}),
        ({"reclaim_mib": 512}, {"cause": "Reclaimed", "reclaimMiB": 512}),
        ({"unaccounted_mib": 800}, {"cause": "UnaccountedMemory", "unaccountedMiB": 800}),
        ({"unaccounted_mib": 0}, {}),
    ],
    ids=["of the quota", "reserved by others", "unaccounted", "all accounted"],
)
def test_a_warning_and_an_intent_name_the_cause_and_its_mib(why: dict[str, Any], text: dict[str, Any]) -> None:
    decision = replace(DECISION, **why)
    assert kill_records.warning_fields("gpu-7", decision) == {**ABOUT, "usedMiB": 9500, "overFor": "5.2s", **text}
    intent = kill_records.intent_record("gpu-7", decision, [holder(501, 9500)])
    assert intent == {**_intent(holder(501, 9500)), **text}


def test_of_a_whole_pod_no_container_is_named_by_its_id() -> None:
    whole = quota(tolerance_mib=100, container=WHOLE_POD)
    assert kill_records.target_fields("gpu-7", whole) == {**ABOUT, "container": WHOLE_POD, "containerId": None}


def test_what_an_enforcer_died_over_keeps_whom_it_was_about() -> None:
    note = "the enforcer exited before it recorded the result of this kill"
    assert kill_records.interrupted_record("gpu-8", RECORD) == {**KEPT, "result": "Interrupted", "note": note}


def test_an_intent_nobody_waited_for_says_that_nothing_was_done() -> None:
    note = "the disk wrote the INTENT too late, so the enforcer cancelled the kill"
    assert kill_records.cancelled_record("gpu-8", RECORD) == {**KEPT, "result": "AuditUnwritable", "note": note}


def test_an_answer_keeps_no_more_than_there_was() -> None:
    assert kill_records.cancelled_record("gpu-8", {"seq": 7}).keys() == {"node", "intent", "result", "note"}


def _intent(*holders: ProcessUsage) -> dict[str, object]:
    rows = [{"pid": each.identity.pid, "start": each.identity.start, "usedMiB": each.used_mib} for each in holders]
    one = holders[0].identity
    return {
        **ABOUT, "pid": one.pid, "start": one.start, "cgroupInode": 7, "usedMiB": 9500, "overFor": "5.2s",
        "action": "terminate_client,SIGTERM,SIGKILL", "targets": rows, "targetsTotal": len(rows),
    }  # fmt: skip


def test_an_intent_names_everybody_it_may_end() -> None:
    holders = [holder(501, 9000), holder(502, 500)]
    assert kill_records.intent_record("gpu-7", DECISION, holders) == _intent(*holders)


def _whole(*, respawns: bool = False) -> KillDecision:
    about = quota(tolerance_mib=100, on_exceed=OnExceed.KILL_CONTAINER)
    return KillDecision(decision=Decision.KILL, quota=about, used_mib=9500, over_for=5.25, respawns=respawns)


def test_of_a_whole_container_its_first_process_comes_first_and_once() -> None:
    first, other = holder(500, 0), holder(501, 9000)
    text = kill_records.intent_record("gpu-7", _whole(), [other, first], [first])
    assert text == {**_intent(first, other), "first": 500}


def test_of_one_without_a_first_process_it_is_reported_why_the_holders_are_ended() -> None:
    assert kill_records.intent_record("gpu-7", _whole(), [holder(501, 9000)]) == {
        **_intent(holder(501, 9000)),
        "note": kill_records.NO_FIRST,
    }


def test_one_that_puts_new_processes_in_their_place_is_reported_to() -> None:
    text = kill_records.intent_record("gpu-7", _whole(respawns=True), [holder(501, 9000)], [holder(500, 0)])
    assert (text["escalated"], text["first"]) == (kill_records.ESCALATED, 500)


@pytest.mark.parametrize("steps", [(), ("terminate_client", "SIGTERM")], ids=len)
def test_an_outcome_says_of_each_what_became_of_it_and_by_which_steps(steps: tuple[str, ...]) -> None:
    one = ProcessUsage(Identity(pid=501, start=77, owner=None), 9000)
    assert kill_records.outcome_fields(kill_records.process_outcome(one, Reason.KILLED, *steps)) == {
        "pid": 501, "start": 77, "usedMiB": 9000, "result": "Killed", "steps": ",".join(steps),
    }  # fmt: skip
