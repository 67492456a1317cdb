"""What an experiment says: one verdict on one hypothesis, the figures behind it, and every raw answer.

An experiment returns ``holds``, ``fails`` or ``not_measured``; the runner adds which experiment it was, how long it
took and the journal of what was asked and answered.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self


class Verdict(StrEnum):
    """``NOT_MEASURED`` says nothing about the hypothesis."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_MEASURED = "not-measured"


class Trouble(StrEnum):
    """Why nothing was measured although it should have been; such an experiment is run again on the next occasion."""

    NONE = ""
    ERROR = "error"
    TIMEOUT = "timeout"
    BUDGET = "budget"


class NotMeasurable(Exception):
    """Raised anywhere in an experiment: it cannot be measured here, and this sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One experiment's answer. ``figures`` and ``raw`` hold only what JSON can carry."""

    experiment: str = ""
    hypothesis: str = ""
    verdict: Verdict
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
    raw: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    trouble: Trouble = Trouble.NONE

    def of(self, experiment: str, hypothesis: str, seconds: float = 0.0, raw: list[Any] | None = None) -> Self:
        """The same, with the name of the experiment it belongs to; ``raw`` is appended."""
        return replace(
            self, experiment=experiment, hypothesis=hypothesis, seconds=round(seconds, 3), raw=[*self.raw, *(raw or [])]
        )

    def to_json(self) -> str:
        """One JSON object. Raises ``TypeError`` where a figure cannot be carried."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ``ValueError`` where it is not a result."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raises ``ValueError`` where it is not a result."""
        try:
            known = {**values, "verdict": Verdict(values["verdict"]), "trouble": Trouble(values.get("trouble", ""))}
            return cls(**known)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a result of an experiment: {error}") from error


def holds(reason: str, **figures: Any) -> Result:
    """The hypothesis was put to the test and held."""
    return Result(verdict=Verdict.HOLDS, reason=reason, figures=figures)


def fails(reason: str, **figures: Any) -> Result:
    """The hypothesis was put to the test and is false here."""
    return Result(verdict=Verdict.FAILS, reason=reason, figures=figures)


def not_measured(reason: str, trouble: Trouble = Trouble.NONE, **figures: Any) -> Result:
    """Nothing can be said."""
    return Result(verdict=Verdict.NOT_MEASURED, reason=reason, figures=figures, trouble=trouble)


def judged(wrong: list[str], right: str, **figures: Any) -> Result:
    """``holds`` with ``right`` where nothing is wrong, else ``fails`` with all that is wrong in one sentence."""
    return fails("; ".join(wrong), **figures) if wrong else holds(right, **figures)
