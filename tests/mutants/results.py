"""What the tool found, module by module: its own files in ``mutants/``, read once it has run."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from tests.mutants.model import Module, Mutant


def modules(root: Path) -> Iterator[Module]:
    """Read all of them. The working directory has to be ``root``: the tool's own reader looks there."""
    for meta in sorted((root / "mutants").rglob("*.py.meta")):
        source = meta.relative_to(root / "mutants").with_suffix("")
        codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
        status = {key: status_by_exit_code[code] for key, code in codes.items()}
        if status:
            survivors = tuple(_mutant(key, source) for key, said in status.items() if said in {"survived", "no tests"})
            yield Module(_dotted(source), Counter(status.values()), survivors)


def _mutant(key: str, source: Path) -> Mutant:
    function, owner = orig_function_and_class_names_from_key(key)
    lines = get_diff_for_mutant(key, path=source).splitlines()[2:]
    was, now = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return Mutant(f"{_dotted(source)}:{owner + '.' if owner else ''}{function}", was, now)


def _dotted(source: Path) -> str:
    return ".".join(source.with_suffix("").parts)
