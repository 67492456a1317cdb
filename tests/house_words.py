"""House rule: identifiers, messages and charts use the words of docs/start/glossary.md. Pure."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

CLEAN: Final = ("certs", "deploy", "enforcer", "examples", "gpushare", "gpushare_cli", "sidecar", "webhook")
"""Folders whose files are checked as a whole, with comments and docstrings."""
CLEAN_CODE: Final = (
    "tests/attack", "tests/demo", "tests/e2e", "tests/fakes", "tests/golden", "tests/mutation", "tests/support",
    "tests/testbed",
)  # fmt: skip
"""Folders whose Python files are checked for identifiers and strings that are no docstrings."""
BANNED: Final = re.compile(
    r"(?<![a-z])(anew|aside|deeds?|desks?|held|ill|inquests?|judge[sd]?|judging|lanes?|outlooks?|pursuits?|said|scribes?|"
    r"tid(?:y|ied|ying)|told|verdicts?|vigils?|whoever|wish(?:e[sd])?)(?![a-z])"
)
"""The words that docs/start/glossary.md lists, in lower case."""


def breaches(path: str, text: str) -> list[str]:
    """Return the breaches of one file as ``path:line: sentence``."""
    if _is_below(path, CLEAN):
        found = words_of_text(text)
    elif path.endswith(".py") and _is_below(path, CLEAN_CODE):
        found = words_of_code(text)
    else:
        return []
    return [
        f"{path}:{line}: {word!r} is a private word; docs/start/glossary.md has the field's" for line, word in found
    ]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in folders))


def words_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each banned word in an identifier or in a string that is no docstring."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for found in _texts(node, docstrings):
            for word in _banned(found):
                yield getattr(node, "lineno", 1), word


def words_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each banned word in a text."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in _banned(line):
            yield number, word


def _banned(text: str) -> list[str]:
    """Return the banned words of a text; a word of a camelCase name counts."""
    return BANNED.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower())


def _texts(node: ast.AST, docstrings: set[int]) -> Iterator[str]:
    """Yield the identifiers and the string of a node."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        return
    for field in ("id", "arg", "attr", "name"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield value
