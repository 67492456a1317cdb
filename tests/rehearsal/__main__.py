"""``python -m tests.rehearsal``: takes steps on a cluster of real nodes while tenants come and go; needs root.

Whatever a step does, what ``rules.py`` has holds again within two minutes. A run that was cut off goes on
behind the last step of its journal. Exit code 0: nothing was violated; 1: something was.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

from gpushare.contract import NODE_LABEL
from tests.e2e.fixtures import install, site_of
from tests.e2e.site import ROOT, Site
from tests.rehearsal.choice import order, repeat
from tests.rehearsal.journal import Entry, Journal
from tests.rehearsal.releases import ready
from tests.rehearsal.steps import FIRST, STEPS, Step
from tests.rehearsal.table import table, written
from tests.rehearsal.taking import Stage, staged
from tests.testbed.cluster import images
from tests.testbed.cluster.binaries import Group
from tests.testbed.cluster.build import build_missing
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.node import Node

BUILD: Final = ROOT / ".build" / "rehearsal"
JOURNAL: Final = Path(__file__).with_name("journal.jsonl")
"""Committed, so that a run goes on another day on another machine."""


def main(argv: Sequence[str]) -> int:
    """Take the steps, or write the table of those that were taken; returns the exit code."""
    asked = _parser().parse_args(argv)
    journal = Journal(JOURNAL)
    if asked.write is not None:
        parts = {step.name: step.part for step in STEPS.values()}
        asked.write.write_text(written(asked.write.read_text(), table(journal.entries(), parts, FIRST)))
        return 0
    first = journal.following(asked.seed, options(asked)) if asked.only is None else asked.only
    known = asked.steps or [step.name for step in STEPS.values() if possible(step, asked)]
    names = order(known, asked.seed, asked.only + 1 if asked.only is not None else asked.count)
    with cluster(asked.nodes, asked.earlier) as site, staged(site, asked.seed) as stage:
        entries = list(_run(stage, list(enumerate(names))[first:], asked, journal))
    return int(any(each.violations for each in entries))


def _run(
    stage: Stage, numbered: Sequence[tuple[int, str]], asked: argparse.Namespace, journal: Journal
) -> Iterator[Entry]:
    ends = time.monotonic() + 60 * asked.minutes
    for number, name in numbered:
        if time.monotonic() > ends:
            return
        entry = replace(stage.take(STEPS[name], asked.seed, number), on=options(asked))
        report(entry)
        if asked.only is None:
            journal.add(entry)
        yield entry


def options(asked: argparse.Namespace) -> str:
    """Return what makes the cluster that is asked for."""
    return f"--nodes {asked.nodes}" + (f" --earlier {asked.earlier}" if asked.earlier else "")


def possible(step: Step, asked: argparse.Namespace) -> bool:
    """Whether the cluster that is asked for can take a step."""
    return step.nodes <= asked.nodes and (asked.earlier is not None or not step.earlier)


def checkout(commit: str, folder: Path) -> Path:
    """Put the files of a commit there."""
    folder.mkdir()
    whole = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=whole, check=True)
    return folder


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
        command = repeat(entry.seed, entry.number, entry.name)
        print(f"       seed {entry.seed}, step {entry.number}: {command} {entry.on}", flush=True)


@contextmanager
def cluster(nodes: int, earlier: str | None) -> Iterator[Site]:
    """A control plane and real nodes with the product on them, and images of an earlier commit; gone at the end."""
    build_missing(groups=(Group.OLDER_NODE,))
    BUILD.mkdir(parents=True, exist_ok=True)
    sweep(BUILD)
    with tempfile.TemporaryDirectory() as folder:
        work, sources = Path(folder), {"": ROOT, images.UPGRADED: ROOT}
        if earlier is not None:
            sources[images.EARLIER] = checkout(earlier, work / images.EARLIER)
        built = [images.image(target, tag, source=sources[tag]) for tag, target in product(sources, images.targets())]
        plane = ControlPlane.start(BUILD / str(os.getpid()), nodes=True)
        try:
            every = [Node.start(plane, f"node-{number + 1}") for number in range(nodes)]
            for node, file in product(every, built):
                node.load_image(file)
            site = site_of(plane, every[0], work)
            install(site)
            for node in every[1:]:
                site.shell(f"kubectl label node {node.name} {NODE_LABEL}=true")
            ready(site)
            yield site
        finally:
            plane.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the steps follow from (%(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="steps in all (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no step after this long (%(default)s)")
    parser.add_argument("--nodes", type=int, default=2, help="real nodes (%(default)s)")
    parser.add_argument("--earlier", metavar="COMMIT", help="also go back to this commit, and upgrade from it")
    parser.add_argument("--only", type=int, help="take this one step of the seed alone, and keep no journal")
    parser.add_argument("--steps", nargs="*", choices=STEPS, metavar="STEP", help="take these only: %(choices)s")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the journal's table between a page's marks")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
