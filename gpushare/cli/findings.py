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
    """One answer. ``detail`` says what was found, ``hint`` (if any) what to do about it."""

    level: Level
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One question. ``fatal``: unless it is fine, the rest of its category cannot be asked."""

    category: str
    description: str
    ask: Callable[[], Finding]
    hint: str = ""
    fatal: bool = False


def fine(detail: str = "") -> Finding:
    """Answer that all is well."""
    return Finding(level=Level.OK, detail=detail)


def warning(detail: str, hint: str = "") -> Finding:
    """Answer that somebody should look at this."""
    return Finding(level=Level.WARNING, detail=detail, hint=hint)


def wrong(detail: str, hint: str = "") -> Finding:
    """Answer that the product cannot work like this."""
    return Finding(level=Level.WRONG, detail=detail, hint=hint)
