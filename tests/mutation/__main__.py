"""``python -m tests.mutation``: break the judge, attribution, the killing and its log in every small way a tool knows.

Each mutant that no unit test notices has to be explained in ``explained.toml``, and few may be. Arguments name
modules to run alone, such as ``enforcer.kill.executor``; then what stands in docs/design/safety.md of the others
stays. What took too long is tried once more at the end, and so is what is explained but did not survive: a busy
machine may have been why.
``--again`` goes on where the last run ended, and tries survivors once more as well: there may be tests for them now.
Exit code: 1 where too many survive, one is not explained, an explanation is of none, or one was not tried.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.mutation import explained, table
from tests.mutation.model import Module
from tests.mutation.results import DOUBTFUL, LATE, called, keys, modules

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "design" / "safety.md"
AGAIN: Final = "--again"
LIMIT_SECONDS: Final = 3600
AT_ONCE: Final = 2 * (os.cpu_count() or 1)
"""Mutants: some wait, for a disk that is slow in the test or for a hang to be over."""
MAX_SURVIVING: Final = 0.05
"""Share of all mutants, explained or not."""


def main(argv: Sequence[str]) -> int:
    """Run, tell, and write the table where all is well."""
    os.chdir(ROOT)  # the tool looks for all it needs there
    names, began = [each for each in argv if each != AGAIN], time.monotonic()
    if AGAIN not in argv:
        shutil.rmtree("mutants", ignore_errors=True)
    code = _run([f"{name}.*" for name in names]) if AGAIN not in argv or not names else 0
    if code == 0 and (left := _worth_another_look(names, DOUBTFUL if AGAIN in argv else LATE)):
        code = _run(left)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    return code or _report(_ran(names))


def _ran(names: Sequence[str]) -> list[Module]:
    return [each for each in modules(ROOT) if not names or each.name in names]


def _worth_another_look(names: Sequence[str], words: Collection[str]) -> list[str]:
    dead = explained.dead(_ran(names), explained.load())
    return sorted({*called(ROOT, names, words), *keys(ROOT, dead)})


def _run(patterns: Sequence[str]) -> int:
    tool = str(Path(sys.executable).with_name("mutmut"))
    # A path of ours would show the tests the sources instead of the mutants.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [tool, "run", f"--max-children={AT_ONCE}", *patterns]
    with subprocess.Popen(command, env=env, start_new_session=True) as running:
        try:
            return running.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"not done after {LIMIT_SECONDS / 60:.0f} minutes", file=sys.stderr)
            return 1
        finally:
            with suppress(ProcessLookupError):  # it forks a server, which forks a process for each mutant
                os.killpg(running.pid, signal.SIGKILL)


def _report(ran: Sequence[Module]) -> int:
    counted, problems = explained.counted(ran, explained.load())
    problems += _too_many(ran)
    for line in table.lines(counted):
        print(line)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        PAGE.write_text(table.put(PAGE.read_text(), counted))
    return 1 if problems else 0


def _too_many(ran: Sequence[Module]) -> list[str]:
    everything, surviving = sum(each.mutants for each in ran), sum(len(each.survivors) for each in ran)
    if surviving <= MAX_SURVIVING * everything:
        return []
    return [f"{surviving} of {everything} mutants survive, more than {MAX_SURVIVING:.0%}; write the missing tests"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
