"""The pages of the site and their blocks, so that tests check what people read and copy."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
BESIDE: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "examples/README.md")
PAGES: Final = (*BESIDE, *sorted(each.relative_to(ROOT).as_posix() for each in DOCS.rglob("*.md")))
"""Paths of all documents in the repository but the list of changes."""
FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    kind: str
    text: str


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(*kinds: str) -> Iterator[Block]:
    """Yield the fenced blocks of these kinds (``sh``, ``console``, ``yaml``) of all pages."""
    for page in PAGES:
        yield from (Block(page, kind, text) for _, kind, text in FENCE.findall(read(page)) if kind in kinds)


def commands(block: Block) -> list[str]:
    """Return the commands of a block, each on one line; of a block with ``$`` those lines alone."""
    lines = block.text.replace("\\\n", " ").splitlines()
    prompted = [line.strip().removeprefix("$ ") for line in lines if line.strip().startswith("$ ")]
    return prompted or [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, without code blocks, tables, headings and comments."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    text = re.sub(r"^(?:    \S.*|#.*|\s*\|.*|!\[.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if words(part):
            yield re.sub(r"\s+", " ", part).strip()


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph at full stops, question and exclamation marks."""
    return [each for each in re.split(r"(?<=[.?!])[*_)\"]*\s+(?=\W*[A-Z0-9`])", paragraph) if words(each)]


def words(text: str) -> int:
    """Count the words; what is set as code is one."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", text)))
