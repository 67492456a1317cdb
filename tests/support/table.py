"""A table of figures in a document, between two comments that name the command it comes from."""

from collections.abc import Callable, Iterable, Sequence

Row = tuple[str, ...]


def with_rows(
    page: str, marks: tuple[str, str], head: Sequence[str], change: Callable[[list[Row]], Iterable[Row]]
) -> str:
    """The page with other rows in its table.

    Args:
        page: the document.
        marks: what stands right before and right after the table.
        head: the columns' names.
        change: makes the rows that shall be there of those that are.
    """
    begin, end = marks
    before, _, rest = page.partition(begin)
    table, _, after = rest.partition(end)
    rows = change([_cells(line) for line in table.splitlines()[2:]])
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return before + begin + "\n".join(lines) + "\n" + end + after


def _cells(line: str) -> Row:
    return tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
