"""Write YAML with ``ruamel.yaml``: plain data, or a document with a JSON patch applied and its comments kept.

What a text means is decided by ``kube_yaml`` alone: a patched text that does not read as it should is not used.
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import jsonpatch
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString
from ruamel.yaml.util import load_yaml_guess_indent

from gpushare_cli.inject.kube_yaml import construct, is_plain, parse

MAX_PATCHED: Final = 100_000
"""Characters, as JSON, of a document whose comments are kept: reading them takes seconds for so many."""
_WIDTH: Final = 1 << 30


def dump(value: Any) -> str:
    """Write an object or a list as YAML: block style, order of keys kept, long lines left long, no anchors."""
    return _written(_writer(), _writable(value))


def patched(text: str, operations: Sequence[Mapping[str, Any]], value: Any) -> str:
    """Write a document with a JSON patch applied, its comments and its style kept where that is possible.

    Args:
        text: the document, without a separator line.
        operations: of the patch.
        value: what the document is after the patch.
    """
    expected = json.dumps(value)
    if len(expected) <= MAX_PATCHED:
        with suppress(Exception):  # ruamel.yaml and jsonpatch raise whatever their code runs into
            found = _patched(text, operations)
            if json.dumps(construct(parse(found))) == expected:
                return found
    return dump(value)


def _patched(text: str, operations: Sequence[Mapping[str, Any]]) -> str:
    writer = _writer()
    tree, writer.sequence_indent, writer.sequence_dash_offset = load_yaml_guess_indent(text, yaml=writer)
    _unshare(tree, set())
    jsonpatch.apply_patch(tree, _writable(list(operations)), in_place=True)
    return _written(writer, tree)


def _unshare(node: Any, seen: set[int]) -> None:
    """Write aliases out, so that a patch changes one place."""
    for key, part in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if id(part) in seen:
            node[key] = _writable(part)
        elif isinstance(part, dict | list):
            seen.add(id(part))
            _unshare(part, seen)


def _writer() -> YAML:
    writer = YAML()
    writer.preserve_quotes = True
    writer.width = _WIDTH
    return writer


def _written(writer: YAML, tree: Any) -> str:
    out = io.StringIO()
    writer.dump(tree, out)
    return out.getvalue()


def _writable(value: Any) -> Any:
    """Copy plain data, and mark the strings that are not to be written plainly."""
    if isinstance(value, dict):
        return {_writable(key): _writable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_writable(part) for part in value]
    if not isinstance(value, str):
        return value
    if "\n" in value:
        return LiteralScalarString(value)
    return value if is_plain(value) else SingleQuotedScalarString(value)
