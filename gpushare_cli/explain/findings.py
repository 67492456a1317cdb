"""One fact about a pod or a workload, as data; its line for people and its JSON come from it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_TEXT: Final = 2048
"""Characters of one line: conditions and Events of others may hold any text."""


class FindingType(StrEnum):
    """What a finding is about. The values are part of the JSON output."""

    NO_SHARE = "noShare"
    ENDED = "ended"
    USE = "use"
    LIMIT = "limit"
    OBSTACLE = "obstacle"
    REFUSED = "refused"
    WARNING = "warning"
    KILL = "lastKill"
    ADVICE = "advice"
    EVENT = "event"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact. ``reason`` is a Reason of ours or a word of Kubernetes', ``time`` RFC 3339; both may be empty.

    ``hint`` says what the message means or what to do, ``command`` what to run, or which annotation to write.
    """

    type: FindingType
    message: str
    reason: str = ""
    time: str = ""
    hint: str = ""
    container: str = ""
    command: str = ""

    @property
    def line(self) -> str:
        """Return the fact for people, without the hint."""
        fact = f"{self.reason}: {self.message}" if self.reason else self.message
        if self.type is FindingType.LIMIT:
            return f"limit {fact}" + (f" (since {self.time})" if self.time else "")
        if self.type is FindingType.WARNING:
            return f"warning: {fact}"
        dated = f"{self.time} {fact}" if self.time else fact
        return f"last kill: {dated}" if self.type is FindingType.KILL else dated

    def json(self) -> dict[str, str]:
        """Return the fact for programs: each key is always there, empty where there is nothing to say."""
        keys = ("type", "reason", "message", "time", "hint", "container", "command")
        return {key: str(getattr(self, key))[:MAX_TEXT] for key in keys}
