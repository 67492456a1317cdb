"""Read fields of raw objects, whose author may have written anything; another type is refused by its path. Pure.

``null`` stands for absent wherever Kubernetes says so.
"""

from collections.abc import Collection, Mapping, Sequence, Sized
from typing import Any, Final

from gpushare.errors import MAX_PROBLEMS, PolicyDenied, Problem
from gpushare.quantity import quoted
from gpushare.reasons import Reason

MAX_ENTRIES: Final = 1024
"""Of one list. Each entry is checked, so their number bounds what a pod costs its reader."""


def mapping(value: object, field: str) -> dict[str, Any]:
    """Read an object; ``null`` is an empty one.

    Raises:
        PolicyDenied: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(field, f"must be an object, not {type_name(value)}")
    return value


def bounded_mapping(value: object, field: str) -> dict[str, Any]:
    """Read an object of which each entry is checked.

    Raises:
        PolicyDenied: as ``mapping`` does, or it has more than ``MAX_ENTRIES``.
    """
    entries = mapping(value, field)
    if len(entries) > MAX_ENTRIES:
        raise _too_many(entries, field)
    return entries


def boolean(value: object, field: str) -> bool:
    """Read a flag that has to be off beside a share; ``null`` is off.

    Raises:
        PolicyDenied: it is no boolean.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    what = f"the string {quoted(value)}" if isinstance(value, str) else type_name(value)
    raise invalid(field, f"must be a boolean, not {what}; write false, without quotes")


def objects(value: object, field: str) -> list[dict[str, Any]]:
    """Read a list of objects; ``null`` is an empty one.

    Raises:
        PolicyDenied: it is not a list or too long, or an entry of it is not an object.
    """
    return [] if value is None else _list(value, field, dict, "an object")


def strings(value: object, field: str) -> list[str]:
    """Read a list of strings; ``null`` is an empty one.

    Raises:
        PolicyDenied: it is not a list or too long, or an entry of it is not a string.
    """
    return [] if value is None else _list(value, field, str, "a string")


def names_of(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the ``name`` of each entry as it is, ``None`` for one without."""
    return [entry["name"] if "name" in entry else None for entry in entries]  # noqa: SIM401 - a call less for each


def all_of(values: Collection[object], kind: type) -> bool:
    """Tell whether all values have a type; this is asked for each entry of each list, so it loops in C."""
    return set(map(type, values)) <= {kind} or all(isinstance(each, kind) for each in values)


def invalid(field: str, message: str) -> PolicyDenied:
    """Make the refusal of a field whose value has the wrong shape."""
    return PolicyDenied.of([problem(field, message)])


def problem(field: str, message: str) -> Problem:
    """Make the problem of a field whose value has the wrong shape."""
    return Problem(field, message, Reason.INVALID_POD)


def type_name(value: object) -> str:
    """Name the JSON type of a value in a message."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _list(value: object, field: str, kind: type, wanted: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(field, f"must be a list, not {type_name(value)}")
    if len(value) > MAX_ENTRIES:
        raise _too_many(value, field)
    if set(map(type, value)) <= {kind}:
        return value
    if wrong := [(index, each) for index, each in enumerate(value) if not isinstance(each, kind)]:
        raise PolicyDenied.of([
            problem(f"{field}[{index}]", f"must be {wanted}, not {type_name(each)}")
            for index, each in wrong[:MAX_PROBLEMS]
        ])  # fmt: skip
    return value


def _too_many(entries: Sized, field: str) -> PolicyDenied:
    return PolicyDenied(field, f"has {len(entries)} entries; write at most {MAX_ENTRIES}", Reason.TOO_LARGE)
