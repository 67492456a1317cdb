"""The texts that the product prints: strings of its programs and messages of its policies, with constants filled in."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("certs", "enforcer", "gpushare", "gpushare_cli", "sidecar", "webhook")
FILLED: Final = "xx"
"""Stands where a value is filled in that only a running program knows."""
_FIELD: Final = re.compile(r"(?<!\{)\{[\w.:%]*\}(?!\})")
"""A field of ``str.format``."""
_CEL: Final = re.compile(r'"([^"]*)"')


class Message(NamedTuple):
    """One text, and the line that it begins on."""

    path: str
    line: int
    text: str


@cache
def messages() -> tuple[Message, ...]:
    """Return the strings of more than two words, without docstrings, then the messages of policies and chart."""
    files = [file for part in PRODUCT for file in sorted((ROOT / part).rglob("*.py")) if "_pb2" not in file.name]
    return (*(found for file in files for found in _of_file(file)), *_of_policies(), *_of_chart())


def _of_file(file: Path) -> Iterator[Message]:
    path = file.relative_to(ROOT)
    names = vars(importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__")))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) for part in _inner(node)}
    for node in ast.walk(tree):
        if id(node) not in parts and (text := _text(node, names)).count(" ") > 1:
            yield Message(path.as_posix(), node.lineno, text)  # type: ignore[attr-defined] # it has


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is no text of its own: parts of a larger one, formats, docstrings."""
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.FormattedValue) and node.format_spec:
        yield from (node.format_spec, *ast.walk(node.format_spec))
    elif isinstance(node, ast.Expr):
        yield node.value


def _text(node: ast.AST, names: dict[str, Any]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _value(node.value, names)
    return _FIELD.sub(FILLED, node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _value(node: ast.expr, names: dict[str, Any]) -> str:
    """Return the value of a constant, such as ``contract.MEMORY``."""
    if not re.fullmatch(r"(?:\w+\.)*_?[A-Z][A-Z_]+", expression := ast.unparse(node)):
        return FILLED
    first, *rest = expression.split(".")
    value = names.get(first, FILLED)
    for each in rest:
        value = getattr(value, each, FILLED)
    return _FIELD.sub(FILLED, str(value))


def _of_policies() -> Iterator[Message]:
    manifest = "deploy/manifests/install.yaml"
    for each in yaml.safe_load_all((ROOT / manifest).read_text(encoding="utf-8")):
        for one in each["spec"]["validations"] if each["kind"] == "ValidatingAdmissionPolicy" else ():
            written = FILLED.join(_CEL.findall(one.get("messageExpression", "")))
            yield from (Message(manifest, 1, text) for text in (one.get("message"), written) if text)


def _of_chart() -> Iterator[Message]:
    """Yield what helm prints after an installation and in place of one, and what alerts say."""
    found = {"NOTES.txt": r"(.+)", "validate.yaml": r'"([^"\n]* [^"\n]* [^"\n]*)"', "alerts.yaml": r"(.+[a-z]{3}\.)\n"}
    for name, pattern in found.items():
        path = f"deploy/helm/gpu-share/templates/{name}"
        text = (ROOT / path).read_text(encoding="utf-8")
        filled = text if name == "validate.yaml" else re.sub(r"\{\{.*?\}\}(?:`\}\})?", FILLED, text)
        yield from (Message(path, 1, each) for each in re.findall(pattern, filled))
