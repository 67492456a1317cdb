"""House rule: identifiers, messages and charts use the words of docs/start/glossary.md. Pure."""

import ast
import re
from collections.abc import Iterator
from typing import Final

CLEAN: Final = (
    "certs", "enforcer", "gpushare", "gpushare_cli", "sidecar", "webhook",
    "tests/demo", "tests/e2e", "tests/fakes", "tests/support", "tests/testbed/cluster", "tests/testbed/vm",
)  # fmt: skip
"""Folders whose Python files the rule holds for."""
CLEAN_TEXTS: Final = ("deploy", "examples")
"""Folders of charts and manifests, in which comments count as well."""
BANNED: Final = re.compile(
    r"(?<![a-z])(anew|aside|deeds?|desks?|held|ill|inquests?|judge[sd]?|judging|lanes?|outlooks?|pursuits?|said|scribes?|"
    r"tid(?:y|ied|ying)|told|verdicts?|vigils?|whoever|wish(?:e[sd])?)(?![a-z])"
)
"""The words that docs/start/glossary.md lists, in lower case."""


def private_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each banned word in an identifier or in a string that is no docstring."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for found in _texts(node, docstrings):
            for word in _banned(found):
                yield getattr(node, "lineno", 1), word


def private_words_of_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each banned word in a file that is not Python."""
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
