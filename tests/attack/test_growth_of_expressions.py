"""No expression costs more than the length of its text, also without the bound that ``gpushare.patterns`` gives it."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from gpushare.patterns import Pattern, Search
from tests.attack.doubling import Run, too_steep
from tests.support import extent

sre: Any = re._constants  # type: ignore[attr-defined] # no public way to walk an expression
PACKAGES = ("webhook", "enforcer", "gpushare", "gpushare_cli", "sidecar", "certs")
Bounded = Pattern[Any] | Search[Any]
Text = Callable[[int], str]
MOST_PAIRED = extent.trials(3, 16)
"""Characters of an expression that are tried in pairs."""
ENDS = ("\0\n", "\0", "\n")[: extent.trials(1, 3)]
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_CATEGORIES = {sre.CATEGORY_DIGIT: "1", sre.CATEGORY_WORD: "a", sre.CATEGORY_SPACE: " "}


def patterns() -> dict[str, Bounded]:
    """Name the patterns of all modules, also those in tuples and mappings."""
    found: dict[str, Bounded] = {}
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for each in pkgutil.walk_packages(path, f"{package}."):
            for name, value in vars(importlib.import_module(each.name)).items():
                found |= {f"{each.name}.{name}{at}": one for at, one in _inside(value)}
    return found


def _inside(value: object, depth: int = 3) -> Iterator[tuple[str, Bounded]]:
    if isinstance(value, Pattern | Search):
        yield "", value
    elif depth and isinstance(value, tuple | list | dict):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"[{key}]{at}", each) for key, part in parts for at, each in _inside(part, depth - 1))


def parts(operation: Any, detail: Any) -> list[Any]:
    """List the expressions inside a part of one."""
    if operation in _REPEATS:
        return [detail[2]]
    if operation is sre.SUBPATTERN:
        return [detail[3]]
    if operation is sre.BRANCH:
        return list(detail[1])
    if operation is sre.GROUPREF_EXISTS:
        return [each for each in detail[1:] if each]
    return [detail[1]] if operation in {sre.ASSERT, sre.ASSERT_NOT} else []


def characters(tree: Any) -> list[str]:
    """List an expression's own characters, of a range its first one."""
    found: list[str] = []
    for operation, detail in tree:
        if operation in {sre.LITERAL, sre.NOT_LITERAL}:
            found.append(chr(detail))
        elif operation is sre.RANGE:
            found.append(chr(detail[0]))
        elif operation is sre.CATEGORY:
            found.append(_CATEGORIES.get(detail, "!"))
        elif operation is sre.IN:
            found += characters(detail)
        elif operation in {sre.ANY, sre.NEGATE}:
            found.append("!")
        found += [each for part in parts(operation, detail) for each in characters(part)]
    return list(dict.fromkeys(found))


def sample(tree: Any) -> str:
    """Write a short text that matches, as far as that is simple."""
    return "".join(_sample(operation, detail) for operation, detail in tree)


def _sample(operation: Any, detail: Any) -> str:
    inside = parts(operation, detail)
    if operation in {sre.ASSERT, sre.ASSERT_NOT, sre.AT}:
        return ""
    if operation in _REPEATS:
        return sample(inside[0]) * int(detail[0])
    return sample(inside[0]) if inside else next(iter(characters([(operation, detail)])), "")


def repeated(tree: Any, front: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield what leads to each repetition without end, and the characters of what may follow."""
    items = list(tree)
    for index, (operation, detail) in enumerate(items):
        here = front + sample(items[:index])
        if operation in _REPEATS and detail[1] is sre.MAXREPEAT:
            yield here, characters(items[index:])
        for part in parts(operation, detail):
            yield from repeated(part, here)


def texts(expression: str | bytes) -> Iterator[Text]:
    """Make texts of any length: what leads to a repetition, characters again and again, and what does not match."""
    tree = re._parser.parse(expression, re.ASCII)  # type: ignore[attr-defined] # as above
    for front, letters in (("", characters(tree)), *repeated(tree)):
        pairs = product(letters[:MOST_PAIRED], repeat=2)
        for unit, end in product([*letters, *(one + other for one, other in pairs if one != other)], ENDS):
            yield lambda length, front=front, unit=unit, end=end: front + unit * (length // len(unit)) + end  # type: ignore[misc] # bound by defaults


def steep(expression: str | bytes, *, anywhere: bool) -> str | None:
    """Return a text, cut, with which an expression costs more than its length; ``None`` where none is found."""
    compiled: re.Pattern[Any] = re.compile(expression, re.ASCII)
    match = compiled.search if anywhere else compiled.fullmatch

    def made(text: Text) -> Callable[[int], Run]:
        def of_length(length: int) -> Run:
            given = text(length) if isinstance(expression, str) else text(length).encode("latin-1")
            return lambda: match(given)

        return of_length

    return next((repr(text(20)) for text in texts(expression) if too_steep(made(text))), None)


PATTERNS = patterns()


def test_the_patterns_of_every_package_are_found() -> None:
    assert len(PATTERNS) > 40
    assert {name.partition(".")[0] for name in PATTERNS} == set(PACKAGES)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_no_expression_costs_more_than_the_length_of_its_text(name: str) -> None:
    pattern = PATTERNS[name]
    assert steep(pattern.expression, anywhere=isinstance(pattern, Search)) is None


@pytest.mark.parametrize(
    ("expression", "anywhere"),
    [
        (r"[+-]?(0+\.?0*|\.0+)([eE][+-]?[0-9]+|[A-Za-z]{0,2})", False),  # kept a replica busy for half a minute
        (r"device \d+.*", False),
        (rb"x:\s*y?\s*z", False),
        (r"[a-z]+://", True),
    ],
)
def test_quadratic_expressions_are_found(expression: str | bytes, anywhere: bool) -> None:  # noqa: FBT001 - a case
    assert steep(expression, anywhere=anywhere) is not None


def test_an_expression_can_be_linear_from_the_front_alone() -> None:
    assert steep(r"[a-z]+://", anywhere=False) is None
