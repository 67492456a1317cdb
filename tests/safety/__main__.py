"""``python -m tests.safety``: every safety test in full, then its figures as the table of docs/safety.md.

Arguments are handed to pytest, such as ``-k reuse``; the table keeps the rows of tests that did not run. Exit code:
pytest's. With a failure the table is left as it is.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.support import safety
from tests.support.table import Row, with_rows

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "safety.md"
FIGURES: Final = ROOT / ".build" / "safety.jsonl"
BEGIN, END = "<!-- figures: make safety -->\n", "<!-- end of figures -->"
TIMEOUT_SECONDS: Final = 3600
HEAD: Final = ("test", "figure", "found")


def main(argv: Sequence[str]) -> int:
    """Run, and write the table."""
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.unlink(missing_ok=True)
    env = {**os.environ, safety.VARIABLE: "full", safety.FIGURES: str(FIGURES)}
    command = [sys.executable, "-m", "pytest", "-o", f"timeout={TIMEOUT_SECONDS}", "--durations=0"]
    command += [] if any(each.endswith(".py") for each in argv) else ["tests/safety"]
    began = time.monotonic()
    code = subprocess.run([*command, *argv], cwd=ROOT, env=env, check=False).returncode
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    if code == 0:
        write(_rows(FIGURES.read_text().splitlines() if FIGURES.exists() else ()))
    return code


def write(rows: Iterable[Row]) -> None:
    """Put figures into the page."""
    PAGE.write_text(_with_table(PAGE.read_text(), rows))


def _rows(lines: Iterable[str]) -> list[Row]:
    found = (json.loads(line) for line in lines)
    return [(each["test"], each["what"], each["found"]) for each in found]


def _with_table(page: str, rows: Iterable[Row]) -> str:
    """The page with those rows; others of its table stay."""

    def merged(old: list[Row]) -> list[Row]:
        return sorted(({row[:2]: row for row in old} | {row[:2]: row for row in rows}).values(), key=_order)

    return with_rows(page, (BEGIN, END), HEAD, merged)


def _order(row: Row) -> tuple[int, Row]:
    return int("".join(c for c in row[0].split(",")[0] if c.isdigit()) or 0), row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
