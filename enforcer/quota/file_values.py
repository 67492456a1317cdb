"""Read single values of the enforcer's own files. Pure.

Each raises ``TypeError`` that names a value which is something else; the caller names the field.
"""

from typing import Any

from enforcer.quota.types import MOST


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r:.40} is not text")
    return value


def whole(value: Any) -> int:
    """Return a whole number from 0 to ``MOST``."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise TypeError(f"{value!r:.40} is not a whole number from 0 to {MOST}")
    return value


def seconds(value: Any) -> float:
    """Return a finite number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TypeError(f"{value!r:.40} is not a number of seconds")
    return float(value)


def flag(value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is neither true nor false")
    return value
