"""Hold each regular expression together with the length of the longest text that it may see. Pure.

Every pattern of the product is one of these: ``tests/house.py`` keeps ``re`` out of all other modules. A quadratic
expression takes half a minute for 60 kB, and holds up every other thread of the process meanwhile.
"""

import re
from typing import AnyStr, Final, Generic

Match = re.Match


class _Bounded(Generic[AnyStr]):
    """An expression for ASCII. A longer text than ``most`` characters or bytes does not match, and is not looked at."""

    __slots__ = ("_compiled", "expression", "most")

    def __init__(self, expression: AnyStr, most: int) -> None:
        self.expression: Final[AnyStr] = expression
        self.most: Final = most
        self._compiled: Final[re.Pattern[AnyStr]] = re.compile(expression, re.ASCII)


class Pattern(_Bounded[AnyStr]):
    """Matches from the front of a text."""

    __slots__ = ()

    def fullmatch(self, text: AnyStr) -> Match[AnyStr] | None:
        """Match the whole text."""
        return self._compiled.fullmatch(text) if len(text) <= self.most else None

    def match(self, text: AnyStr) -> Match[AnyStr] | None:
        """Match the beginning of the text, which has to be short as a whole."""
        return self._compiled.match(text) if len(text) <= self.most else None


class Search(_Bounded[AnyStr]):
    """Finds the first match anywhere in a text. An expression that is linear from the front can be quadratic here."""

    __slots__ = ()

    def search(self, text: AnyStr) -> Match[AnyStr] | None:
        """Find the first match."""
        return self._compiled.search(text) if len(text) <= self.most else None
