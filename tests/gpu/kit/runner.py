"""Runs experiments, each in a process of its own and under its limit; what hangs is ended and the rest goes on.

A result is kept the moment it is there, and the tar is written after each: a run that is cut off has lost one
experiment. Started again, it does what is missing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.gpu.kit import cgroups, cleaning, report
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.registry import Experiment
from tests.gpu.kit.result import Result, Trouble, Verdict, not_measured
from tests.gpu.kit.setup import ROOT, Setup
from tests.gpu.kit.store import Store

RUN: Final = ROOT / "tests" / "gpu" / "run.py"
TIDY_S: Final = 12.0
FACTS_S: Final = 60.0
LAST_LINES: Final = 1500


class ChildFailedError(RuntimeError):
    """A child process of ours did not do what it should; the message is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: ``budget_s`` for all of it together, no limit where it is ``None``."""

    experiments: Sequence[Experiment]
    budget_s: float | None = None
    limit_s: float | None = None
    again: bool = False


class Runner:
    """One run on one machine. ``work`` is a short path that every user can enter."""

    def __init__(self, setup: Setup, facts: Facts, store: Store, work: Path) -> None:
        self._setup, self._facts, self._store, self._work = setup, facts, store, work

    def run(self, plan: Plan) -> list[Result]:
        """Run what is not done yet; prints a line for each. Raises ``OtherMachineError``."""
        self._store.begin(self._setup, self._facts, plan.again)
        end = None if plan.budget_s is None else time.monotonic() + plan.budget_s
        results = []
        for each in plan.experiments:
            limited = each if plan.limit_s is None else replace(each, limit_s=min(each.limit_s, plan.limit_s))
            results.append(self._one(limited, end))
            whole = self._store.collect()
            self._store.pack(whole, report.table(whole))
        return results

    def _one(self, experiment: Experiment, end: float | None) -> Result:
        kept = self._store.done(experiment.name)
        if kept is not None:
            _say(kept, "kept")
            return kept
        lacking = [self._facts.missing[need] for need in experiment.needs if need in self._facts.missing]
        left = None if end is None else end - time.monotonic()
        if lacking:
            result = not_measured("; ".join(dict.fromkeys(lacking)))
        elif left is not None and left < experiment.limit_s:
            told = f"may take {experiment.limit_s:g} s and {max(0.0, left):.0f} s are left; run again to go on"
            result = not_measured(told, Trouble.BUDGET)
        else:
            result = self._measure(experiment)
        result = result.of(experiment.name, experiment.hypothesis, result.seconds)
        self._store.put(result)
        _say(result)
        return result

    def _measure(self, experiment: Experiment) -> Result:
        work = self._work / experiment.name.lower()
        work.mkdir()
        work.chmod(0o755)
        (work / "setup.json").write_text(self._setup.to_json())
        (work / "facts.json").write_text(json.dumps(self._facts.as_dict()))
        begun = time.monotonic()
        try:
            late = self._child(experiment, work)
        finally:
            left = cleaning.end_all()
            cgroups.remove(work / "cgroups")
        result = self._found(experiment, work, late=late)
        self._store.take_fixtures(work)
        shutil.rmtree(work, ignore_errors=True)
        self._restore_mode()
        more = [{"kind": "left-running", "answered": len(left)}] if left else []
        return replace(result, seconds=round(time.monotonic() - begun, 3), raw=[*result.raw, *more])

    def _child(self, experiment: Experiment, work: Path) -> bool:
        """Let it run; true where it had to be ended."""
        command = [self._setup.python, str(RUN), "_one", experiment.name, str(work)]
        with self._store.log(experiment.name).open("wb") as log:
            child = subprocess.Popen(
                command, env=environment(self._setup), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            with suppress(subprocess.TimeoutExpired):
                child.wait(experiment.limit_s)
                return False
            # Asked first: it then closes its clients and stops its daemon in order.
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(TIDY_S)
            child.kill()
            child.wait()
            return True

    def _found(self, experiment: Experiment, work: Path, *, late: bool) -> Result:
        if late:
            return not_measured(f"did not end within {experiment.limit_s:g} s and was ended", Trouble.TIMEOUT)
        with suppress(OSError, ValueError):
            return Result.from_json((work / "result.json").read_text())
        said = self._store.log(experiment.name).read_text(errors="replace")[-LAST_LINES:].strip()
        last = said.splitlines()[-1] if said else "it said nothing"
        return not_measured(f"broke off: {last}", Trouble.ERROR)

    def _restore_mode(self) -> None:
        """Whatever happened, the GPU's compute mode is what it was; nothing is asked where nothing may change it."""
        if self._setup.allow_mode_change and "compute_mode" in self._facts.known:
            ask(self._setup, "_mode", str(self._facts.known["compute_mode"]))


def environment(setup: Setup) -> dict[str, str]:
    """What our own child processes get: nothing of CUDA's or MPS's from outside, and the libraries' folder."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVIDIA_"))}
    return {**own, "PYTHONPATH": os.pathsep.join([str(ROOT), *_sites()]), **setup.environment}


def _sites() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != str(ROOT)]


def ask(setup: Setup, *arguments: str) -> str:
    """Have a child of ours do something with the libraries loaded; returns what it printed.

    Raises:
        ChildFailedError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "setup.json"
        file.write_text(setup.to_json())
        command = [setup.python, str(RUN), arguments[0], str(file), *arguments[1:]]
        try:
            done = subprocess.run(
                command, env=environment(setup), cwd=ROOT, capture_output=True, text=True, timeout=FACTS_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ChildFailedError(f"{arguments[0]} did not answer within {FACTS_S:g} s") from error
    if done.returncode != 0:
        raise ChildFailedError(done.stderr.strip()[-LAST_LINES:])
    return done.stdout


def look(setup: Setup) -> tuple[Setup, Facts]:
    """Know the machine: the setup with the GPU's UUID in it, and what there is. Raises ``ChildFailedError``."""
    values = json.loads(ask(setup, "_facts"))
    return replace(setup, gpu=values["gpu"] or setup.gpu), Facts(**values["facts"])


@contextmanager
def work_folder() -> Iterator[Path]:
    """Short (sockets have 108 bytes), enterable by every user, and gone at the end with every process we started."""
    cleaning.adopt_orphans()
    previous = signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="gk-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        cleaning.end_all()
        for made in folder.glob("*/cgroups"):
            cgroups.remove(made)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, previous)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def _say(result: Result, word: str = "") -> None:
    verdict = "not measured" if result.verdict is Verdict.NOT_MEASURED else result.verdict.value
    print(f"{result.experiment:8} {word or verdict:13} {result.seconds:6.1f} s  {result.reason}", flush=True)
