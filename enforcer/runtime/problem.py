"""A problem of the enforcer: a sentence for people, and its Reason for metrics. Pure."""

from typing import Self

from gpushare.reasons import Reason


class Problem(str):
    """A sentence about something that does not work, with its Reason for the metrics."""

    __slots__ = ("reason",)

    def __new__(cls, sentence: str, reason: Reason) -> Self:
        """Return the sentence, which equals the plain text."""
        found = super().__new__(cls, sentence)
        found.reason = reason
        return found

    reason: Reason
