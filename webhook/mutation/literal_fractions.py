"""Find numbers that are a fraction of a card's memory, and pass the fraction of the share instead. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpushare import contract
from gpushare.fractions import BY_OPTION, BY_VARIABLE, VARIABLE, Fraction, Of
from gpushare.patterns import Pattern, Search
from webhook.mutation.command_line import MAX_TEXT, QUOTES, Line

Json = Mapping[str, Any]
SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
PASSING: Final = ("/bin/sh", "-c")
ITSELF: Final = "sh"
"""What the shell calls itself, its ``$0``."""
_SIGN: Final = Search(r"(?i)fraction|utilization|entry.count|pool.size|memory.limit", MAX_TEXT)
"""One of these is in every option and every variable of the table: lines without are not read again."""
_NUMBER: Final = Pattern(r"(0?[.][0-9]{1,9}|1[.]0{1,9})(?:[,;].*)?", 256)
_VARIABLES: Final = frozenset(BY_VARIABLE)
_VALUE: Final = 5
"""Characters of a number that are shown."""


class Literal(NamedTuple):
    """A number of a row of the table, and the option or variable that has it, as it is written."""

    row: Fraction
    name: str
    number: str

    @property
    def advice(self) -> str:
        """What is wrong with it, and what to do."""
        found = f"{self.name} {self.number[:_VALUE]}"
        match self.row.of:
            case Of.TOTAL:
                return f"{found} is of the card: pass ${contract.MEMORY_FRACTION} by sh -c"
            case Of.FREE:
                return f"{found} is of the card if time-sliced: pass ${contract.FREE_FRACTION} by sh -c"
        return f"{found} is of the card if time-sliced: pass less there"


def literals(line: Line, names: Sequence[object], env: Sequence[Json]) -> list[Literal]:
    """Find the numbers in a command line, and in the environment whose variables have these ``names``."""
    found: list[Literal] = []
    if line.words and _SIGN.search(line.text):
        pairs = enumerate(line.words, 1)
        found = [each for index, word in pairs for each in _of_word(word, line.words[index : index + 1])]
    return found if _VARIABLES.isdisjoint(names) else [*found, *_of_environment(env)]


def _of_environment(env: Sequence[Json]) -> Iterator[Literal]:
    for entry in env:
        name, value = entry.get("name"), entry.get("value")
        row = BY_VARIABLE.get(name) if isinstance(name, str) else None
        if row is not None and isinstance(value, str) and (number := _number(row, value)):
            yield Literal(row, str(name), number)


def _of_word(word: str, following: Sequence[str]) -> Iterator[Literal]:
    """Read ``--option=0.9``, ``--option 0.9`` or, in a script, ``VARIABLE=0.9``."""
    name, equals, value = word.partition("=")
    row = BY_OPTION.get(name.replace("_", "-")) or (BY_VARIABLE.get(name) if equals else None)
    if row is not None and (number := _number(row, value.strip(QUOTES) if equals else "".join(following))):
        yield Literal(row, name, number)


def _number(row: Fraction, value: str) -> str:
    """Return the number in a value; empty where there is none, but a variable or an amount of bytes."""
    _, there, rest = value.partition(row.before) if row.before else ("", "x", value)
    found = _NUMBER.fullmatch(rest) if there else None
    return found[1] if found else ""


def passing(raw: Json, asked: Collection[str], missing: Collection[Fraction]) -> Json | None:
    """Return a container that passes the share's own fractions; ``None`` where nothing is to do, or it cannot be done.

    The driver sets the share's variables when it knows the card, so only a shell in the container can read them. Of an
    image's own program the name is not known, and in a script nobody can tell where a number belongs.

    Args:
        raw: the container.
        asked: frameworks of the namespace's annotation.
        missing: rows whose option has to be there and is not.
    """
    lists = _started_as_it_is(raw)
    rows = dict.fromkeys(each.options[0] for each in missing if each.asked in asked)
    kept: list[list[str]] = []
    for words in lists:
        found = [*_removable(words, asked)]
        rows |= dict.fromkeys(option for option, _ in found)
        gone = {index for _, indices in found for index in indices}
        kept.append([word for index, word in enumerate(words) if index not in gone])
    if not (rows and lists):
        return None
    passed = "".join(f' {option}="${VARIABLE[BY_OPTION[option.replace("_", "-")].of]}"' for option in rows)
    changed = {**raw, "command": [*PASSING, f'exec "$@"{passed}', ITSELF, *kept[0]]}
    return {**changed, "args": kept[1]} if kept[1] else {key: value for key, value in changed.items() if key != "args"}


def _started_as_it_is(raw: Json) -> tuple[list[str], ...]:
    """Return command and arguments; none where a shell runs them, or where they take no option at their end."""
    command, args = raw.get("command"), raw.get("args") or []
    if not (isinstance(command, list) and isinstance(args, list) and command):
        return ()
    words = [*command, *args]
    if not all(isinstance(word, str) for word in words) or "--" in words or sum(map(len, words)) > MAX_TEXT:
        return ()
    return () if words[0].rpartition("/")[2] in SHELLS else (command, args)


def _removable(words: Sequence[str], asked: Collection[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the options with a number that the namespace wants set, and at which words they stand."""
    for index, word in enumerate(words):
        for each in _of_word(word, words[index + 1 : index + 2]):
            if each.row.asked in asked and each.name in word:
                yield each.name, (index,) if "=" in word else (index, index + 1)
