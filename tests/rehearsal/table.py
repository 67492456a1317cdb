"""The table of a journal: for each part what tenants notice, and for how long. Pure."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final

from tests.rehearsal.journal import Entry

BEGIN: Final = "<!-- rehearsal: python -m tests.rehearsal --write docs/operators/upgrades.md -->\n"
END: Final = "<!-- end of rehearsal -->"
COLUMNS: Final = (
    "replaced", "do first", "steps", "sharing pods refused (s)", "slowest start (s)", "unwatched (s)",
    "restarts of tenants", "new MPS daemons", "all is well after (s)",
)  # fmt: skip
Amount = Callable[[Entry], float]
AMOUNTS: Final[Sequence[Amount]] = (
    lambda entry: entry.noticed.refused,
    lambda entry: entry.noticed.waited,
    lambda entry: entry.noticed.unwatched,
)


def table(entries: Sequence[Entry], parts: Mapping[str, str], first: Mapping[str, str]) -> str:
    """Return the table in Markdown.

    Args:
        entries: of the journal.
        parts: by the name of a step, what it replaces.
        first: by what is replaced, what an operator does before.
    """
    taken = [each for each in entries if each.name in parts]
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return head + "".join(_row(*row, first) for row in _by_part(taken, parts)) + "\n" + _below(taken)


def _by_part(entries: Sequence[Entry], parts: Mapping[str, str]) -> list[tuple[str, list[Entry]]]:
    names = dict.fromkeys(parts.values())
    found = [(name, [each for each in entries if parts[each.name] == name]) for name in names]
    return [row for row in found if row[1]]


def _row(name: str, entries: Sequence[Entry], first: Mapping[str, str]) -> str:
    healed = [entry.healed for entry in entries if entry.healed is not None]
    cells = [
        name, first.get(name, "nothing"), str(len(entries)),
        *(both([amount(each) for each in entries]) for amount in AMOUNTS),
        str(max(each.noticed.restarts for each in entries)), str(max(each.noticed.daemons for each in entries)),
        both(healed),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def both(amounts: Sequence[float]) -> str:
    """Return median and worst in whole numbers, one where they are the same."""
    if not amounts:
        return "never"
    middle, worst = round(median(amounts)), round(max(amounts))
    return str(worst) if middle == worst else f"{middle}, worst {worst}"


def _below(entries: Sequence[Entry]) -> str:
    seeds = ", ".join(map(str, sorted({each.seed for each in entries})))
    broken = sum(bool(each.violations) for each in entries)
    clusters = ", ".join(f"`{each}`" for each in sorted({each.on for each in entries}))
    return f"{len(entries)} steps of the seeds {seeds} on {clusters}; in {broken} of them something did not hold.\n"


def written(page: str, text: str) -> str:
    """Return the page with the table between its marks.

    Raises:
        LookupError: it has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise LookupError(f"the page has no lines {BEGIN.strip()} and {END}")
    return f"{before}{begin}{text}{end}{after}"
