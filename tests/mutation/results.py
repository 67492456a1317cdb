"""What the tool found, module by module: its own files in ``mutants/``, read once it has run."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from tests.mutation.model import Module, Mutant

SURVIVED: Final = frozenset({"survived", "no tests"})
LATE: Final = frozenset({"timeout"})
"""Worth another look: with less at once there may be time enough to tell a hang from a busy machine."""
DOUBTFUL: Final = SURVIVED | LATE | {"not checked"}
"""The same after a while: there may be tests for it now."""


def modules(root: Path) -> Iterator[Module]:
    """Read all of them. The working directory has to be ``root``: the tool's own reader looks there."""
    for source, status in _found(root):
        alive = tuple(_mutant(key, source) for key, result in status.items() if result in SURVIVED)
        yield Module(_dotted(source), Counter(status.values()), alive)


def called(root: Path, names: Collection[str], words: Collection[str]) -> list[str]:
    """List mutants of these modules (all, if none is named) of which the tool says one of ``words``."""
    found = [(source, status) for source, status in _found(root) if not names or _dotted(source) in names]
    return [key for _, status in found for key, result in status.items() if result in words]


def keys(root: Path, mutants: Collection[Mutant]) -> list[str]:
    """What the tool calls these. The working directory has to be ``root``."""
    functions = {each.where for each in mutants}  # to find out what a key changes takes long
    found = [(key, source) for source, status in _found(root) for key in status if _where(key, source) in functions]
    return [key for key, source in found if _mutant(key, source) in mutants]


def _found(root: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Each module's file, and what became of its mutants in the tool's words."""
    for meta in sorted((root / "mutants").rglob("*.py.meta")):
        codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
        if codes:
            source = meta.relative_to(root / "mutants").with_suffix("")
            yield source, {key: status_by_exit_code[code] for key, code in codes.items()}


def _mutant(key: str, source: Path) -> Mutant:
    lines = get_diff_for_mutant(key, path=source).splitlines()[2:]
    was, now = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return Mutant(_where(key, source), was, now)


def _where(key: str, source: Path) -> str:
    function, owner = orig_function_and_class_names_from_key(key)
    return f"{_dotted(source)}:{owner + '.' if owner else ''}{function}"


def _dotted(source: Path) -> str:
    return ".".join(source.with_suffix("").parts)
