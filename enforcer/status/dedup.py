"""Who goes over the quota and back, again and again, is told once; what comes after is counted. Pure.

A container that stays just below its grace period would else make an Event and a record every few seconds, for as long
as it likes. An attempt to end it closes the account: what comes after is told anew.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from enforcer.detection.detector import container_key
from enforcer.detection.kill_history import ContainerKey
from enforcer.detection.types import Decision, KillDecision

QUIET: Final = 300.0
"""Seconds after something was told in which the same of the same container is only counted."""
_COUNTED: Final = frozenset({Decision.WARNED, Decision.IN_DEBT, Decision.RATE_LIMITED, Decision.BREAKER_OPEN})
Key = tuple[ContainerKey, str, Decision]


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often something happened in how many seconds, since it was told last; once where it was not told lately."""

    times: int = 1
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """Say it after a sentence's subject; empty where there is nothing to say."""
        if self.times == 1:
            return ""
        return f", for the {_ordinal(self.times)} time in {max(1, round(self.seconds / 60))} min"


ONCE: Final = Repetition()


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    times: int = 1
    silent: bool = False
    """Whether what happened last was only counted."""
    lenient: bool = False
    """Whether it was told that nothing more is done."""


@dataclass(slots=True)
class EventDeduplicator:
    """What was told of whom, and when. Seconds on any clock that goes forward."""

    quiet: float = QUIET
    _told: dict[Key, _Told] = field(default_factory=dict)

    def heard(self, verdict: KillDecision, now: float) -> Repetition | None:
        """Take in a verdict, and say how often there was one like it; ``None`` where it is not to be told."""
        place, gpu = container_key(verdict.quota), verdict.quota.gpu
        if verdict.decision is Decision.KILL:
            self._told = {key: told for key, told in self._told.items() if key[0] != place}
        if verdict.decision is Decision.BACK_UNDER:
            warned = self._told.get((place, gpu, Decision.WARNED))
            return None if warned is not None and warned.silent else ONCE
        if verdict.decision not in _COUNTED:
            return ONCE
        return self._counted((place, gpu, verdict.decision), now, lenient=verdict.kill_in is None)

    def _counted(self, key: Key, now: float, *, lenient: bool) -> Repetition | None:
        self._told = {each: told for each, told in self._told.items() if now - told.at < 2 * self.quiet}
        before = self._told.get(key)
        if before is not None and before.lenient and not lenient:
            before = None  # that it may be ended by now is news
        if before is not None and now - before.at < self.quiet:
            self._told[key] = replace(before, times=before.times + 1, silent=True)
            return None
        self._told[key] = _Told(now, lenient=lenient)
        return ONCE if before is None else Repetition(before.times + 1, now - before.at)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
