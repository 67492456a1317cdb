"""Checks that add problems and warnings, and the one place that raises."""

import pytest

from gpushare.errors import MAX_LISTING, MAX_PROBLEMS, PolicyDenied, Problem
from gpushare.findings import Findings, collect, first_of_fields
from gpushare.reasons import Reason


def adds(findings: Findings, *found: Problem | str, value: int = 7) -> int:
    for each in found:
        if isinstance(each, Problem):
            findings.add(each)
        else:
            findings.warn(each)
    return value


def breaks(findings: Findings, field: str) -> int:
    findings.problem(f"before {field}", "wrong")
    raise PolicyDenied(field, "cannot be read", Reason.INVALID_POD)


def refused(*found: Problem) -> PolicyDenied:
    with pytest.raises(PolicyDenied) as error:
        collect(adds, *found)
    return error.value


def fields_of(findings: Findings) -> list[str]:
    return [each.field for each in findings.problems]


def test_without_problems_the_value_is_returned() -> None:
    assert collect(adds, "a warning") == 7


def test_an_unreadable_field_that_nothing_catches_is_reported_beside_the_others() -> None:
    with pytest.raises(PolicyDenied) as error:
        collect(breaks, "a")
    assert [each.field for each in error.value.problems] == ["a", "before a"]
    assert (error.value.field, error.value.reason) == ("a", Reason.INVALID_POD)


def test_an_unreadable_field_ends_only_the_check_that_needs_it() -> None:
    findings = Findings()
    findings.independent((breaks, lambda found, field: found.problem(f"after {field}", "wrong"), breaks), "a")
    assert fields_of(findings) == ["before a", "a", "after a"]


def test_what_is_attempted_has_no_value_where_it_breaks() -> None:
    findings = Findings()
    assert findings.attempt(len, "abc") == 3
    assert findings.attempt(breaks, findings, "a") is None
    assert fields_of(findings) == ["before a", "a"]


def test_findings_through_a_change_are_reported_as_changed_and_counted_as_found() -> None:
    findings = Findings()
    inner = findings.through(lambda problem: None if problem.field == "kept" else Problem("other", problem.message))
    adds(inner, Problem("kept", "wrong"), Problem("field", "wrong"), "warning")
    assert (fields_of(findings), fields_of(inner)) == (["other"], ["kept", "field"])
    assert findings.warnings == inner.warnings == ["warning"]


def test_entries_of_lists_come_by_their_index_and_nothing_twice() -> None:
    fields = ["b[10].c", "b[9].c", "a", "b[9].c", "b[100]"]
    error = refused(*(Problem(each, "wrong") for each in fields))
    assert [each.field for each in error.problems] == ["a", "b[9].c", "b[10].c", "b[100]"]


def test_a_check_is_stopped_after_the_most_problems() -> None:
    asked: list[int] = []

    def check(findings: Findings) -> None:
        for number in range(10**9):
            asked.append(number)
            findings.attempt(findings.through(lambda problem: problem).problem, f"a[{number}]", "wrong")

    with pytest.raises(PolicyDenied) as error:
        collect(check)
    assert len(asked) == MAX_PROBLEMS + 1
    assert (len(error.value.problems), error.value.complete) == (MAX_PROBLEMS, False)


def test_the_text_lists_whole_problems_and_counts_the_rest() -> None:
    error = refused(*(Problem(f"a[{number}]", "x" * 3000) for number in range(MAX_PROBLEMS)))
    lines = error.message.splitlines()
    assert len(error.message) <= MAX_LISTING
    assert lines[0].startswith(f"{MAX_PROBLEMS} ")
    shown = [line for line in lines if line.startswith("* a[")]
    assert all(line.endswith("x" * 3000) for line in shown)
    assert str(MAX_PROBLEMS - len(shown)) in lines[-1]
    assert len(error.problems) == MAX_PROBLEMS


def test_one_long_problem_is_cut() -> None:
    assert len(refused(Problem("a", "x" * 10**6)).message) == MAX_LISTING


def test_of_an_area_only_the_first_problem_of_each_field_is_reported() -> None:
    findings = Findings()
    inner = findings.through(first_of_fields("a"))
    fields = ("a.b", "a.b", "a.b[0]", "a.b.c", "a.bc", "c", "c")
    adds(inner, *(Problem(each, str(index)) for index, each in enumerate(fields)))
    assert [each.message for each in findings.problems] == ["0", "4", "5", "6"]
