"""Read the words of a container's command line, also those of a shell's script. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

MAX_TEXT: Final = 8 * 1024
"""Characters of a command line that are read."""
MAX_WORDS: Final = 512
"""Words of a pod's command lines that are read: what is looked for in them costs time for each."""
QUOTES: Final = "\"'`;&|()\\"
"""What stands around words in a shell's script."""


class Line(NamedTuple):
    """The words of a command line, the names of programs that they may be, and all of it as one text."""

    words: Sequence[str]
    programs: frozenset[str]
    text: str
    whole: bool = True

    def after(self, call: Sequence[str]) -> Sequence[str] | None:
        """Return what follows a call of a program, ``None`` where it is not called."""
        for start, word in enumerate(self.words):
            if word.rpartition("/")[2] == call[0] and [*self.words[start + 1 : start + len(call)]] == [*call[1:]]:
                return self.words[start + len(call) :]
        return None


NO_LINE: Final = Line((), frozenset(), "")


def read_line(raw: Mapping[str, Any], most: int = MAX_WORDS) -> Line:
    """Read so many words of ``command`` and ``args`` of a container; what has another type counts as absent."""
    lists = [raw[key] for key in ("command", "args") if isinstance(raw.get(key), list)]
    if not lists:
        return NO_LINE
    text = " ".join(map(str, [word for each in lists for word in each]))
    found = text[:MAX_TEXT].split(maxsplit=most)
    words = [word.strip(QUOTES) for word in found[:most]]
    whole = len(text) <= MAX_TEXT and not found[most:]
    return Line(words, frozenset(word.rpartition("/")[2] for word in words), text[:MAX_TEXT], whole)


def option_of(words: Sequence[str], names: Collection[str]) -> str | None:
    """Return the value of the first of these options; ``None`` where none is there."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            return value.strip(QUOTES) if equals else following
    return None
