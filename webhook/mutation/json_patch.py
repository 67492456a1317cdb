"""JSON Patch (RFC 6902) between two versions of an object, with ``add`` and ``replace`` only. Pure.

The after-version shares what it did not change with the before-version, so comparing is mostly one ``is``. Nothing is
ever removed: where something would have to go, the smallest value around it is replaced.
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Final

Operation = dict[str, Any]
_ABSENT: Final = object()


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Operation]:
    """Return the operations that make ``after`` of ``before``; both are objects with the same top-level keys."""
    operations: list[Operation] = []
    _value("", before, after, operations)
    return operations


def escape(key: str) -> str:
    """Write a key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _value(path: str, before: Any, after: Any, operations: list[Operation]) -> None:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() <= after.keys():
        _object(path, before, after, operations)
    elif type(before) is type(after) and before == after:
        return
    elif before is None:
        operations.append({"op": "add", "path": path, "value": after})
    elif isinstance(before, list) and isinstance(after, list) and before and len(before) <= len(after):
        _list(path, before, after, operations)
    else:
        operations.append({"op": "replace", "path": path, "value": after})


def _object(path: str, before: dict[str, Any], after: dict[str, Any], operations: list[Operation]) -> None:
    for key, value in after.items():
        old = before.get(key, _ABSENT)
        if old is value:
            continue
        step = f"{path}/{escape(key)}"
        if old is _ABSENT:
            operations.append({"op": "add", "path": step, "value": value})
        else:
            _value(step, old, value, operations)


def _list(path: str, before: list[Any], after: list[Any], operations: list[Operation]) -> None:
    """Entries were appended, or put in front of entries that kept their names; else the whole list is replaced."""
    extra = len(after) - len(before)
    if all(map(is_, before, after[extra:])):  # the most frequent change by far, of the longest lists
        operations += [{"op": "add", "path": f"{path}/{i}", "value": each} for i, each in enumerate(after[:extra])]
    elif before == after[: len(before)]:
        operations += [{"op": "add", "path": f"{path}/-", "value": each} for each in after[len(before) :]]
    elif _same_names(before, after[extra:]):
        operations += [{"op": "add", "path": f"{path}/{i}", "value": each} for i, each in enumerate(after[:extra])]
        for index, each in enumerate(before, extra):
            if each is not after[index]:
                _value(f"{path}/{index}", each, after[index], operations)
    else:
        operations.append({"op": "replace", "path": path, "value": after})


def _same_names(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(
        isinstance(old, dict) and isinstance(new, dict) and old.get("name", 0) == new.get("name", 1)
        for old, new in zip(before, after, strict=True)
    )
