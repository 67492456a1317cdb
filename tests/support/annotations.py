"""``python -m tests.support.annotations`` writes the tables of docs/reference/annotations.md from the one in code."""

from pathlib import Path
from typing import Final

from gpushare.annotation_table import TABLE, Annotation
from tests.support.table import Row, with_rows

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "annotations.md"
MARK: Final = "<!-- python -m tests.support.annotations: {} -->\n"
END: Final = "<!-- end -->\n"
KEYS: Final = ("key", "on", "value", "default", "read by", "meaning")
VALUES: Final = ("value", "examples", "message when wrong")


def page() -> str:
    """Return docs/reference/annotations.md with its tables generated again."""
    text = with_rows(PAGE.read_text(), (MARK.format("keys"), END), KEYS, lambda _: [_key(row) for row in TABLE])
    return with_rows(text, (MARK.format("values"), END), VALUES, lambda _: _values())


def _key(row: Annotation) -> Row:
    keys = ", ".join(f"`{key}`" for key in row.keys)
    return keys, row.place, row.type.name, row.default or "none", ", ".join(row.read_by), row.meaning


def _values() -> list[Row]:
    types = {row.type.name: row.type for row in TABLE}
    return [
        (name, ", ".join(f"`{example}`" for example in each.examples) or "none", each.message or "none")
        for name, each in types.items()
    ]


if __name__ == "__main__":
    PAGE.write_text(page())
