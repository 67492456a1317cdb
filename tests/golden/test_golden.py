"""Every golden pod is answered as written down; what is patched agrees with the patch and needs no second one."""

import copy
from typing import Any

import jsonpatch
import pytest

from gpushare.errors import PolicyDenied
from gpushare.reasons import Reason
from tests.golden.cases import BASE, Case, cases
from tests.golden.written import lines

CASES = cases()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40


def test_every_line_of_the_base_has_one_place() -> None:
    base = Case(BASE).expected()
    assert len(set(base)) == len(base)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_answer_is_the_one_written_down(case: Case) -> None:
    assert lines(case.answer()) == case.expected(), "if this is meant: python -m tests.golden, then read the difference"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_patch_leads_to_the_pod_and_a_second_pass_changes_nothing(case: Case) -> None:
    pod = case.pod
    before = copy.deepcopy(pod)
    try:
        decision = case.decide(pod)
    except PolicyDenied as error:
        assert case.refused, error.message
        return
    assert pod == before
    after: dict[str, Any] = jsonpatch.apply_patch(pod, decision.patch)
    assert after == decision.pod
    assert case.decide(after).patch == []
    assert (decision.reason is Reason.APPLIED) == bool(decision.patch)
    assert {each["op"] for each in decision.patch} <= {"add", "replace"}
    assert all(len(each) < 120 for each in decision.warnings)
