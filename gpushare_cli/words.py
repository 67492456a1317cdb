"""Write names and numbers into sentences, and texts of others without what drives a terminal. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime


def clean(text: str) -> str:
    """Return a text without what drives a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def some(names: Sequence[object], most: int = 5) -> str:
    """Name the first of many, and count the rest."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def moment(time: datetime) -> str:
    """Write a time as Kubernetes does: ``2026-11-28T10:00:00Z``. It has a zone."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def counted(number: int, noun: str, verbs: tuple[str, str] = ("", "")) -> str:
    """Write a number of things: ``1 node``, ``2 nodes``; with what one does and several do, ``1 anchor matches``."""
    return f"{number} {noun} {verbs[0]}".rstrip() if number == 1 else f"{number} {noun}s {verbs[1]}".rstrip()
