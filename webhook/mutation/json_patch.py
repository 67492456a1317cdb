"""JSON Patch (RFC 6902) between two versions of an object, with ``add`` and ``replace`` only. Pure.

The after-version shares what it did not change with the before-version, so comparing is mostly one ``is``. Nothing is
ever removed: where something would have to go, the smallest value around it is replaced.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from gpushare.fields import all_of, names_of

Operation = dict[str, Any]


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Operation]:
    """Return the operations that make ``after`` of ``before``; both are objects with the same top-level keys."""
    operations: list[Operation] = []
    _object("", before, after, operations)
    return operations


def escape(key: str) -> str:
    """Write a key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _object(path: str, before: Mapping[str, Any], after: Mapping[str, Any], operations: list[Operation]) -> None:
    for key, value in after.items():
        if key in before and before[key] is value:
            continue
        step = f"{path}/{escape(key) if '/' in key or '~' in key else key}"
        if key in before:
            _value(step, before[key], value, operations)
        else:
            operations.append({"op": "add", "path": step, "value": value})


def _value(path: str, before: Any, after: Any, operations: list[Operation]) -> None:
    kind = type(after)  # what changed was made by the rewriting, so it is of no subclass
    if kind is dict and isinstance(before, dict) and before.keys() <= after.keys():
        _object(path, before, after, operations)
    elif kind is list and isinstance(before, list) and before:
        _list(path, before, after, operations)
    elif type(before) is not kind or before != after:
        operations.append({"op": "add" if before is None else "replace", "path": path, "value": after})


def _list(path: str, before: list[Any], after: list[Any], operations: list[Operation]) -> None:
    """Entries were appended, or put in front of entries that kept their names; else the whole list is replaced."""
    extra = len(after) - len(before)
    kept = after[extra:] if extra >= 0 else []
    same = bool(kept) and all(map(is_, before, kept))  # the most frequent change by far, of the longest lists
    if kept and not same and before == after[: len(before)]:
        operations += [{"op": "add", "path": f"{path}/-", "value": each} for each in after[len(before) :]]
    elif same or _same_names(before, kept):
        operations += [{"op": "add", "path": f"{path}/{i}", "value": each} for i, each in enumerate(after[:extra])]
        for index, (old, new) in enumerate(() if same else zip(before, kept, strict=True), extra):
            if old is not new:
                _value(f"{path}/{index}", old, new, operations)
    else:
        operations.append({"op": "replace", "path": path, "value": after})


def _same_names(before: Sequence[Any], after: Sequence[Any]) -> bool:
    if not all_of((*before, *after), dict):
        return False
    names = names_of(before)
    return None not in names and names == names_of(after)
