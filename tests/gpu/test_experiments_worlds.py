"""H4 to H9, H11 to H13, H15, borrow and the benchmarks on simulated machines where the hypothesis holds or is false.

The verdict has to say which. Without MPS they measure what is left.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.build import NoCompilerError
from tests.gpu.kit import cgroups, cleaning, fake
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.registry import named
from tests.gpu.kit.result import Result, Verdict
from tests.gpu.kit.runner import RUN, environment, look, work_folder
from tests.support.need import missing

pytestmark = [pytest.mark.node, pytest.mark.full]

HOLDS, FAILS, NOT_MEASURED = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_MEASURED
Measure = Callable[..., Result]


@pytest.fixture(name="known", scope="module")
def _known() -> tuple[str, Facts]:
    """The simulated machine's GPU and facts: no world changes them, and asking costs a process each time."""
    with work_folder() as work:
        try:
            setup, facts = look(fake.prepare(work, {}, allow_mode_change=True))
        except NoCompilerError as error:
            missing(str(error))
    return setup.gpu, facts


@pytest.fixture(name="measure")
def _measure(known: tuple[str, Facts]) -> Iterator[Measure]:
    with work_folder() as work:

        def measure(name: str, *, mps: bool = True, machine: str = fake.MACHINE, **world: Any) -> Result:
            """Run one experiment as the runner does, in a child process, with its smallest plan."""
            texts = {key: str(value) for key, value in world.items()}
            setup = fake.prepare(work, texts, machine=machine, allow_mode_change=True)
            setup, facts = (replace(setup, gpu=known[0]), known[1]) if machine == fake.MACHINE else look(setup)
            if mps:
                return run(name, setup, facts, work)
            return run(name, replace(setup, mps_control="", mps_problem="no MPS"), without_mps(facts), work)

        yield measure


def without_mps(facts: Facts) -> Facts:
    return replace(facts, missing={**facts.missing, "mps": "no MPS"})


def run(name: str, setup: Any, facts: Facts, work: Path) -> Result:
    lacking = [facts.missing[need] for need in named(name).needs if need in facts.missing]
    if lacking:
        pytest.skip("; ".join(lacking))
    folder = work / "one"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "setup.json").write_text(setup.to_json())
    (folder / "facts.json").write_text(json.dumps(facts.as_dict()))
    command = [sys.executable, str(RUN), "_one", name, str(folder)]
    done = subprocess.run(command, env=environment(setup), capture_output=True, text=True, timeout=60, check=False)
    cleaning.end_all()
    cgroups.remove(folder / "cgroups")
    assert (folder / "result.json").exists(), done.stderr[-3000:]
    return Result.from_json((folder / "result.json").read_text())


CASES: dict[str, tuple[str, dict[str, Any], Verdict, str]] = {
    "H4 the ladder hurts nobody": ("H4", {}, HOLDS, "SIGKILL alone: 0 of"),
    "H4 SIGKILL hurts neighbours, the ladder does not": (
        "H4", {"sigkill_hurts_neighbours": 1}, HOLDS, "SIGKILL alone: 1 of 1 did harm",
    ),
    "H4 the ladder hurts neighbours": ("H4", {"terminate_hurts_neighbours": 1}, FAILS, "ladders did harm"),
    "H4 neighbours compute wrongly": ("H4", {"terminate_hurts_neighbours": 2}, FAILS, "a wrong result"),
    "H5 the enforcer is in time": ("H5", {}, HOLDS, "over its kill threshold"),
    "H5 MPS does not let go of clients": ("H5", {"mps.terminate_client": "1"}, FAILS, "did not end"),
    "a borrower gives way": ("borrow", {}, HOLDS, "all of it back"),
    "a borrower that MPS does not let go of": ("borrow", {"mps.terminate_client": "1"}, FAILS, "was refused memory"),
    "H6 only clients are hurt": ("H6", {}, HOLDS, "all 2 neighbours hurt"),
    "H6 faults are contained": ("H6", {"fault_contained": 1}, FAILS, "2 of 2 neighbours were not hurt"),
    "H7 an eager server keeps the card": ("H7", {}, HOLDS, "without one it took it 1 of 1"),
    "H7 an idle server does not": ("H7", {"idle_server_holds_gpu": 0}, FAILS, "took the card"),
    "H8 as many clients as promised": ("H8", {}, HOLDS, "48 served"),
    "H8 one user's clients at a time": ("H8", {"multiuser_supported": 0}, FAILS, "was not served beside the first"),
    "H8 fewer clients": ("H8", {"max_clients": 16}, FAILS, "16 clients were served"),
    "H9 looking is cheap": ("H9", {"kernel_us": 3000}, HOLDS, "%"),
    "H9 looking stops the GPU": ("H9", {"kernel_us": 3000, "poll_holds_us": 150_000}, FAILS, "it cost"),
    "H11 the driver has no limits per cgroup": ("H11", {}, NOT_MEASURED, "not available: driver 580"),
    "H11 limits bind": ("H11", {"machine": "mixed"}, HOLDS, "and 2048 MiB behind descriptors"),
    "H11 limits are shown and do not bind": (
        "H11", {"machine": "mixed", "cgroup_limits_bind": 0}, FAILS, "under a limit of 1024 MiB",
    ),
    "H12 our kills raise nothing grave": ("H12", {}, HOLDS, "31"),
    "H12 they raise a fatal XID": ("H12", {"terminate_xid": 79}, FAILS, "ladder raised XID 79"),
    "H13 exactly the right ones are ended": ("H13", {}, HOLDS, "no wrong kill"),
    "H13 the ladder hurts neighbours": ("H13", {"terminate_hurts_neighbours": 1}, FAILS, "within its quota"),
    "H15 limits show as documented": ("H15", {"machine": "mixed"}, HOLDS, "no limit, pinned limit, cgroup limit"),
    "H15 a pinned limit is the total": ("H15", {"limit_is_total": 1}, FAILS, "pinned limit: total is 4096"),
    "H15 a pinned limit shows nowhere": ("H15", {"limit_is_free": 0}, FAILS, "under a limit of 4096"),
    "hidden memory is counted for nobody": ("hidden", {}, HOLDS, "under a limit of 8192"),
    "compute is not played": ("compute", {}, NOT_MEASURED, "plays no speeds"),
    "context takes less with fewer SMs": ("context", {}, HOLDS, "MiB by percentage"),
    "context does not": ("context", {"context_mib": 900}, FAILS, "kept are"),
    "copies gain by MPS": ("copies", {}, HOLDS, "times the work"),
    "copies gain nothing": ("copies", {"mps_concurrent": 0}, FAILS, "times the work"),
    "models are answered in time": ("models", {}, HOLDS, "99 % within"),
    "models are not": ("models", {"kernel_us": 200_000}, FAILS, "99 % within"),
}  # fmt: skip


TIMED = ("H5", "H9", "copies", "models")
"""Their verdict rests on how long things take."""
AGAIN = 2
"""Such a one is asked for again where it should hold: a busy machine can spoil that, and cannot make it."""


@pytest.mark.parametrize("case", CASES)
def test_the_result_says_what_the_world_is_like(measure: Measure, case: str) -> None:
    name, world, verdict, said = CASES[case]
    found = measure(name, **world)
    for _ in range(AGAIN if name in TIMED and verdict is HOLDS else 0):
        found = found if found.verdict is HOLDS else measure(name, **world)
    assert (found.verdict, said in found.reason) == (verdict, True), f"{found.verdict}: {found.reason}"


def test_without_mps_plain_processes_are_measured(measure: Measure) -> None:
    found = measure("H5", mps=False)
    assert found.verdict is HOLDS, found.reason
