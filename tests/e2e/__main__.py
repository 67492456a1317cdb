"""``python -m tests.e2e [FILE ...]``: the tests that need a cluster, in lanes beside each other; ``make e2e`` runs it.

Each lane writes into ``.build/lanes``; a line now and then says where each is. Where tests of one or two files failed,
those run once more by themselves, and what passes then is told as flaky at the end. Exit code 0 when all passed, then
or before, 1 when a lane failed or ran nothing of one of its files, 2 wrong use, 130 when stopped: no cluster is left
behind in any case.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import images, versions
from tests.cluster.controlplane import sweep
from tests.e2e import lanes
from tests.e2e.lanes import Lane
from tests.e2e.running import STOPPED, Result, Running

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".build" / "lanes"
CLUSTERS: Final = (ROOT / ".build" / "e2e", ROOT / ".build" / "realnode")
NODES: Final = 4
PATIENCE: Final = 3.0
EVERY_SECONDS: Final = 60.0
TAIL_LINES: Final = 120
SUMMARY_LINES: Final = 6
MOST_AGAIN: Final = 2
"""Files that are run a second time; where more fail it is not the machine that was busy."""
SUMMARY_WIDTH: Final = 250
WRONG_USE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Run everything, or the given files, and return the exit code."""
    asked = _parser().parse_args(argv)
    kubernetes = asked.kubernetes or [versions.chosen()]
    files = lanes.fitting(lanes.marked(ROOT), kubernetes[0])
    if unknown := [file for file in asked.files if file not in files]:
        what = f"that runs on a cluster of Kubernetes {kubernetes[0]}"
        print(f"{', '.join(unknown)}: no test file of this checkout {what}", file=sys.stderr)
        return WRONG_USE
    chosen = {file: files[file] for file in asked.files or files}
    clean()
    if any(chosen.values()):
        for target in images.targets():
            images.image(target)
    running = Running(lanes.deal(chosen, asked.nodes, kubernetes), FOLDER, PATIENCE)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    try:
        return run(running)
    finally:
        clean()


def clean() -> None:
    """Remove clusters whose owner is gone; those of living sessions are let alone."""
    for folder in CLUSTERS:
        sweep(folder)


def run(running: Running, every: float = EVERY_SECONDS) -> int:
    """Start the lanes, say how they stand, and return the exit code once all have ended."""
    began, stopped = time.monotonic(), True
    first: list[Result] = []
    second: list[Result] = []
    try:
        first = second = follow(running, running.lanes, began, every)
        if lane := again(running, first):
            second = follow(running, [lane], began, every)
        stopped = running.stopping
    finally:
        if stopped:
            print("stopping: every lane ends its clusters", flush=True)
            running.stop()
        running.end()
        print("".join(f"{line[:SUMMARY_WIDTH]}\n" for line in summary(running, first, second)), end="", flush=True)
    return STOPPED if stopped else int(bool(second))


def follow(running: Running, lanes: Sequence[Lane], began: float, every: float) -> list[Result]:
    """Start lanes, say how they stand until they have ended or are told to stop, and return what failed."""
    for lane in lanes:
        print(f"{' then '.join(each.name for each in lane)}: {sum(len(each.files) for each in lane)} files", flush=True)
    troubles = []
    running.start(lanes)
    while running.under_way and not running.stopping:
        result = running.next(every)
        lines = running.progress() if result is None else tell(running, result)
        troubles += [result] if result and result.trouble else []
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print("\n".join(f"{minutes:>3}:{seconds:02} {line}" for line in lines), flush=True)
    return troubles


def again(running: Running, troubles: Sequence[Result]) -> Lane:
    """The files of the few tests that failed, to be run once more with nothing beside them; empty where many did.

    What fails then has failed. What passes is told as flaky, with the name of the test.
    """
    sessions = [replace(each.session, name=_again(each), files=files(running, each)) for each in troubles]
    few = 0 < sum(len(each.files) for each in sessions) <= MOST_AGAIN
    return tuple(sessions) if few and all(each.files for each in sessions) and not running.stopping else ()


def files(running: Running, result: Result) -> tuple[str, ...]:
    """Files of which a test failed; none where the session came to an end otherwise."""
    failed = {line.split()[1].partition("::")[0] for line in failures(running, result)}
    return tuple(
        file for file in result.session.files if result.code == pytest.ExitCode.TESTS_FAILED and file in failed
    )


def failures(running: Running, result: Result) -> list[str]:
    """The lines in which pytest names what failed."""
    log = running.log(result.session.name).read_text(errors="replace").splitlines()
    return [line for line in log if line.startswith(("FAILED ", "ERROR "))]


def tell(running: Running, result: Result) -> list[str]:
    """What came of a session, with the end of its log where it failed."""
    took = [f"{seconds:>6.0f} s {ran:>4} tests  {file}" for file, (ran, seconds) in sorted(result.files.items())]
    if not result.trouble:
        return [f"{result.session.name:<14} passed", *took]
    log = running.log(result.session.name)
    ends = ending(log.read_text(errors="replace").splitlines())
    return [f"{result.session.name:<14} FAILED: {result.trouble}; {log} ends:", *ends, *took]


def summary(running: Running, first: Sequence[Result], second: Sequence[Result]) -> list[str]:
    """What failed in all sessions, once more and in few lines: often no more than the end of our output is kept."""
    late = {each.session.name for each in second}
    found: list[str] = []
    for result in first if second is first else (*first, *second):
        flaky = second is not first and result not in second and _again(result) not in late
        verdict = "FLAKY, passed by itself" if flaky else "FAILED"
        found += [f"{result.session.name} {verdict}: {result.trouble}", *failures(running, result)[:SUMMARY_LINES]]
    return found


def _again(result: Result) -> str:
    return f"{result.session.name}-again"


def ending(lines: list[str]) -> list[str]:
    """The end of a session's log without what tests that passed have printed."""
    passes = next((index for index, line in enumerate(lines) if "= PASSES =" in line), len(lines))
    summary = [line for line in lines[passes:] if line.startswith(("FAILED", "ERROR", "="))]
    return [*lines[:passes][-TAIL_LINES:], *summary]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.e2e", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="run only these test files (all)")
    parser.add_argument(
        "--nodes", type=int, default=NODES, metavar="N", help=f"lanes with a node of their own ({NODES})"
    )
    parser.add_argument(
        "--kubernetes",
        action="append",
        choices=tuple(versions.VERSIONS),
        help="of the control plane; once more: of a second one, for the files that depend on it most",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
