"""What a check is made of: a question as data, and the finding that answers it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How good an answer is, best first."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer: what was found, and what to do about it, if anything.

    ``last``: the rest of its category cannot be asked.
    """

    level: Level
    detail: str = ""
    hint: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One question."""

    category: str
    description: str
    ask: Callable[[], Finding]
    hint: str = ""


def fine(detail: str = "") -> Finding:
    """Answer that all is well."""
    return Finding(level=Level.OK, detail=detail)


def warning(detail: str, hint: str = "") -> Finding:
    """Answer that somebody should look at this."""
    return Finding(level=Level.WARNING, detail=detail, hint=hint)


def wrong(detail: str, hint: str = "") -> Finding:
    """Answer that the product cannot work like this."""
    return Finding(level=Level.WRONG, detail=detail, hint=hint)
