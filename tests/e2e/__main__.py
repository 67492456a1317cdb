"""``python -m tests.e2e [FILE ...]``: the tests that need a cluster, in lanes beside each other; ``make e2e`` runs it.

Each lane writes into ``.build/lanes``; a line now and then says where each is. Where tests of one or two files failed,
those run once more by themselves, and what passes then is told as flaky at the end; it has failed all the same. Exit
code 0 when all passed, 1 when a lane failed or ran nothing of one of its files, 2 wrong use, 130 when stopped: no
cluster is left behind in any case.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster import images, versions
from tests.cluster.controlplane import sweep
from tests.e2e import lanes
from tests.e2e.rounds import run
from tests.e2e.running import Running

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".build" / "lanes"
CLUSTERS: Final = (ROOT / ".build" / "e2e", ROOT / ".build" / "realnode")
NODES: Final = 4
PATIENCE: Final = 3.0
HEAD_START: Final = 25.0
"""Seconds until a control plane and a node stand where nobody else is at work."""
WRONG_USE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Run everything, or the given files, and return the exit code."""
    asked = _parser().parse_args(argv)
    kubernetes = asked.kubernetes or versions.chosen()
    files = lanes.fitting(lanes.marked(ROOT), kubernetes)
    if unknown := [file for file in asked.files if file not in files]:
        what = f"that runs on a cluster of Kubernetes {kubernetes}"
        print(f"{', '.join(unknown)}: no test file of this checkout {what}", file=sys.stderr)
        return WRONG_USE
    chosen = {file: files[file] for file in asked.files or files}
    clean()
    if any(chosen.values()):
        for target in images.targets():
            images.image(target)
    running = Running(lanes.deal(chosen, asked.nodes, kubernetes), FOLDER, PATIENCE, head_start=HEAD_START)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    try:
        return run(running, second_round=True)
    finally:
        clean()


def clean() -> None:
    """Remove clusters whose owner is gone; those of living sessions are let alone."""
    for folder in CLUSTERS:
        sweep(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.e2e", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="run only these test files (all)")
    parser.add_argument(
        "--nodes", type=int, default=NODES, metavar="N", help=f"lanes with a node of their own ({NODES})"
    )
    parser.add_argument(
        "--kubernetes",
        choices=tuple(versions.VERSIONS),
        help=f"of the control planes; all but {versions.NEWEST} run what needs no node",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
