"""Write frozen dataclasses as objects of our own JSON files, and read them back by their annotations. Pure.

A field is a text, a whole number up to ``MOST``, a number of seconds, true or false, a member of an enum, another
dataclass, one of these or ``None``, a tuple of these, or a mapping of texts to these. Keys are the names in
lowerCamelCase. Keys that are not known here are passed over: a newer release may have added them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from gpushare.patterns import Pattern

T = TypeVar("T")
Read = Callable[[Any], Any]
"""Reads a value. Raises ``TypeError`` or ``ValueError``."""
MOST: Final = 2**53
"""No number in a file of ours is larger: metrics are floating-point, and what they cannot hold would end us."""


class FieldError(ValueError):
    """A value cannot be read. ``where`` it stands in the file, such as ``.quotas[1].memoryMib``, and ``why``."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where.lstrip('.')}: {why}")
        self.where, self.why = where, why


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text, as annotation of a field: ``Annotated[str, Form(...)]``. ``what`` is its name in errors."""

    pattern: Pattern[str]
    what: str

    def __call__(self, value: Any) -> str:
        """Read a text of this form."""
        if not self.pattern.fullmatch(text(value)):
            raise ValueError(f"{value!r:.80} is not {self.what}")
        return str(value)


class Reader(Generic[T]):
    """Reads objects of one kind.

    Args:
        kind: the dataclass.
        lacking: keys that files of earlier releases lack; a field without its key has its default.
        blank: keys of texts that may be empty.
    """

    def __init__(self, kind: type[T], *, lacking: Collection[str] = (), blank: Collection[str] = ()) -> None:
        self._kind, self._lacking, self._blank = kind, lacking, blank
        self._fields = tuple((name, camel(name), self._read(name, hint)) for name, hint in _hints(kind).items())

    def __call__(self, value: Any) -> T:
        """Read an object; raises ``FieldError``."""
        if not isinstance(value, dict):
            raise FieldError("", f"{value!r:.40} is not an object")
        found = {}
        for name, key, read in self._fields:
            if key in value:
                found[name] = inside(f".{key}", read, value[key])
            elif key not in self._lacking:
                raise FieldError(f".{key}", "the field is missing")
        return self._kind(**found)

    def _read(self, name: str, hint: Any) -> Read:
        args = get_args(hint)
        if get_origin(hint) is Annotated:
            return args[1]  # type: ignore[no-any-return] # by agreement, a reader
        if type(None) in args:
            return partial(_optional, self._read(name, args[0]))
        if get_origin(hint) is tuple:
            return partial(listed, self._read(name, args[0]))
        if get_origin(hint) is Mapping:
            return partial(_mapping, self._read(name, args[0]), self._read(name, args[1]))
        if is_dataclass(hint):
            return Reader(hint, lacking=self._lacking, blank=self._blank)  # type: ignore[arg-type] # a dataclass, as was just asked
        return partial(text, blank=camel(name) in self._blank) if hint is str else _PLAIN.get(hint, hint)


def row(value: Any) -> dict[str, Any]:
    """Write a dataclass as an object: the ``default`` of ``json.dumps``, which writes all else by itself."""
    return {camel(each.name): getattr(value, each.name) for each in fields(value)}


def listed(read: Callable[[Any], T], value: Any) -> tuple[T, ...]:
    """Read a list; raises ``FieldError``."""
    if not isinstance(value, list):
        raise FieldError("", f"{value!r:.40} is not a list")
    return tuple(inside(f"[{number}]", read, each) for number, each in enumerate(value))


def inside(where: str, read: Callable[[Any], T], value: Any) -> T:
    """Read a value that stands there; raises ``FieldError``."""
    try:
        return read(value)
    except FieldError as error:
        raise FieldError(where + error.where, error.why) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldError(where, str(error)[:200]) from error


def camel(name: str) -> str:
    """Write a field's name in lowerCamelCase."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def text(value: Any, *, blank: bool = False) -> str:
    """Read a text, which may be empty only where ``blank`` says so; raises ``TypeError``."""
    if not isinstance(value, str) or not (value or blank):
        raise TypeError(f"{value!r:.40} is not text")
    return value


def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}


def _optional(read: Read, value: Any) -> Any:
    return None if value is None else read(value)


def _mapping(read_key: Read, read: Read, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError("", f"{value!r:.40} is not an object")
    return {read_key(key): inside(f".{key:.80}", read, each) for key, each in value.items()}


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise TypeError(f"{value!r:.40} is not a whole number from 0 to {MOST}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TypeError(f"{value!r:.40} is not a number of seconds")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is neither true nor false")
    return value


_PLAIN: Final[Mapping[Any, Read]] = {int: _whole, float: _seconds, bool: _flag}
