"""``python -m tests.rehearsal``: takes steps on a cluster of one real node while tenants come and go; needs root.

Whatever a step does, what ``rules.py`` has holds again within two minutes. A run that was cut off goes on
behind the last step of its journal. Exit code 0: nothing was violated; 1: something was.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.fixtures import install, site_of
from tests.e2e.site import ROOT, Site
from tests.rehearsal.choice import order, repeat
from tests.rehearsal.journal import Entry, Journal
from tests.rehearsal.steps import FIRST, STEPS
from tests.rehearsal.table import table, written
from tests.rehearsal.taking import Stage, staged
from tests.testbed.cluster import images
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.node import Node

BUILD: Final = ROOT / ".build" / "rehearsal"


def main(argv: Sequence[str]) -> int:
    """Take the steps, or write the table of those that were taken; returns the exit code."""
    asked = _parser().parse_args(argv)
    journal = Journal(BUILD / "journal.jsonl")
    if asked.write is not None:
        parts = {step.name: step.part for step in STEPS.values()}
        asked.write.write_text(written(asked.write.read_text(), table(journal.entries(), parts, FIRST)))
        return 0
    first = journal.following(asked.seed) if asked.only is None else asked.only
    names = order(asked.steps or list(STEPS), asked.seed, asked.only + 1 if asked.only is not None else asked.count)
    with cluster() as site, staged(site, asked.seed) as stage:
        entries = list(_run(stage, list(enumerate(names))[first:], asked, journal))
    return int(any(each.violations for each in entries))


def _run(
    stage: Stage, numbered: Sequence[tuple[int, str]], asked: argparse.Namespace, journal: Journal
) -> Iterator[Entry]:
    ends = time.monotonic() + 60 * asked.minutes
    for number, name in numbered:
        if time.monotonic() > ends:
            return
        entry = stage.take(STEPS[name], asked.seed, number)
        report(entry)
        if asked.only is None:
            journal.add(entry)
        yield entry


def report(entry: Entry) -> None:
    """Print a step; of one that failed the command that repeats it."""
    print(
        f"{entry.number:4} {entry.name:<32} {entry.seconds:6.1f} s  healed {entry.healed}  {entry.noticed}"
        f"  {entry.awaited}  {len(entry.violations) or 'ok'}",
        flush=True,
    )
    for each in entry.violations:
        print(f"       {each}")
    if entry.violations:
        print(
            f"       seed {entry.seed}, step {entry.number}: {repeat(entry.seed, entry.number, entry.name)}", flush=True
        )


@contextmanager
def cluster() -> Iterator[Site]:
    """A control plane and a real node with the product on it; gone at the end."""
    BUILD.mkdir(parents=True, exist_ok=True)
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / str(os.getpid()), nodes=True)
    try:
        node = Node.start(plane)
        for tag in ("", images.UPGRADED):
            for target in images.targets():
                node.load_image(images.image(target, tag))
        with tempfile.TemporaryDirectory() as work:
            site = site_of(plane, node, Path(work))
            install(site)
            yield site
    finally:
        plane.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the steps follow from (%(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="steps in all (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no step after this long (%(default)s)")
    parser.add_argument("--only", type=int, help="take this one step of the seed alone, and keep no journal")
    parser.add_argument("--steps", nargs="*", choices=STEPS, metavar="STEP", help="take these only: %(choices)s")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the journal's table between a page's marks")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
