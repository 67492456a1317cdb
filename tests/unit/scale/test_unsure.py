"""What a scheduler gave twice is told from what else may be wrong by its own log alone."""

import pytest

from tests.scale.unsure import Sorted, sort, unanswered

PUT = r"Put \"https://127.0.0.1:1/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/one/status\""
LINE = 'E1123 12:00:00.000000 7 framework.go:1803] "Plugin failed" err="add allocation and reservation to claim {}: {}" pod="a/p"'  # noqa: E501
GPU = "gpu-share.io/node-1/gpu-0"
AUDITOR = f"{GPU}: 1.9e+10 memory promised of 1.7e+10"
LEDGER = f"two: {GPU} had not (1, 0, 1) left"
OTHER = "a/two request main: asked for 2 memory, got 1"
LOST = f"{PUT}: unexpected EOF"


@pytest.mark.parametrize(
    "why", [LOST, f"{PUT}: read tcp: connection reset by peer", f"{PUT}: context deadline exceeded"]
)
def test_a_write_without_an_answer_may_have_been_stored(why: str) -> None:
    assert unanswered(LINE.format("a/one", why)) == {"a/one"}


@pytest.mark.parametrize(
    "why",
    [
        f"{PUT}: dial tcp 127.0.0.1:1: connect: connection refused",
        r"resourceclaims.resource.k8s.io \"one\" is forbidden: no",
        "claim a/one got allocated elsewhere in the meantime",
        r"Operation cannot be fulfilled on x \"one\": the object has been modified",
    ],
)
def test_a_write_that_was_refused_or_never_sent_was_not(why: str) -> None:
    assert unanswered(LINE.format("a/one", why)) == set()


def test_only_devices_of_such_claims_are_excused_and_only_of_what_comes_of_it() -> None:
    problems, log = (AUDITOR, LEDGER, OTHER), LINE.format("a/one", LOST)
    assert sort(problems, {"a/one": {GPU}}, log) == Sorted((AUDITOR, LEDGER), (OTHER,))
    assert sort(problems, {"a/one": {"gpu-share.io/node-2/gpu-0"}, "a/two": {GPU}}, log) == Sorted((), problems)
    assert sort(problems, {"a/one": {GPU}}, "") == Sorted((), problems)
    assert sort((f"{GPU}1: 3 memory promised of 2",), {"a/one": {GPU}}, log).twice == ()
