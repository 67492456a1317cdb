"""What there is to say of mutants."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change that no test noticed.

    ``where`` is ``module:function``; ``was`` and ``now`` are the lines that differ, without their indentation. Line
    numbers and the tool's own names change with every edit, these do not.
    """

    where: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.where}\n  - {self.was}\n  + {self.now}"


@dataclass(frozen=True, slots=True)
class Module:
    """One module's mutants; ``tally`` counts them by what became of them, in the tool's words."""

    name: str
    tally: Mapping[str, int]
    survivors: tuple[Mutant, ...]

    @property
    def mutants(self) -> int:
        """How many there are."""
        return sum(self.tally.values())
