"""What a check is made of: a question as data, and the finding that answers it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class Level(StrEnum):
    """How good an answer is, best first."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One answer: what was found, and what to do about it, if anything.

    ``last``: the rest of its category cannot be asked. ``forbidden``: the user may not ask this. ``category`` and
    ``description`` are the question's, once it was asked.
    """

    level: Level
    detail: str = ""
    hint: str = ""
    last: bool = False
    forbidden: bool = False
    category: str = ""
    description: str = ""

    @property
    def fine(self) -> bool:
        """Whether there is nothing to do."""
        return self.level is Level.OK

    def json(self) -> dict[str, object]:
        """Return it for programs. It is not ``complete`` where nothing else of its category was asked."""
        keys = ("category", "description", "level", "detail", "hint")
        return {**{key: getattr(self, key) for key in keys}, "complete": not self.last}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One question."""

    category: str
    description: str
    ask: Callable[[], CheckResult]
    hint: str = ""

    def answered(self) -> CheckResult:
        """Ask it."""
        found = self.ask()
        hint = "" if found.fine else found.hint or self.hint
        return replace(found, hint=hint, category=self.category, description=self.description)


def ok(detail: str = "") -> CheckResult:
    """Answer that all is well."""
    return CheckResult(level=Level.OK, detail=detail)


def warning(detail: str, hint: str = "") -> CheckResult:
    """Answer that somebody should look at this."""
    return CheckResult(level=Level.WARNING, detail=detail, hint=hint)


def failed(detail: str, hint: str = "") -> CheckResult:
    """Answer that the product cannot work like this."""
    return CheckResult(level=Level.WRONG, detail=detail, hint=hint)
