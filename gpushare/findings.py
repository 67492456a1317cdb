"""Collect the problems and the warnings that the checks of one object find; ``collect`` raises the problems. Pure.

A check is a function: it takes ``Findings``, adds what it finds, and returns what it has read. If a field cannot be
read, ``PolicyDenied`` ends the check that needs the field; ``attempt`` and ``independent`` add its problems, so that
the other checks still run.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar, TypeVarTuple

from gpushare.errors import MAX_PROBLEMS, PolicyDenied, Problem
from gpushare.reasons import Reason

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Change = Callable[[Problem], Problem | None]
"""Gives a problem as it is reported; ``None``: it is not."""
_DIGITS: Final = 6


class _EnoughFound(Exception):
    """Ends all checks: there are more problems than are reported at once."""


class Findings:
    """What the checks of one object have found, in this order; each problem once."""

    def __init__(self) -> None:
        self.problems: dict[Problem, None] = {}
        self.warnings: list[str] = []

    def problem(self, field: str, message: str, reason: Reason = Reason.CONFLICTS_WITH_SHARE) -> None:
        """Add a problem, which denies the object; ``Problem`` describes the arguments."""
        self.add(Problem(field, message, reason))

    def warn(self, message: str) -> None:
        """Add a warning."""
        self.warnings.append(message)

    def add(self, problem: Problem) -> None:
        """Add a problem."""
        self.problems[problem] = None
        if len(self.problems) > MAX_PROBLEMS:
            raise _EnoughFound

    def attempt(self, read: Callable[[*Arguments], T], *arguments: *Arguments) -> T | None:
        """Return what a function returns; ``None`` if it cannot read a field."""
        try:
            return read(*arguments)
        except PolicyDenied as error:
            self._add_all(error.problems)
        return None

    def independent(self, checks: Iterable[Callable[["Findings", *Arguments], object]], *arguments: *Arguments) -> None:
        """Run checks of the same arguments that do not depend on each other."""
        for check in checks:
            try:
                check(self, *arguments)
            except PolicyDenied as error:
                self._add_all(error.problems)

    def through(self, change: Change) -> "Findings":
        """Return findings for some checks: they report their problems here, as ``change`` returns them."""
        return _Changed(self, change)

    def _add_all(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.add(problem)


class _Changed(Findings):
    """Findings that others report."""

    def __init__(self, reporting: Findings, change: Change) -> None:
        super().__init__()
        self.warnings = reporting.warnings
        self._reporting: Final = reporting
        self._change: Final = change

    def add(self, problem: Problem) -> None:
        self.problems[problem] = None
        changed = self._change(problem)
        if changed is not None:
            self._reporting.add(changed)


def first_of_fields(area: str) -> Change:
    """Within ``area``, report only the first problem of a field and of all that the field contains."""
    fields: list[str] = []

    def first(problem: Problem) -> Problem | None:
        if _is_within(problem.field, area):
            if any(_is_within(problem.field, field) for field in fields):
                return None
            fields.append(problem.field)
        return problem

    return first


def collect(check: Callable[[Findings, *Arguments], T], *arguments: *Arguments) -> T:
    """Run a check to its end, or until it has more than ``MAX_PROBLEMS`` problems; return its value.

    Raises:
        PolicyDenied: the check found problems. They come in the order of their fields.
    """
    findings, complete = Findings(), True
    try:
        value = check(findings, *arguments)
        if not findings.problems:
            return value
    except _EnoughFound:
        complete = False
    except PolicyDenied as error:
        findings.problems |= dict.fromkeys(error.problems)
        complete = error.complete
    reported = list(findings.problems)[:MAX_PROBLEMS]
    complete = complete and len(reported) == len(findings.problems)
    raise PolicyDenied.of(sorted(reported, key=_place), complete=complete)


def _is_within(field: str, area: str) -> bool:
    return field == area or field.startswith((f"{area}.", f"{area}["))


def _place(problem: Problem) -> list[str]:
    """Order fields as ``kubectl get --output=yaml`` prints them: alphabetically, entries of a list by their index."""
    steps = problem.field.replace("]", "").replace("[", ".").split(".")
    return [step.rjust(_DIGITS, "0") if step.isdecimal() else step for step in steps]
