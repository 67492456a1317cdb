"""YAML as Kubernetes reads it: the scalars of ``sigs.k8s.io/yaml``, no duplicate keys, string keys, plain JSON data.

PyYAML on its own differs where it hurts: it makes ``12:30`` an integer, a date an object, and leaves ``1e3`` a string.
"""

import math
from collections.abc import Hashable
from typing import Any, Final

import yaml

from gpushare.errors import RequestError
from gpushare.patterns import Pattern
from gpushare.quantity import quoted

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a manifest."""
MAX_DIGITS: Final = 400
"""Digits of one number; Python reads no more than 4300, and nobody means so many."""
MAX_NODES: Final = 1_000_000
"""Values one document may have once its aliases are written out; the largest CRD bundles have some 100,000."""

_HELM: Final = "if this is a Helm template, render it first: helm template ... | gpu-share inject -f -"

_QUOTE: Final = "put it in quotes, without a tag"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = {
    "bool": (r"(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", "yYnNtTfFoO"),
    "int": (r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$", "-+0123456789"),
    "float": (
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
    "merge": (r"<<$", "<"),
    "null": (r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
}
_SHAPES: Final[dict[str, tuple[type[yaml.Node], str]]] = {
    **{f"{_TAG}{name}": (yaml.ScalarNode, "one value") for name in ("null", "bool", "int", "float", "str")},
    f"{_TAG}seq": (yaml.SequenceNode, "a list"),
    f"{_TAG}map": (yaml.MappingNode, "a mapping"),
}
"""What may carry each of the tags that JSON has a value for. A tag that somebody wrote may stand at anything."""
_FOREIGN: Final = ("binary", "timestamp", "set", "omap", "pairs")
"""Tags of which YAML makes what JSON does not have."""


class _Loader(_Base):  # type: ignore[misc] # one of two bases, the C one where it is there
    """Reads scalars as Kubernetes does and refuses what has no one meaning."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - PyYAML's own shape
    bool_values: Final = {**_Base.bool_values, "y": True, "n": False}

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's own
        """Construct one value; what cannot be is refused where it stands, whatever PyYAML makes of it."""
        shape, wanted = _SHAPES.get(node.tag, (yaml.Node, ""))
        if not isinstance(node, shape):
            raise _at(node, f"{_source(node)} has the YAML tag {_tag(node)}, but is not {wanted}; remove the tag")
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep=deep)
        try:
            return super().construct_object(node, deep=deep)
        except (yaml.MarkedYAMLError, RequestError, RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - PyYAML's constructors raise whatever their code runs into
            raise _at(node, f"{quoted(node.value)} cannot be read as {_tag(node)}; {_QUOTE}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Construct a mapping with string keys, each once; ``<<`` is merged without touching the node."""
        merged: dict[Hashable, Any] = {}
        own: dict[Hashable, Any] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for part in _parts(value):
                    merged = self._mapping(part) | merged
                continue
            name = _key(key)
            if name in own:
                raise _at(key, f"the key {quoted(name)} occurs twice in one mapping; remove one of the two")
            own[name] = self.construct_object(value, deep=deep)
        return merged | own

    def _mapping(self, node: yaml.Node) -> dict[Hashable, Any]:
        found = self.construct_object(node, deep=True)
        if not isinstance(found, dict):
            raise _at(node, "the value of << must be a mapping or list of mappings")
        return found


for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", Pattern(_pattern, MAX_BYTES), list(_first))


_OURS: Final[Any] = _Loader("")
_ELSEWHERE: Final[Any] = yaml.resolver.Resolver()


def long_number(digits: str) -> str:
    """Say that a number is too long to be one."""
    return f"the number has {len(digits)} digits; write a smaller number, or put text in quotes"


def no_number(digits: str) -> str:
    """Say that a number is too large, infinite or none at all."""
    return f"{digits:.40} is not a JSON number; put it in quotes"


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise _at(node, long_number(node.value))
    return int(loader.construct_yaml_int(node))


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = float(loader.construct_yaml_float(node)) if len(node.value) <= MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise _at(node, no_number(node.value))
    return value


def _foreign(_loader: _Loader, node: yaml.Node) -> Any:
    """Refuse what JSON does not have."""
    way_out = _QUOTE if isinstance(node, yaml.ScalarNode) else "remove the tag"
    raise _at(node, f"{_source(node)} has the YAML tag {_tag(node)}, which JSON does not support; {way_out}")


_Loader.add_constructor(f"{_TAG}int", _integer)
_Loader.add_constructor(f"{_TAG}float", _float)
for _name in _FOREIGN:
    _Loader.add_constructor(f"{_TAG}{_name}", _foreign)


def parse(text: str, line: int = 1) -> yaml.Node | None:
    """Compose one document without constructing it; ``None`` when it is empty.

    Raises:
        RequestError: not YAML, or more than one document; the line counts from ``line``.
    """
    loader = _Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise RequestError(_sentence(error, text, line)) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise RequestError(f"line {line}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise RequestError(f"line {line}: the document is nested too deeply") from None
    finally:
        loader.dispose()
    return None if node is not None and node.tag == f"{_TAG}null" else node


def construct(node: yaml.Node | None) -> Any:
    """Return the value of a composed document as plain JSON data, aliases written out.

    Raises:
        RequestError: a duplicate key, a tag of another language, a value JSON does not have, or too many aliases.
    """
    if node is None:
        return None
    loader = _Loader("")
    try:
        value = loader.construct_document(node)
        _count(value, {}, set())
        return _plain(value)
    except yaml.MarkedYAMLError as error:
        raise _at(node, str(error.problem), error.problem_mark) from None
    except ValueError as error:
        raise _at(node, str(error)) from None
    except RecursionError:
        raise _at(node, "the document is nested too deeply") from None
    finally:
        loader.dispose()


def top(node: yaml.Node | None, key: str) -> str:
    """Return a string of a mapping, its own or merged in by ``<<``, without constructing it; empty when absent."""
    waiting, seen = [node], set[int]()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, yaml.MappingNode) or id(each) in seen:
            continue
        seen.add(id(each))
        for name, value in each.value:
            if isinstance(name, yaml.ScalarNode) and name.tag != f"{_TAG}merge" and name.value == key:
                return str(value.value) if isinstance(value, yaml.ScalarNode) else ""
        waiting += reversed(
            [part for name, value in each.value if name.tag == f"{_TAG}merge" for part in _parts(value)]
        )
    return ""


def is_plain(text: str) -> bool:
    """Return whether any common YAML reader takes a text for a string where it is not quoted."""
    return all(each.resolve(yaml.ScalarNode, text, (True, False)) == f"{_TAG}str" for each in (_OURS, _ELSEWHERE))


class Misplaced(RequestError):
    """A value that cannot stand where it stands; ``line`` counts from 0 at the start of its own document."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def _at(node: yaml.Node, message: str, mark: Any = None) -> Misplaced:
    return Misplaced(message, (mark or node.start_mark).line)


def _parts(merged: yaml.Node) -> list[yaml.Node]:
    """Return what a ``<<`` merges, the first of which wins."""
    return list(merged.value) if isinstance(merged, yaml.SequenceNode) else [merged]


def _source(node: yaml.Node) -> str:
    """Return a value as it is written, or what it is where that is long."""
    if isinstance(node, yaml.ScalarNode):
        return quoted(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _tag(node: yaml.Node) -> str:
    """Return a tag as people write it."""
    return str(node.tag).replace(_TAG, "!!", 1)


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _at(node, f"a key must be a string; {_HELM}")
    if node.tag == f"{_TAG}bool":
        return "true" if node.value.lower() in {"y", "yes", "true", "on"} else "false"
    return str(node.value)


def _sentence(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    mark = error.problem_mark or error.context_mark
    at = min(mark.line if mark is not None else 0, text.rstrip().count("\n"))
    problem = " ".join(part for part in (error.problem, error.context) if part)
    lines = text.split("\n")
    source = lines[at] if at < len(lines) else ""
    return f"line {line + at}: not YAML: {problem}{_hint(source)}"


def _hint(source: str) -> str:
    if "{{" in source:
        return f"; {_HELM}"
    if "\t" in source[: len(source) - len(source.lstrip())]:
        return "; indent with spaces, never with tabs"
    return ""


def _count(value: Any, sizes: dict[int, int], above: set[int]) -> int:
    """Return how many values there are with every alias written out, in time linear in what was read."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) in above:
        raise ValueError("an alias refers to a value that contains the alias; remove the alias")
    if id(value) not in sizes:
        above.add(id(value))
        parts = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_count(part, sizes, above) for part in parts)
        above.discard(id(value))
    if sizes[id(value)] > MAX_NODES:
        raise ValueError(
            f"the document has more than {MAX_NODES:,} values after its aliases are expanded; remove "
            "aliases, or split it"
        )
    return sizes[id(value)]


def _plain(value: Any) -> Any:
    """Copy, so that nothing is shared between two places."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
