"""``python -m tests.safety``: every safety test in full, then its figures as the table of docs/design/safety.md.

First what takes both processors, then two workers beside each other; logs are in ``.build/safety``.
Arguments are handed to one pytest instead, such as ``-k reuse``; the table keeps the rows of tests that did not run.
Exit code: 0, or that of what failed; then the table is left as it is.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.support import extent
from tests.support.table import Row, with_rows
from tests.testbed.parallel import clock
from tests.testbed.parallel.rounds import run
from tests.testbed.parallel.running import STOPPED, Running
from tests.testbed.parallel.workers import Session, Worker

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "design" / "safety.md"
FIGURES: Final = ROOT / ".build" / "safety.jsonl"
BEGIN, END = "<!-- figures: make safety -->\n", "<!-- end of figures -->"
LOGS: Final = ROOT / ".build" / "safety"
TIMEOUT_SECONDS: Final = 3600
HEAD: Final = ("test", "figure", "found")
BUSY: Final = ("tests/safety/test_15_pid_reuse.py",)
"""Takes all the processors there are: nothing runs beside it."""
WAITING: Final = ("tests/safety/test_33_matrix.py",)
"""Half of the rest; it waits more than it works, and has a worker to itself."""
PYTEST: Final = (sys.executable, "-m", "pytest", "-o", f"timeout={TIMEOUT_SECONDS}", "--durations=0")


def main(argv: Sequence[str]) -> int:
    """Run, and write the table."""
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.unlink(missing_ok=True)
    os.environ.update({extent.VARIABLE: "full", extent.FIGURES: str(FIGURES)})
    began = time.monotonic()
    code = subprocess.run([*PYTEST, *_chosen(argv)], cwd=ROOT, check=False).returncode if argv else _in_turns()
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    if code == 0:
        write(_rows(FIGURES.read_text().splitlines() if FIGURES.exists() else ()))
    return code


def _chosen(argv: Sequence[str]) -> list[str]:
    return list(argv) if any(each.endswith(".py") for each in argv) else ["tests/safety", *argv]


def _in_turns() -> int:
    command = [*PYTEST, "-v", "-r", "aP", "-n", "0", "-p", "no:cacheprovider", "-p", clock.__name__]
    codes = []
    for turn in turns():
        running = Running(turn, LOGS, 1.0, command)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_, running=running: running.stop())
        codes.append(run(running))
        if codes[-1] == STOPPED:
            break
    return max(codes)


def turns() -> tuple[tuple[Worker, ...], ...]:
    """Every file once: workers that run beside each other, in turns."""
    files = [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "tests" / "safety").glob("test_*.py"))]
    others = tuple(file for file in files if file not in BUSY + WAITING)
    return (_worker("busy", BUSY),), (_worker("waiting", WAITING), _worker("others", others))


def _worker(name: str, files: tuple[str, ...]) -> Worker:
    return (Session(name=name, files=files),)


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
