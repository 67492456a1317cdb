"""House rule: identifiers and messages of the product use the words of docs/start/glossary.md. Pure."""

import ast
import re
from collections.abc import Iterator
from typing import Final

CLEAN: Final = ("certs", "enforcer", "gpushare", "sidecar", "webhook")
"""Packages that the rule holds for."""
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
            for word in BANNED.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found).lower()):
                yield getattr(node, "lineno", 1), word


def _texts(node: ast.AST, docstrings: set[int]) -> Iterator[str]:
    """Yield what a node names or says."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        return
    for field in ("id", "arg", "attr", "name"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield value
