"""Workers to their end: where each is, now and then; what failed and why; a second round for a few failures."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.testbed.parallel.running import STOPPED, Result, Running
from tests.testbed.parallel.workers import Worker

EVERY_SECONDS: Final = 60.0
TAIL_LINES: Final = 120
SUMMARY_LINES: Final = 6
SUMMARY_WIDTH: Final = 250
MOST_AGAIN: Final = 2
"""Files that are run a second time; where more fail it is not the machine that was busy."""


def run(running: Running, every: float = EVERY_SECONDS, *, second_round: bool = False) -> int:
    """Start the workers, say how they stand, and return the exit code once all have ended.

    With a second round the files of a few tests that failed run once more with nothing beside them: that tells what
    fails now and then from what always does, and excuses neither.
    """
    began, stopped = time.monotonic(), True
    first: list[Result] = []
    second: list[Result] = []
    try:
        first = second = follow(running, running.workers, began, every)
        if second_round and (worker := again(running, first)):
            second = follow(running, [worker], began, every)
        stopped = running.stopping
    finally:
        if stopped:
            print("stopping: every worker ends its clusters", flush=True)
            running.stop()
        running.end()
        print("".join(f"{line[:SUMMARY_WIDTH]}\n" for line in summary(running, first, second)), end="", flush=True)
    return STOPPED if stopped else int(bool(first))


def follow(running: Running, workers: Sequence[Worker], began: float, every: float) -> list[Result]:
    """Start workers, say how they stand until they have ended or are told to stop, and return what failed."""
    for worker in workers:
        print(
            f"{' then '.join(each.name for each in worker)}: {sum(len(each.files) for each in worker)} files",
            flush=True,
        )
    troubles = []
    running.start(workers)
    while running.under_way and not running.stopping:
        result = running.next(every)
        lines = running.progress() if result is None else tell(running, result)
        troubles += [result] if result and result.trouble else []
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print("\n".join(f"{minutes:>3}:{seconds:02} {line}" for line in lines), flush=True)
    return troubles


def again(running: Running, troubles: Sequence[Result]) -> Worker:
    """The files of the few tests that failed, to be run once more with nothing beside them; empty where many did.

    What passes then is told as flaky, with the name of the test; it has failed all the same.
    """
    sessions = [replace(each.session, name=_again(each), files=files(running, each)) for each in troubles]
    few = 0 < sum(len(each.files) for each in sessions) <= MOST_AGAIN
    return tuple(sessions) if few and all(each.files for each in sessions) and not running.stopping else ()


def files(running: Running, result: Result) -> tuple[str, ...]:
    """Files of which a test failed; none where the session came to an end otherwise."""
    failed = {line.partition(" ")[2].partition("::")[0] for line in failures(running, result)}
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
        outcome = "FLAKY, passed by itself" if flaky else "FAILED"
        found += [f"{result.session.name} {outcome}: {result.trouble}", *failures(running, result)[-SUMMARY_LINES:]]
    return found


def _again(result: Result) -> str:
    return f"{result.session.name}-again"


def ending(lines: list[str]) -> list[str]:
    """The end of a session's log without what tests that passed have printed."""
    passes = next((index for index, line in enumerate(lines) if "= PASSES =" in line), len(lines))
    summary = [line for line in lines[passes:] if line.startswith(("FAILED", "ERROR", "="))]
    return [*lines[:passes][-TAIL_LINES:], *summary]
