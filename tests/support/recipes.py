"""The blocks of ``docs/operators/recipes.md``, so that tests run what readers copy."""

import re
from pathlib import Path
from typing import Final

RECIPES: Final = Path(__file__).resolve().parents[2] / "docs" / "operators" / "recipes.md"


def sections(text: str) -> dict[str, str]:
    """Heading of the second level → what stands below it."""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {head: body for head, _, body in (part.partition("\n") for part in parts)}


def block(head: str, number: int = 0) -> str:
    """One fenced block of a section. Raises ``KeyError`` or ``IndexError`` where there is none."""
    found: list[str] = re.findall(r"```\w*\n(.*?)```", sections(RECIPES.read_text())[head], re.DOTALL)
    return found[number]
