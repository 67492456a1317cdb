"""YAML as Kubernetes reads it: the scalars of ``sigs.k8s.io/yaml``, no duplicate keys, string keys, plain JSON data.

PyYAML on its own differs where it hurts: it makes ``12:30`` an integer, a date an object, and leaves ``1e3`` a string.
What is written has strings in quotes where any common reader would take them for something else.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NoReturn

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

_TOO_MANY: Final = (
    f"the document has more than {MAX_NODES:,} values after its aliases are expanded; remove aliases, or split it"
)
_QUOTE: Final = "put it in quotes, without a tag"
TOO_DEEP: Final = "the document is nested too deeply; write fewer levels of mappings and lists"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_STRING: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
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
_FOREIGN: Final = ("binary", "timestamp", "set", "omap", "pairs")
"""Tags of which YAML makes what JSON does not have."""


class _Loader(_Base):  # type: ignore[misc] # one of two bases, the C one where it is there
    """Reads scalars as Kubernetes does."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - PyYAML's own shape
    bool_values: Final = {**_Base.bool_values, "y": True, "n": False}

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """Return the tag of a value that was written without one; few distinct scalars make a manifest."""
        return _resolved(value) if kind is yaml.ScalarNode and implicit[0] else super().resolve(kind, value, implicit)


for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", Pattern(_pattern, MAX_BYTES), list(_first))


@lru_cache(4096)
def _resolved(plain: str) -> str:
    return str(super(_Loader, _OURS).resolve(yaml.ScalarNode, plain, (True, False)))


_OURS: Final[Any] = _Loader("")
_ELSEWHERE: Final[Any] = yaml.resolver.Resolver()


def long_number(digits: str) -> str:
    """Say that a number is too long to be one."""
    return f"the number has {len(digits)} digits; write a smaller number, or put text in quotes"


def no_number(digits: str) -> str:
    """Say that a number is too large, infinite or none at all."""
    return f"{digits:.40} is not a JSON number; put it in quotes"


def _integer(node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise _at(node, long_number(node.value))
    return int(_OURS.construct_yaml_int(node))


def _float(node: yaml.ScalarNode) -> float:
    value = float(_OURS.construct_yaml_float(node)) if len(node.value) <= MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise _at(node, no_number(node.value))
    return value


_SCALARS: Final[Mapping[str, Callable[[yaml.ScalarNode], Any]]] = {
    _STRING: attrgetter("value"),
    f"{_TAG}null": lambda _: None,
    f"{_TAG}bool": _OURS.construct_yaml_bool,
    f"{_TAG}int": _integer,
    f"{_TAG}float": _float,
}
_SHAPES: Final[Mapping[str, tuple[type[yaml.Node], str]]] = {
    **dict.fromkeys(_SCALARS, (yaml.ScalarNode, "one value")),
    f"{_TAG}seq": (yaml.SequenceNode, "a list"),
    f"{_TAG}map": (yaml.MappingNode, "a mapping"),
}
"""What may carry each of the tags that JSON has a value for. A tag that somebody wrote may stand at anything."""


class _Constructor:
    """Makes plain data of one document. What has no one meaning in JSON is refused where it stands."""

    def __init__(self) -> None:
        self._left = MAX_NODES
        self._above = set[int]()

    def value(self, node: yaml.Node) -> Any:
        """Return the value of a node; no two places share one."""
        self._left -= 1
        if self._left < 0:
            raise _at(node, _TOO_MANY)
        shape, wanted = _SHAPES.get(node.tag) or _refuse_tag(node)
        if not isinstance(node, shape):
            raise _at(node, f"{_source(node)} has the YAML tag {_tag(node)}, but is not {wanted}; remove the tag")
        return _scalar(node) if isinstance(node, yaml.ScalarNode) else self._collection(node)

    def _collection(self, node: yaml.Node) -> Any:
        if id(node) in self._above:
            raise _at(node, "an alias refers to a value that contains the alias; remove the alias")
        self._above.add(id(node))
        mapping = isinstance(node, yaml.MappingNode)
        found = self._mapping(node) if mapping else [self.value(part) for part in node.value]
        self._above.discard(id(node))
        return found

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        """Construct a mapping with string keys, each once; its own keys win over those merged in by ``<<``."""
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for part in _parts(value):
                    merged = self._merged(part) | merged
                continue
            name = _key(key)
            if name in own:
                raise _at(key, f"the key {quoted(name)} occurs twice in one mapping; remove one of the two")
            own[name] = self.value(value)
        return merged | own

    def _merged(self, node: yaml.Node) -> dict[str, Any]:
        found = self.value(node)
        if not isinstance(found, dict):
            raise _at(node, "the value of << must be a mapping or list of mappings")
        return found


def _scalar(node: yaml.ScalarNode) -> Any:
    try:
        return _SCALARS[node.tag](node)
    except RequestError:
        raise
    except Exception:  # noqa: BLE001 - PyYAML's constructors raise whatever their code runs into
        raise _at(node, f"{quoted(node.value)} cannot be read as {_tag(node)}; {_QUOTE}") from None


def _refuse_tag(node: yaml.Node) -> NoReturn:
    """Refuse what JSON does not have."""
    if node.tag.removeprefix(_TAG) not in _FOREIGN:
        raise _at(node, f"the YAML tag {node.tag!r:.80} is unknown; remove the tag")
    way_out = _QUOTE if isinstance(node, yaml.ScalarNode) else "remove the tag"
    raise _at(node, f"{_source(node)} has the YAML tag {_tag(node)}, which JSON does not support; {way_out}")


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
        raise RequestError(f"line {line}: {TOO_DEEP}") from None
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
    try:
        return _Constructor().value(node)
    except RecursionError:
        raise _at(node, TOO_DEEP) from None


def member(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of a key of a mapping, its own or merged in by ``<<``; ``None`` where there is none."""
    waiting, seen = [node], set[int]()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, yaml.MappingNode) or id(each) in seen:
            continue
        seen.add(id(each))
        pairs: list[tuple[yaml.Node, yaml.Node]] = each.value
        for name, value in pairs:
            if isinstance(name, yaml.ScalarNode) and name.tag != _MERGE and _key(name) == key:
                return value
        waiting += reversed([part for name, value in pairs if name.tag == _MERGE for part in _parts(value)])
    return None


def top(node: yaml.Node | None, key: str) -> str:
    """Return a string of a mapping without constructing it; empty when absent."""
    found = member(node, key)
    return str(found.value) if isinstance(found, yaml.ScalarNode) else ""


def aliases(text: str, node: yaml.Node) -> Iterator[tuple[int, int, Any]]:
    """Yield where each alias of a document starts and ends, and its value."""
    nodes = {each.start_mark.index: each for each in _within(node, set())}
    anchors = dict[str, int]()
    events: Iterator[Any] = yaml.parse(text, _Loader)
    for event in events:
        start, anchor = event.start_mark.index, getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            yield start, start + 1 + len(str(anchor)), construct(nodes[anchors[str(anchor)]])
        elif anchor is not None:
            anchors[anchor] = start


def _within(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    """Yield each node of a document once, inner ones after those around them."""
    if id(node) not in seen:
        seen.add(id(node))
        yield node
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        for part in parts:
            for each in part if isinstance(part, tuple) else (part,):
                yield from _within(each, seen)


def is_plain(text: str) -> bool:
    """Return whether any common YAML reader takes a text for a string where it is not quoted."""
    return all(each.resolve(yaml.ScalarNode, text, (True, False)) == _STRING for each in (_OURS, _ELSEWHERE))


class Misplaced(RequestError):
    """A value that cannot stand where it stands; ``line`` counts from 0 at the start of its own document."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def _at(node: yaml.Node, message: str) -> Misplaced:
    return Misplaced(message, node.start_mark.line)


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


_ENDLESS: Final = float("inf")


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and the dashes of a list below its key."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


class _Indented(_Dumper):
    """Writes the dashes of a list two columns to the right of its key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's
        super().increase_indent(flow, indentless=False)


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None if is_plain(value) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _string)


def dump(value: Any) -> str:
    """Write an object or a list as YAML: block style, order of keys kept, long lines left long, no anchors."""
    return _written(_Dumper, value)


def lines(value: Any, *, indented: bool) -> list[str]:
    """Write a small object or list as the lines of a block; ``indented`` is whether lists stand right of their keys."""
    return _small(_Indented if indented else _Dumper, json.dumps(value)).removesuffix("\n").split("\n")


def flow(value: Any) -> str:
    """Write any small value in one line, as it may stand between braces."""
    return _small(_Dumper, json.dumps([value]), in_line=True)[1:-2]


@lru_cache(1024)
def _small(dumper: type[_Dumper], source: str, *, in_line: bool = False) -> str:
    return _written(dumper, json.loads(source), in_line=in_line)


def _written(dumper: type[_Dumper], value: Mapping[str, Any] | list[Any], *, in_line: bool = False) -> str:
    return str(
        yaml.dump(value, None, dumper, default_flow_style=in_line, width=_ENDLESS, allow_unicode=True, sort_keys=False)
    )
