"""The cases, in the order in which they run: what matters most first, what takes the product away last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.gpu.parcel.cases import changes, departure, frameworks, limits, measures, sharing
from tests.gpu.parcel.scene import Scene


@dataclass(frozen=True, slots=True)
class Case:
    """One case: ``run`` returns the sentence of what came of it, or raises; ``limit_s`` is all it may take.

    ``keeps_s`` is what those before the last leave of the budget for it; ``needed``: without it no other can pass.
    """

    number: int
    name: str
    limit_s: float
    run: Callable[[Scene], str]
    keeps_s: float = 0.0
    needed: bool = False


CASES: Sequence[Case] = (
    Case(1, "first-share", 60, sharing.first_share, needed=True),
    Case(2, "framework-refused", 60, limits.framework_refused),
    Case(3, "several-processes", 75, limits.several_processes),
    Case(4, "hidden-memory", 45, limits.hidden_memory),
    Case(10, "overhead", 75, measures.overhead),
    Case(6, "resize", 50, changes.resize),
    Case(7, "mps-replaced", 100, changes.mps_replaced),
    Case(9, "views", 60, measures.views),
    Case(5, "frameworks", 90, frameworks.examples),
    Case(8, "departure", 100, departure.departure, keeps_s=60),
)


def chosen(only: str) -> list[Case]:
    """The cases named by name or number, all where none is. Raises ``ValueError``."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    unknown = [word for word in words if not any(word in {each.name, str(each.number)} for each in CASES)]
    if unknown:
        raise ValueError(f"no case {', '.join(unknown)}; there are {', '.join(each.name for each in CASES)}")
    return [each for each in CASES if not words or {each.name, str(each.number)} & set(words)]
