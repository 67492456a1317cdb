"""Apply a JSON patch to the text of a YAML document, at the places where the parser found its values.

Lines that the patch does not concern stay as they are. The splicing knows the shapes that manifests have. What comes
out is therefore read again, and not used unless it is what the patch makes of the document.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gpushare.errors import RequestError
from gpushare_cli.inject.kube_yaml import aliases, construct, flow, lines, member, parse

Edit = tuple[int, int, int, str]
"""Where it starts, how deep it stands as a negative number, where it ends, and the new text."""
_STEP: Final = 2
"""Columns that a value is right of its key."""


@dataclass(frozen=True, slots=True)
class _New:
    """An item that the patch adds to a list."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Place:
    """A mapping or list, how deep it stands, what the patch adds to it, and the keys that it removes."""

    node: yaml.CollectionNode
    depth: int
    in_line: bool
    keys: dict[str, Any] = field(default_factory=dict)
    items: list[yaml.Node | _New] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)


def patched(text: str, node: yaml.Node | None, operations: Sequence[Mapping[str, Any]], value: Any) -> str | None:
    """Return the text of a document with a JSON patch applied; ``None`` where it has to be written again as a whole.

    Args:
        text: the document, which may start with a separator line.
        node: what the text was composed to.
        operations: of the patch.
        value: what the document is after the patch.
    """
    if node is None:
        return None
    expected = json.dumps(value)
    for source, root in _versions(text, node):
        with suppress(LookupError, RequestError):
            found = _Splicer(source, root).spliced(operations)
            if json.dumps(construct(parse(found))) == expected:
                return found
    return None


def _versions(text: str, node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Yield a document, and then the same with its aliases written out, so that a patch changes one place."""
    yield text, node
    if edits := [(start, 0, end, flow(value)) for start, end, value in aliases(text, node)]:
        plain = _joined(text, edits)
        if (root := parse(plain)) is not None:
            yield plain, root


def _joined(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with all edits made; of several at one place the deepest comes first."""
    pieces, done = list[str](), 0
    for start, _, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[done:start], new]
        done = end
    return "".join([*pieces, text[done:]])


class _Splicer:
    """One document and the edits to it."""

    def __init__(self, text: str, root: yaml.Node) -> None:
        self._text, self._root = text, root
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._list_step = next(_list_steps(root), 0)
        self._edits: list[Edit] = []
        self._places: dict[int, _Place] = {}

    def spliced(self, operations: Sequence[Mapping[str, Any]]) -> str:
        """Return the text with all operations applied. Raises ``LookupError`` for one that cannot be placed."""
        for operation in operations:
            self._put(operation["op"], _steps(operation["path"]), operation.get("value"))
        for place in self._places.values():
            if place.gone:
                self._remove_keys(place)
            if place.keys:
                self._write_keys(place)
            self._write_items(place)
        return _joined(self._text, self._edits)

    def _put(self, op: str, path: Sequence[str], value: Any) -> None:
        place, step = self._at(path[:-1]), path[-1]
        if isinstance(place.node, yaml.SequenceNode) and op == "add":
            place.items.insert(len(place.items) if step == "-" else int(step), _New(value))
        elif isinstance(place.node, yaml.SequenceNode):
            self._replace(place, self._child(place.node, step), value)
        elif op == "remove":
            place.gone.add(step)
        elif (old := member(place.node, step)) is not None:
            self._replace(place, old, value)
        else:
            place.keys[step] = value

    def _at(self, path: Sequence[str]) -> _Place:
        """Return the mapping or list at a path."""
        node, in_line = self._root, False
        for step in path:
            in_line = in_line or bool(getattr(node, "flow_style", False))
            node = self._child(node, step)
        if isinstance(node, yaml.CollectionNode):
            items = list(node.value) if isinstance(node, yaml.SequenceNode) else []
            place = _Place(node, len(path), in_line or bool(node.flow_style), items=items)
            return self._places.setdefault(id(node), place)
        raise LookupError(path)

    def _child(self, node: yaml.Node, step: str) -> yaml.Node:
        """Return the value below a node; what the patch added has no node."""
        found: yaml.Node | _New | None
        if isinstance(node, yaml.SequenceNode):
            place = self._places.get(id(node))
            found = (place.items if place else node.value)[int(step)]
        else:
            found = member(node, step)
        if isinstance(found, yaml.Node):
            return found
        raise LookupError(step)

    def _replace(self, place: _Place, old: yaml.Node, value: Any) -> None:
        """Write a value over another; a block that cannot start beside its key stands below it."""
        start, end = _start(old), self._end(old)
        if place.in_line or not (value and isinstance(value, dict | list)):
            space = "" if self._text[start - 1 : start].isspace() else " "
            self._edit(place, start, end, space + flow(value))
        elif isinstance(place.node, yaml.SequenceNode) or _is_block(old):
            self._edit(place, start, end, self._block(value, old.start_mark.column))
        else:
            self._edit(place, start, end, "")
            step = self._list_step if isinstance(value, list) else _STEP
            self._below(place, end, value, self._column(place) + step)

    def _remove_keys(self, place: _Place) -> None:
        """Remove keys with their lines; a line that holds a comment alone stays."""
        pairs = place.node.value
        kept = [number for number, (key, _) in enumerate(pairs) if key.value not in place.gone]
        if len(pairs) - len(kept) != len(place.gone):  # one of them is merged in
            raise LookupError(place.gone)
        ends = [(_start(key), self._end(value)) for key, value in pairs]
        if place.in_line:
            self._remove_in_line(place, ends, kept)
            return
        for number, (start, end) in enumerate(ends):
            if number not in kept:
                self._remove_lines(place, start, self._line_end(end), ends[number + 1 :])

    def _remove_in_line(self, place: _Place, ends: list[tuple[int, int]], kept: list[int]) -> None:
        last = kept[-1] if kept else -1
        for number in set(range(last)) - set(kept):
            self._edit(place, ends[number][0], ends[number + 1][0], "")
        if last + 1 < len(ends):
            self._edit(place, ends[last][1] if kept else ends[0][0], ends[-1][1], "")

    def _remove_lines(self, place: _Place, start: int, end: int, later: list[tuple[int, int]]) -> None:
        line = self._text.rfind("\n", 0, start) + 1
        comments = [each for each in self._text[start:end].splitlines() if each.lstrip().startswith("#")]
        if line and not self._text[line:start].strip():
            start = line - len(self._newline)
        elif later and not comments and not self._text[end : later[0][0]].strip():
            end = later[0][0]  # the next key goes where this one was
        else:
            start = line + len(self._text[line:start].rstrip())
        self._edit(place, start, end, "".join(self._newline + each for each in comments))

    def _write_keys(self, place: _Place) -> None:
        if place.in_line:
            self._write_last(place, flow(place.keys)[1:-1])
        else:
            self._below(place, self._end(place.node), place.keys, self._column(place))

    def _write_items(self, place: _Place) -> None:
        """Write new items before the item that follows them, or after the last one."""
        new = list[Any]()
        for item in place.items:
            if isinstance(item, _New):
                new.append(item.value)
            elif new:
                self._write_before(place, item, new)
                new = []
        if new and place.in_line:
            self._write_last(place, flow(new)[1:-1])
        elif new:
            self._below(place, self._end(place.node), new, self._column(place))

    def _write_before(self, place: _Place, item: yaml.Node, new: list[Any]) -> None:
        if place.in_line:
            at, text = _start(item), flow(new)[1:-1] + ", "
        else:
            at, column = self._dash(place.node, item), self._column(place)
            text = f"{self._block(new, column)}{self._newline}{' ' * column}"
        self._edit(place, at, at, text)

    def _write_last(self, place: _Place, text: str) -> None:
        """Write what goes before the closing brace or bracket."""
        parts = place.node.value
        at = self._end(place.node, inside=True) if parts else _end(place.node) - 1
        self._edit(place, at, at, f", {text}" if len(parts) > len(place.gone) else text)

    def _column(self, place: _Place) -> int:
        """Return where the keys or dashes of a block stand."""
        first = place.node.value[0]
        if isinstance(place.node, yaml.MappingNode):
            return int(first[0].start_mark.column)
        dash = self._dash(place.node, first)
        return dash - self._text.rfind("\n", 0, dash) - 1

    def _dash(self, node: yaml.Node, item: yaml.Node) -> int:
        at = _start(node)  # of the first dash, where no anchor stands before it
        return at if item is node.value[0] and self._text[at] == "-" else self._text.rfind("-", 0, _start(item))

    def _edit(self, place: _Place, start: int, end: int, new: str) -> None:
        self._edits.append((start, -place.depth, end, new))

    def _below(self, place: _Place, at: int, value: Any, column: int) -> None:
        """Write a block on the lines below a place."""
        end = self._line_end(at)
        self._edit(place, end, end, f"{self._newline}{' ' * column}{self._block(value, column)}")

    def _block(self, value: Any, column: int) -> str:
        """Return a block whose first line goes where it is put; the others start at a column."""
        first, *others = lines(value, indented=self._list_step > 0)
        return self._newline.join([first, *(" " * column + line if line else line for line in others)])

    def _end(self, node: yaml.Node, *, inside: bool = False) -> int:
        """Return where the content of a value ends; the parser's mark of a block is after the comments below it."""
        if not (_is_block(node) or inside):
            end = _end(node)
            return self._line_end(end - 1) if self._text[end - 1] == "\n" else end
        last = node.value[-1]
        # The content of an alias stands further up.
        return max(_end(last[0]), self._end(last[1])) if isinstance(last, tuple) else self._end(last)

    def _line_end(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end - (self._text[end - 1] == "\r")


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _start(node: yaml.Node) -> int:
    return int(node.start_mark.index)


def _end(node: yaml.Node) -> int:
    return int(node.end_mark.index)


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _list_steps(node: yaml.Node) -> Iterator[int]:
    """Yield how many columns the dashes of each list in blocks are right of its key."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(value, yaml.SequenceNode) and _is_block(value):
                yield value.value[0].start_mark.column - key.start_mark.column - _STEP
            yield from _list_steps(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _list_steps(item)
