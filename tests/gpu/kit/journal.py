"""Every question and every answer of an experiment, as they were; bounded, so that a hammering loop stays readable."""

import time
from typing import Any, Final

MOST: Final = 1500
LONGEST: Final = 20_000


class Journal:
    """Appends what was asked and answered; past ``MOST`` entries only counts."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._entries: list[dict[str, Any]] = []
        self._left_out = 0

    def add(self, kind: str, asked: Any, answered: Any) -> None:
        """Note one exchange; ``asked`` and ``answered`` are what JSON can carry."""
        if len(self._entries) >= MOST:
            self._left_out += 1
            return
        at = round(time.monotonic() - self._begun, 4)
        self._entries.append({"at": at, "kind": kind, "asked": _bounded(asked), "answered": _bounded(answered)})

    def entries(self) -> list[Any]:
        """All of it."""
        left = [{"kind": "left-out", "answered": self._left_out}] if self._left_out else []
        return [*self._entries, *left]


def _bounded(value: Any) -> Any:
    return f"{value[:LONGEST]}…" if isinstance(value, str) and len(value) > LONGEST else value
