"""The table of docs/design/safety.md."""

from collections.abc import Iterable, Sequence
from typing import Final

from tests.mutation.explained import Count

BEGIN, END = "<!-- mutants: make mutants -->\n", "<!-- end of mutants -->"
ALL: Final = "all"
HEAD: Final = ["| module | mutants | killed | survived | explained |", "|---|---|---|---|---|"]


def lines(rows: Sequence[Count]) -> list[str]:
    """Write the table, with a last row for all modules together."""
    total = Count(
        ALL, sum(row.mutants for row in rows), sum(row.killed for row in rows), sum(row.survived for row in rows),
        sum(row.explained for row in rows),
    )  # fmt: skip
    return [*HEAD, *(_line(row) for row in (*sorted(rows, key=lambda row: row.module), total))]


def put(page: str, rows: Iterable[Count]) -> str:
    """The page with those rows; those of other modules stay.

    Raises:
        ValueError: it has no place for the table, or a row that is none.
    """
    before, _, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN.strip()} with {END} after it")
    known = {row.module: row for row in map(_row, old.splitlines()[2:])} | {row.module: row for row in rows}
    known.pop(ALL, None)
    return before + BEGIN + "\n".join(lines(list(known.values()))) + "\n" + END + after


def _line(row: Count) -> str:
    return f"| {row.module} | {row.mutants} | {row.killed} | {row.survived} | {row.explained} |"


def _row(line: str) -> Count:
    module, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
    return Count(module, *map(int, numbers))
