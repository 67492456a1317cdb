"""``python -m tests.load.sim``: play everything and print the tables; ``--write`` puts them and the charts into docs/.

The same tree gives the same bytes. Exit code 1: docs/ says something else than was found, and --write was not given.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.load.sim.experiments import FLEETS, Job, charts, jobs
from tests.load.sim.tables import into, tables

DOCS: Final = Path(__file__).parents[3] / "docs" / "design"
PAGE: Final = DOCS / "placement.md"
CHARTS: Final = DOCS / "placement"


def main(argv: Sequence[str]) -> int:
    """Run."""
    options = parsed(argv)
    began = time.monotonic()
    found = play(list(jobs(options.nodes)), options.processes)
    print(f"{len(found)} experiments in {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    made = tables(found, options.nodes)
    print("\n".join(f"{name}\n\n{text}" for name, text in made.items()))
    return 0 if options.nodes < max(FLEETS) else settle(into(PAGE.read_text(), made), charts(found), options.write)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.sim", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put what was found into docs/")
    parser.add_argument("--nodes", type=int, default=max(FLEETS), help="only fleets of at most so many (%(default)s)")
    parser.add_argument("--processes", type=int, default=None, help="at a time (as many as there are cores)")
    options = parser.parse_args(argv)
    if options.write and options.nodes < max(FLEETS):
        parser.error(f"--write needs all fleets: leave --nodes out, {options.nodes} is less than {max(FLEETS)}")
    return options


def play(todo: Sequence[Job], processes: int | None) -> dict[tuple[Any, ...], Any]:
    """Run experiments beside each other; what comes out does not depend on how many."""
    with ProcessPoolExecutor(processes) as pool:
        return dict(pool.map(Job.run, todo))


def settle(page: str, drawn: dict[str, str], write: bool) -> int:  # noqa: FBT001 - the option as it was given
    """Write the page and the charts, or say whether they are as they should be."""
    wanted = {PAGE: page} | {CHARTS / name: svg for name, svg in drawn.items()}
    if write:
        CHARTS.mkdir(exist_ok=True)
        for path, text in wanted.items():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    print(f"docs/ is out of date: {', '.join(stale)}; --write brings it up to date" if stale else "docs/ is up to date")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
