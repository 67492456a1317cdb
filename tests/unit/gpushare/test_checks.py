"""Checks that yield problems and warnings, and the one place that raises."""

from collections.abc import Iterator

import pytest

from gpushare.checks import Check, attempt, collect, first_of_fields, guarded, independent, traced, values_of
from gpushare.errors import MAX_LISTING, MAX_PROBLEMS, PolicyDenied, Problem
from gpushare.reasons import Reason


def finds(*found: Problem | str, value: int = 7) -> Check[int]:
    yield from found
    return value


def breaks(field: str) -> Check[int]:
    yield f"before {field}"
    raise PolicyDenied(field, "cannot be read", Reason.INVALID_POD)


def refused(check: Check[object]) -> PolicyDenied:
    with pytest.raises(PolicyDenied) as error:
        collect(check)
    return error.value


def test_without_problems_the_value_and_the_warnings_are_returned() -> None:
    assert collect(finds("one", "two")) == (7, ("one", "two"))


def test_an_unreadable_field_ends_only_the_check_that_needs_it() -> None:
    error = refused(independent([breaks("b"), finds(Problem("a", "wrong")), breaks("c")]))
    assert [each.field for each in error.problems] == ["a", "b", "c"]
    assert (error.field, error.reason) == ("a", Reason.CONFLICTS_WITH_SHARE)


def test_what_is_guarded_has_no_value_where_it_breaks() -> None:
    def check() -> Check[tuple[object, object, list[int]]]:
        broken = yield from guarded(breaks("a"))
        value = yield from attempt(lambda: 3)
        return broken, value, (yield from values_of([finds(value=1), finds(value=2)]))

    assert [each.field for each in refused(check()).problems] == ["a"]


def test_a_traced_check_tells_whether_it_found_a_problem_and_renames_fields() -> None:
    def check(*found: Problem | str) -> Check[bool]:
        _, sound = yield from traced(finds(*found), {"near": "written"})
        yield f"sound: {sound}"
        return sound

    assert collect(check("a warning"))[0]
    assert [each.field for each in refused(check(Problem("near", "wrong"), Problem("other", "wrong"))).problems] == [
        "other",
        "written",
    ]


def test_entries_of_lists_come_by_their_index_and_nothing_twice() -> None:
    fields = ["b[10].c", "b[9].c", "a", "b[9].c", "b[100]"]
    error = refused(finds(*(Problem(each, "wrong") for each in fields)))
    assert [each.field for each in error.problems] == ["a", "b[9].c", "b[10].c", "b[100]"]


def test_a_check_is_stopped_after_the_most_problems() -> None:
    asked: list[int] = []

    def endless() -> Iterator[Problem]:
        for number in range(10**9):
            asked.append(number)
            yield Problem(f"a[{number}]", "wrong")

    def check() -> Check[None]:
        yield from endless()

    error = refused(check())
    assert len(asked) == MAX_PROBLEMS + 1
    assert (len(error.problems), error.complete) == (MAX_PROBLEMS, False)


def test_the_text_lists_whole_problems_and_counts_the_rest() -> None:
    error = refused(finds(*(Problem(f"a[{number}]", "x" * 900) for number in range(40))))
    lines = error.message.splitlines()
    assert len(error.message) <= MAX_LISTING
    assert lines[0].startswith("40 ")
    shown = [line for line in lines if line.startswith("* a[")]
    assert all(line.endswith("x" * 900) for line in shown)
    assert str(40 - len(shown)) in lines[-1]
    assert len(error.problems) == 40


def test_one_long_problem_is_cut() -> None:
    assert len(refused(finds(Problem("a", "x" * 10**6))).message) == MAX_LISTING


def test_of_an_area_only_the_first_problem_of_each_field_is_yielded() -> None:
    fields = ("a.b", "a.b", "a.b[0]", "a.b.c", "a.bc", "c", "c")
    found = list(first_of_fields("a", finds(*(Problem(each, str(index)) for index, each in enumerate(fields)))))
    assert [each.message for each in found if isinstance(each, Problem)] == ["0", "4", "5", "6"]
    assert collect(first_of_fields("a", finds("warning")))[0] == 7
