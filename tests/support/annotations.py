"""``python -m tests.support.annotations`` writes the tables of docs/reference/annotations.md from the one in code."""

from pathlib import Path
from typing import Final

from gpushare.annotation_table import TABLE, Annotation, Object
from tests.support.table import Row, with_rows

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "annotations.md"
MARK: Final = "<!-- python -m tests.support.annotations: {} -->\n"
END: Final = "<!-- end -->\n"
KEYS: Final = ("key", "value", "default", "meaning")
TABLES: Final = {
    "pod": (Object.POD, Object.RUNNING_POD),
    "namespace": (Object.NAMESPACE,),
    "node": (Object.NODE, Object.RESOURCE_SLICE, Object.POLICY, Object.WEBHOOK),
}
"""The table of each name, and the objects that carry its keys."""
VALUES: Final = ("value", "examples", "message when wrong")


def page() -> str:
    """Return docs/reference/annotations.md with its tables generated again."""
    text = PAGE.read_text()
    for name, objects in TABLES.items():
        rows = [_key(row, objects[0]) for row in TABLE if row.on in objects]
        text = with_rows(text, (MARK.format(name), END), KEYS, lambda _, rows=rows: rows)  # type: ignore[misc] # bound by a default
    return with_rows(text, (MARK.format("values"), END), VALUES, lambda _: _values())


def _key(row: Annotation, usual: Object) -> Row:
    keys = ", ".join(f"`{key}`" for key in row.keys)
    note = "label" if row.label else "" if row.on is usual else str(row.on)
    return keys + (f" ({note})" if note else ""), row.type.name, row.default or "none", row.meaning


def _values() -> list[Row]:
    types = {row.type.name: row.type for row in TABLE}
    return [
        (name, ", ".join(f"`{example}`" for example in each.examples) or "none", each.message or "none")
        for name, each in types.items()
    ]


if __name__ == "__main__":
    PAGE.write_text(page())
