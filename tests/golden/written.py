"""Answers as lines to read, and one answer as the difference to another.

A line is an operation of the patch, or a part of it or of the claim template: its path, and its value as JSON if that
fits on the line. An element of a list goes by its ``name`` if it has one of its own, else by its place. The sidecar
comes last, wherever the patch puts it. A line of the base occurs once there, so a difference needs no numbers, and
stays when another part of the base changes.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract

WIDTH = 150
KEPT, GONE, NEW = "  ", "- ", "+ "
"""How a line of a difference begins: in both answers, before what is new; only in the base; only in this answer."""


def lines(answer: Mapping[str, Any]) -> list[str]:
    """Return an answer as lines; two answers that differ in anything, order included, have different lines."""
    sidecars: list[Any] = []
    found = [
        line
        for key, value in answer.items()
        for path, part in (_operations(value) if key == "patch" else [(key, value)])
        for line in _lines(path, _without_sidecar(part, sidecars))
    ]
    return found + [line for each in sidecars for line in _lines("sidecar", each)]


def difference(base: Sequence[str], answer: Sequence[str]) -> list[str]:
    """Return what turns the lines of the base into those of an answer."""
    found: list[str] = []
    matcher = difflib.SequenceMatcher(None, base, answer, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        found += [KEPT + base[start - 1]] if tag == "insert" and start else []
        found += [GONE + line for line in base[start:end]] + [NEW + line for line in answer[new_start:new_end]]
    return found


def restored(base: Sequence[str], written: Sequence[str]) -> list[str]:
    """Return the answer that a difference to the base describes; ValueError if the base lacks one of its lines."""
    answer: list[str] = []
    at = 0
    for mark, line in ((each[:2], each[2:]) for each in written):
        if mark == NEW:
            answer.append(line)
            continue
        end = base.index(line, at)
        answer += [*base[at:end], *([line] if mark == KEPT else [])]
        at = end + 1
    return [*answer, *base[at:]]


def _operations(patch: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    return [(f"{each['op']} {each['path']}", each["value"]) for each in patch]


def _without_sidecar(value: Any, sidecars: list[Any]) -> Any:
    """Return a value of the patch with a word for the sidecar, which is added to the list."""
    if isinstance(value, list):
        return [_without_sidecar(each, sidecars) for each in value]
    if not (isinstance(value, dict) and value.get("name") == contract.SIDECAR and "image" in value):
        return value
    sidecars.append(value)
    return "(the sidecar)"


def _lines(path: str, value: Any) -> Iterator[str]:
    line = f"{path} {json.dumps(value, ensure_ascii=False)}"
    if len(line) <= WIDTH or not value or not isinstance(value, dict | list):
        yield line
        return
    for key, each in value.items() if isinstance(value, dict) else _named(value):
        yield from _lines(f"{path}.{key}" if isinstance(value, dict) else f"{path}[{key}]", each)


def _named(elements: Sequence[Any]) -> Iterator[tuple[str | int, Any]]:
    names = [each.get("name") if isinstance(each, dict) else None for each in elements]
    for place, (name, each) in enumerate(zip(names, elements, strict=True)):
        yield (name if name and names.count(name) == 1 else place), each
