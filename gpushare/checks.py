"""Checks as generators: each yields all problems and warnings that it finds, and ``collect`` raises the problems. Pure.

A check returns what it has read. If a field cannot be read, ``PolicyDenied`` ends the check that needs the field;
``guarded`` turns the error into problems, so that the other checks of the pod still run.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from gpushare.errors import MAX_PROBLEMS, PolicyDenied, Problem

T = TypeVar("T")
Finding = Problem | str
"""A problem denies the pod; a string is a warning."""
Check = Generator[Finding, None, T]
_DIGITS: Final = 6


def guarded(check: Check[T]) -> Check[T | None]:
    """Run a check; if a field is unreadable, yield the problems and return ``None``."""
    try:
        return (yield from check)
    except PolicyDenied as error:
        yield from error.problems
        return None


def attempt(read: Callable[[], T]) -> Check[T | None]:
    """Read a value; if that raises, yield the problems and return ``None``."""
    try:
        return read()
    except PolicyDenied as error:
        yield from error.problems
        return None


def independent(checks: Iterable[Check[object]]) -> Check[None]:
    """Run checks that do not depend on each other."""
    for check in checks:
        # As ``guarded`` does; a generator more for each of fifty checks would cost a tenth of an admission.
        try:
            yield from check
        except PolicyDenied as error:
            yield from error.problems


def values_of(checks: Iterable[Check[T]]) -> Check[list[T]]:
    """Run checks and return what each of them has read."""
    values: list[T] = []
    for check in checks:
        value = yield from check
        values.append(value)
    return values


def first_of_fields(area: str, check: Check[T]) -> Check[T]:
    """Run a check; within ``area``, yield only the first problem of a field and of all that the field contains."""
    fields: list[str] = []
    values: list[T] = []
    for found in _kept(check, values):
        if isinstance(found, Problem) and _is_within(found.field, area):
            if any(_is_within(found.field, field) for field in fields):
                continue
            fields.append(found.field)
        yield found
    return values[0]


def traced(check: Check[T], fields: Mapping[str, str]) -> Check[tuple[T, bool]]:
    """Run a check; return its value, and whether it found no problem. Problems of some ``fields`` get another field."""
    values: list[T] = []
    sound = True
    for found in _kept(check, values):
        if isinstance(found, Problem):
            sound = False
            yield replace(found, field=fields.get(found.field, found.field))
        else:
            yield found
    return values[0], sound


def collect(check: Check[T]) -> tuple[T, tuple[str, ...]]:
    """Run a check to its end, or to its first 100 different problems; return its value and the warnings.

    Raises:
        PolicyDenied: the check found problems. They come in the order of their fields.
    """
    values: list[T] = []
    problems: dict[Problem, None] = {}
    warnings: list[str] = []
    complete = True
    try:
        for found in _kept(check, values):
            if isinstance(found, str):
                warnings.append(found)
            else:
                problems[found] = None
            if len(problems) > MAX_PROBLEMS:
                break
    except PolicyDenied as error:
        problems |= dict.fromkeys(error.problems)
        complete = error.complete
    if problems:
        reported = list(problems)[:MAX_PROBLEMS]
        complete = complete and len(reported) == len(problems)
        raise PolicyDenied.of(sorted(reported, key=_place), complete=complete)
    return values[0], tuple(warnings)


def _is_within(field: str, area: str) -> bool:
    return field == area or field.startswith((f"{area}.", f"{area}["))


def _kept(check: Check[T], values: list[T]) -> Check[None]:
    values.append((yield from check))


def _place(problem: Problem) -> list[str]:
    """Order fields as ``kubectl get --output=yaml`` prints them: alphabetically, entries of a list by their index."""
    steps = problem.field.replace("]", "").replace("[", ".").split(".")
    return [step.rjust(_DIGITS, "0") if step.isdecimal() else step for step in steps]
