"""Why some mutants may survive: ``explained.toml``, held against those that do."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.model import Module, Mutant

FILE: Final = Path(__file__).with_name("explained.toml")
DECIDED: Final = frozenset({"killed", "timeout", "survived", "no tests"})
"""What the tool says of a mutant that was tried to the end."""


@dataclass(frozen=True, slots=True)
class Count:
    """One row of the table."""

    module: str
    mutants: int
    killed: int
    survived: int
    explained: int


def load(file: Path = FILE) -> dict[Mutant, str]:
    """Read which mutants are explained, and how. Raises ``KeyError`` where an entry lacks one of its four texts."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
    return {Mutant(each["where"], each["was"], each["now"]): each["why"] for each in entries}


def counted(ran: Sequence[Module], why: dict[Mutant, str]) -> tuple[list[Count], list[str]]:
    """Count each module's mutants, and say what is wrong: survivors unexplained, explanations of none, mutants untried.

    A mutant that hangs its tests is killed: they have a limit.
    """
    rows = [
        Count(
            each.name, each.mutants, each.tally.get("killed", 0) + each.tally.get("timeout", 0), len(each.survivors),
            sum(mutant in why for mutant in each.survivors),
        )
        for each in ran
    ]  # fmt: skip
    alive = _alive(ran)
    problems = [f"survives and is not explained: {each}" for each in sorted(alive - why.keys(), key=str)]
    problems += [f"{FILE.name} explains what does not survive: {each}" for each in dead(ran, why)]
    untried = {each.name: sorted(each.tally.keys() - DECIDED) for each in ran}
    return rows, problems + [f"{name}: mutants are {', '.join(words)}" for name, words in untried.items() if words]


def dead(ran: Sequence[Module], why: Iterable[Mutant]) -> list[Mutant]:
    """Those of ``why`` that did not survive, of the modules that ran."""
    alive, names = _alive(ran), {each.name for each in ran}
    return [mutant for mutant in why if mutant.where.partition(":")[0] in names and mutant not in alive]


def _alive(ran: Sequence[Module]) -> set[Mutant]:
    return {mutant for each in ran for mutant in each.survivors}
