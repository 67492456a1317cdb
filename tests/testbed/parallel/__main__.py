"""``python -m tests.testbed.parallel [FILE ...]``: tests that need a node, in parallel workers; ``make e2e`` runs it.

With ``--planes`` it runs those that need control planes alone; ``make integration`` does so. On the newest version it
runs all of them. On older versions it runs the files of ``BY_VERSION``, or all with ``GPU_SHARE_TESTS=full``. With the
word ``vm`` instead of files it runs what is for a virtual node; ``make e2e ARGS=vm`` does so. Files of
``tests/e2e/vm`` alone get a virtual node as well.

Each worker writes into ``.build/sessions``; a line at times says where each is. If tests of one or two files failed,
those run once more by themselves, and what passes then is told as flaky at the end; it has failed all the same. Exit
code 0 when all passed, 1 when a worker failed or ran nothing of one of its files, or when a whole run on nodes left a
right of the chart's service accounts unused, 2 wrong use, 130 when stopped: no
cluster is left behind in any case.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support import helm
from tests.support.extent import full
from tests.support.unused_rights import unused
from tests.testbed.cluster import images, used_rights, versions
from tests.testbed.cluster.controlplane import sweep
from tests.testbed.cluster.errors import BedError
from tests.testbed.parallel import workers
from tests.testbed.parallel.rounds import run
from tests.testbed.parallel.running import Running
from tests.testbed.vm import disk
from tests.testbed.vm.node import require_programs

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / ".build" / "sessions"
CLUSTERS: Final = (ROOT / ".build" / "integration", ROOT / ".build" / "e2e")
NODES: Final = 4
PATIENCE: Final = 3.0
HEAD_START: Final = 60.0
"""Seconds until a control plane and a node stand where nobody else is at work, and as long again to begin in."""
WRONG_USE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Run everything, or the given files, and return the exit code."""
    asked = _parser().parse_args(argv)
    marked = workers.marked(ROOT)
    files = [file for file, node in marked.items() if node is not bool(asked.planes)]
    virtual = workers.for_vm(asked.files)
    usual = [file for file in files if virtual or not file.startswith(workers.VM_FOLDER)]
    chosen = [*dict.fromkeys(usual if asked.files == [workers.VM] else asked.files or usual)]
    if unknown := [file for file in chosen if file not in files]:
        print("\n".join(_unfit(file, marked) for file in unknown), file=sys.stderr)
        return WRONG_USE
    clean()
    for target in () if asked.planes else images.targets():
        images.image(target)
    if virtual:
        fetch_vm()
        dealt = workers.on_vm(chosen)
    elif asked.planes:
        dealt = workers.on_planes(chosen, asked.planes, full=full() or bool(asked.files))
    else:
        dealt = workers.on_nodes(chosen, asked.nodes)
    running = Running(dealt, FOLDER, PATIENCE, head_start=HEAD_START)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    used = used_rights.folder(FOLDER / "rights")
    try:
        code = run(running, second_round=True)
    finally:
        clean()
    return code or (0 if asked.files or asked.planes else every_right_is_used(used))


def every_right_is_used(folder: Path) -> int:
    """After a whole run on nodes: 1 where the chart grants its service accounts a right that no pod used, else 0."""
    found = unused(helm.objects(), used_rights.kept(folder))
    for account, right in found:
        print(f"{account} has a right that nothing used: {right}", file=sys.stderr)
    return int(bool(found))


def fetch_vm() -> None:
    """Make the parts of a virtual node: its session reaches no package registry, and reports what it lacks."""
    with suppress(BedError):
        require_programs()
        disk.base()


def _unfit(file: str, marked: Mapping[str, bool]) -> str:
    if file not in marked:
        return f"{file}: no test file of this checkout that needs a cluster"
    return f"{file}: make {'e2e' if marked[file] else 'integration'} runs it"


def clean() -> None:
    """Remove clusters whose owner is gone; those of living sessions are let alone."""
    for folder in CLUSTERS:
        sweep(folder)


def _nodes(text: str) -> int:
    if (found := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{found} is too few; it has to be 1 at least")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.testbed.parallel", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="run only these test files (all), or vm")
    parser.add_argument(
        "--nodes", type=_nodes, default=NODES, metavar="N", help=f"workers with a node of their own ({NODES})"
    )
    parser.add_argument(
        "--planes",
        action="append",
        choices=tuple(versions.VERSIONS),
        metavar="VERSION",
        help=f"run what needs no node, on control planes of this version ({', '.join(versions.VERSIONS)}); repeatable",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
