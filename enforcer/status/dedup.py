"""Deduplicate the Events of a container that goes over its quota and back: one is sent, the others are counted. Pure.

A container that stays just below its grace period would else make an Event and a record every few seconds, for as long
as it likes. An attempt to end it closes the account: what comes after is sent again.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from enforcer.detection.types import ContainerKey, Decision, KillDecision, container_key

QUIET: Final = 300.0
"""Seconds after an Event in which the same of the same container is only counted."""
_COUNTED: Final = frozenset({
    Decision.WARNED, Decision.LOWERED, Decision.RATE_LIMITED, Decision.BREAKER_OPEN, Decision.LENT,
    Decision.RECLAIM_NOTICE,
})  # fmt: skip
Key = tuple[ContainerKey, str, Decision]


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often something happened in how many seconds, since the last Event; once where there was none lately."""

    times: int = 1
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """Say it after a sentence's subject; empty where there is nothing to say."""
        if self.times == 1:
            return ""
        return f", for the {_ordinal(self.times)} time in {max(1, round(self.seconds / 60))} min"


FIRST: Final = Repetition()


@dataclass(frozen=True, slots=True)
class _Sent:
    at: float
    times: int = 1
    silent: bool = False
    """Whether what happened last was only counted."""
    lenient: bool = False
    """Whether it had that nothing more is done."""


@dataclass(slots=True)
class EventDeduplicator:
    """Which Events were sent, and when. Seconds on any clock that goes forward."""

    quiet: float = QUIET
    _sent: dict[Key, _Sent] = field(default_factory=dict)

    def register(self, decision: KillDecision, now: float) -> Repetition | None:
        """Take in a decision and return how often there was one like it; ``None`` where no Event is due."""
        place, gpu = container_key(decision.quota), decision.quota.gpu
        if decision.decision is Decision.KILL:
            self._sent = {key: sent for key, sent in self._sent.items() if key[0] != place}
        if decision.decision is Decision.BACK_UNDER:
            warned = self._sent.get((place, gpu, Decision.WARNED))
            return None if warned is not None and warned.silent else FIRST
        if decision.decision not in _COUNTED:
            return FIRST
        return self._counted((place, gpu, decision.decision), now, lenient=decision.kill_in is None)

    def _counted(self, key: Key, now: float, *, lenient: bool) -> Repetition | None:
        self._sent = {each: sent for each, sent in self._sent.items() if now - sent.at < 2 * self.quiet}
        before = self._sent.get(key)
        if before is not None and before.lenient and not lenient:
            before = None  # that it may be ended by now is news
        if before is not None and now - before.at < self.quiet:
            self._sent[key] = replace(before, times=before.times + 1, silent=True)
            return None
        self._sent[key] = _Sent(now, lenient=lenient)
        return FIRST if before is None else Repetition(before.times + 1, now - before.at)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
