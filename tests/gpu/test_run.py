"""The whole kit on the simulated machine, as it is called: verdicts, and everything that can go wrong on the way."""

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.gpu.kit import fake, report, runner
from tests.gpu.kit.registry import experiments, named
from tests.gpu.kit.runner import Plan, Runner
from tests.gpu.kit.setup import ROOT
from tests.gpu.kit.store import Store
from tests.support.need import missing

pytestmark = pytest.mark.node

WATCHED = """
import json, subprocess, sys
from tests.gpu.kit import cleaning
cleaning.adopt_orphans()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
cleaning.reap()
print(json.dumps([done.returncode, done.stdout, done.stderr, len(cleaning.descendants())]))
cleaning.end_all()
"""
"""Runs a command and counts the processes it has left behind, whatever sessions they gave themselves."""


@dataclass(frozen=True)
class Ran:
    """What the command said and left."""

    status: int
    out: str
    err: str
    left: int
    folder: Path

    def results(self) -> dict[str, dict[str, Any]]:
        with tarfile.open(self.folder / "gpu-results.tar.gz") as archive:
            file = archive.extractfile("gpu-results/results.json")
            assert file is not None
            self_said: dict[str, Any] = json.load(file)
        return {each["experiment"]: each for each in self_said["results"]}


Kit = Callable[..., Ran]


@pytest.fixture(name="kit")
def _kit(tmp_path: Path) -> Kit:
    need_library()

    def kit(*words: str, backend: str = "fake", world: dict[str, Any] | None = None, seconds: float = 110) -> Ran:
        switches = [f"--world={key}={value}" for key, value in (world or {}).items()]
        command = [sys.executable, str(runner.RUN), *words, "--backend", backend, "--out", str(tmp_path), *switches]
        watching = [sys.executable, "-c", WATCHED, *command]
        done = subprocess.run(watching, capture_output=True, text=True, timeout=seconds, cwd=ROOT, check=True)
        status, out, err, left = json.loads(done.stdout)
        return Ran(status, out, err, left, tmp_path)

    return kit


HOLDS, FAILS = "holds", "fails"
TIMED = {"H5", "H9", "copies", "models"}
"""What they find depends on how busy the machine of the test is."""
ELSEWHERE = {
    "H11": "limits per cgroup came with driver 615", "compute": "plays no speeds", "priority": "plays no speeds",
    "frameworks": "PyTorch",
}  # fmt: skip
"""What the simulated machine cannot measure, and why not."""
WORLDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "H1 managed memory is counted": ("H1", {"managed_counted": 1}, FAILS, "managed memory are in the process's own"),
    "H1 imports count twice": ("H1", {"ipc_counted": 1}, FAILS, "512 MiB of 512 MiB imported memory are counted"),
    "H1 imports count for nobody": ("H1", {"ipc_counted": 0}, FAILS, "0 MiB of 512 MiB imported"),
    "H1-MPS the server is in no list": ("H1-MPS", {"server_mib": 0}, FAILS, "the MPS server stands in no list"),
    "H1-MPS clients run kernels": ("H1-MPS", {"mps_kernels_of_client": 1}, FAILS, "names an MPS client"),
    "H1-MPS clients are in no list": ("H1-MPS", {"mps_clients_listed": "none"}, FAILS, "in no list with an amount"),
    "H2 an unseen entry changes nothing": ("H2", {"escape_by_unseen_entry": 0}, FAILS, "entry for an unseen GPU"),
    "H2 the environment may raise": ("H2", {"env_limit_raises": 1}, FAILS, "DEFAULT, higher: 7872 MiB"),
    "H2 late variables count": ("H2", {"late_setenv_counts": 1}, FAILS, "set when running"),
    "H2 a missing daemon is an error": ("H2", {"missing_pipe_runs_plain": 0}, FAILS, "wrong pipe directory"),
    "H2 handles are not limited": ("H2", {"limit_counts_created": 0}, FAILS, "DEFAULT, cuMemCreate: 12288 MiB"),
    "H2 pools are not limited": ("H2", {"limit_counts_pooled": 0}, FAILS, "a pool (cuMemAllocAsync): 12288 MiB"),
    "H2 managed memory escapes": ("H2", {"limit_counts_managed": 0}, FAILS, "DEFAULT, managed memory: 12288 MiB"),
    "H2 imports escape": ("H2", {"limit_counts_imported": 0}, FAILS, "DEFAULT, memory imported by IPC: 6144 MiB"),
    "H3 a stranger may terminate": ("H3", {"foreign_uid_may_terminate": 1}, FAILS, "terminate a neighbour"),
    "H3 a stranger may set": ("H3", {"foreign_uid_may_set": 1}, FAILS, "set the thread percentage"),
    "H10 MPS says something else": ("H10", {"mps.get_server_status": "BUSY"}, FAILS, "MPS, get_server_status"),
    "H10 NVML has a call less": ("H10", {"nvml.nvmlDeviceGetComputeMode": 3}, FAILS, "NVML, compute mode"),
    "H14 a new driver needs the file": ("H14", {"shm_needed": 1}, FAILS, "/dev/shm empty: a client is not served"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", WORLDS)
def test_the_result_says_what_the_world_is_like(kit: Kit, case: str) -> None:
    name, world, verdict, said = WORLDS[case]
    ran = kit(name, "--allow-mode-change", world=world)
    found = ran.results()[name]
    _must_be_measured({name: found})
    assert (found["verdict"], said in found["reason"]) == (verdict, True), found["reason"]
    assert (ran.status, ran.left) == (0, 0), ran.err
    assert found["raw"], "every answer is kept"


@pytest.mark.timeout(300)
def test_the_whole_kit_measures_every_experiment_on_the_simulated_machine(kit: Kit) -> None:
    ran = kit("all", "--allow-mode-change", seconds=280)
    found = ran.results()
    assert found.keys() == {each.name for each in experiments()}
    for name, result in found.items():
        assert not result["trouble"], f"{name}: {result['reason']}"
        assert name in TIMED or result["verdict"] != FAILS, f"{name}: {result['reason']}"
    assert (ran.status, ran.left) == (0, 0), ran.err
    _must_be_measured({name: result for name, result in found.items() if name not in ELSEWHERE})
    assert all(said in found[name]["reason"] for name, said in ELSEWHERE.items())


def _must_be_measured(found: dict[str, dict[str, Any]]) -> None:
    """Root, cgroups and the like cannot be had everywhere a test runs: then it says what is missing."""
    lacking = [
        each["reason"] for name, each in found.items()
        if each["verdict"] == "not-measured" and not each["trouble"]
        and not (name in TIMED and each["reason"].startswith("cannot tell"))  # a busy machine hides what it costs
    ]  # fmt: skip
    if lacking:
        missing("; ".join(dict.fromkeys(lacking)))


@pytest.mark.full
def test_without_mps_what_needs_none_is_measured_and_the_rest_says_why(kit: Kit) -> None:
    ran = kit("core", "--only", "h1,h1-mps,h2,h10", "--mps-control", "none")
    found = ran.results()
    assert found["H1"]["verdict"] == HOLDS
    assert "MPS not recorded" in found["H10"]["reason"]
    assert found["H2"]["reason"] == found["H1-MPS"]["reason"] == "MPS was left out (--mps-control none)"
    assert (ran.status, ran.left) == (0, 0)


@pytest.mark.full
def test_without_leave_the_compute_mode_is_never_changed(kit: Kit) -> None:
    found = kit("h2").results()["H2"]
    assert found["verdict"] == HOLDS
    assert found["figures"]["EXCLUSIVE_PROCESS"] == "not measured: mode change not allowed"
    assert kit("h7").results()["H7"]["reason"] == "mode change not allowed"


def test_what_hangs_is_ended_at_its_limit_and_the_rest_goes_on(kit: Kit) -> None:
    # A kernel that never comes back; H10 launches none.
    ran = kit("core", "--only", "h14,h10", "--limit", "8", world={"kernel_us": 2_000_000_000})
    found = ran.results()
    assert found["H14"]["trouble"] == "timeout"
    assert found["H14"]["reason"] == "did not end within 8 s and was ended"
    assert found["H10"]["verdict"] == HOLDS, "it runs before: the folder keeps both"
    assert (ran.status, ran.left) == (1, 0)


@pytest.mark.full
def test_after_one_that_hangs_the_next_is_measured(kit: Kit) -> None:
    ran = kit("core", "--only", "h14,h2", "--limit", "10", world={"kernel_us": 2_000_000_000})
    assert ran.results()["H14"]["trouble"] == "timeout"
    assert ran.results()["H2"]["verdict"] == HOLDS
    assert ran.left == 0


@pytest.mark.full
def test_a_second_run_does_what_is_missing(kit: Kit) -> None:
    kit("h10")
    ran = kit("core", "--only", "h10,h1")
    assert [line.split()[:2] for line in ran.out.splitlines()[:2]] == [["H10", "kept"], ["H1", "holds"]]
    assert "H10      holds" in kit("core", "--only", "h10", "--again").out


@pytest.mark.full
def test_results_of_another_world_are_not_gone_on_with(kit: Kit) -> None:
    kit("h10")
    ran = kit("h1", world={"ipc_counted": 0})
    assert ran.status == 2
    assert "holds results of another machine" in ran.err
    assert "Traceback" not in ran.err


def test_a_budget_is_kept_and_what_was_left_out_says_so(kit: Kit) -> None:
    ran = kit("core", "--only", "h10,h1", "--budget", "5")
    assert {each["trouble"] for each in ran.results().values()} == {"budget"}
    assert "run again to go on" in ran.out
    assert ran.status == 1


@pytest.mark.full
def test_the_one_result_is_a_tar_with_everything(kit: Kit) -> None:
    ran = kit("core", "--only", "h10,h1")
    with tarfile.open(ran.folder / "gpu-results.tar.gz") as archive:
        names = {name.removeprefix("gpu-results/") for name in archive.getnames()}
    assert {"results.json", "table.md", "fixtures/mps.json", "fixtures/nvml.json", "logs/H10.log"} <= names
    machine = json.loads((ran.folder / "results.json").read_text())
    assert machine["facts"]["model"].startswith("NVIDIA A100")
    assert machine["facts"]["kernel"]
    assert len(machine["facts"]["known"]["simulated"]) == 3


def test_a_whole_fake_run_cannot_get_into_the_documentation(kit: Kit) -> None:
    ran = kit("h10")
    whole = json.loads((ran.folder / "results.json").read_text())
    for forged in (whole, {**whole, "backend": "real"}, {**whole, "backend": "real", "gpu": "GPU-other"}):
        with pytest.raises(report.SimulatedError):
            report.document([forged], experiments())


def test_a_simulator_called_real_is_recognised(kit: Kit, tmp_path: Path) -> None:
    setup = fake.prepare(tmp_path / "machine", {})
    os.environ.update(setup.environment)
    try:
        ran = kit("h10", backend="real")
    finally:
        for name in setup.environment:
            del os.environ[name]
    whole = json.loads((ran.folder / "results.json").read_text())
    assert whole["backend"] == "real"
    assert whole["facts"]["known"]["simulated"]


@pytest.mark.parametrize(
    "words", [["h99"], ["core", "--only", "h99"], ["h1", "--world", "gravity=0"], ["h1", "--world", "x"]]
)
def test_what_makes_no_sense_is_reported_in_a_sentence(kit: Kit, words: list[str]) -> None:
    ran = kit(*words)
    assert ran.status == 2
    assert ran.err
    assert "Traceback" not in ran.err


def test_the_doctor_finds_everything_on_the_simulated_machine(kit: Kit) -> None:
    if os.geteuid() != 0:
        missing("everything can be measured by root only")
    ran = kit("doctor", "--allow-mode-change")
    assert (ran.status, ran.left) == (0, 0), ran.out
    assert "stands in Compute" in ran.out
    assert all(each.name in ran.out for each in experiments())
    unmeasured = re.findall(r"× (.*?) {2,}.*needs (.*)", ran.out)  # noqa: RUF001 - the doctor's sign
    assert unmeasured in ([], [("frameworks (bench)", "torch")])  # the tests install no framework


def test_the_doctor_says_what_is_missing(kit: Kit) -> None:
    ran = kit("doctor", "--mps-control", "none")
    assert ran.status == 1
    assert "MPS was left out" in ran.out
    assert "H2 (core)" in ran.out
    assert "cannot be measured: needs mps" in ran.out


def test_the_doctor_of_a_machine_without_a_gpu_ends_with_1_and_clear_lines(kit: Kit) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("there is a GPU here")
    ran = kit("doctor", backend="real")
    assert (ran.status, ran.err, ran.left) == (1, "", 0)
    assert "none is loaded" in ran.out
    assert "libcuda.so.1 cannot be loaded" in ran.out


def test_without_a_gpu_every_experiment_says_why_it_was_not_measured(kit: Kit) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("there is a GPU here")
    ran = kit("all", backend="real")
    assert {each["verdict"] for each in ran.results().values()} == {"not-measured"}
    assert len(ran.results()) == len(experiments())
    assert ran.status == 1


@pytest.fixture(name="machine")
def _machine() -> Iterator[tuple[Any, Path]]:
    need_library()
    with runner.work_folder() as work:
        yield fake.prepare(work, {}), work


def test_a_gpu_somebody_uses_is_left_alone(machine: tuple[Any, Path], tmp_path: Path) -> None:
    setup, work = machine
    somebody = subprocess.Popen(["sleep", "60"])
    try:
        Sim(work / "sim").register(somebody.pid, setup.gpu, 3000)
        setup, facts = runner.look(setup)
    finally:
        somebody.kill()
        somebody.wait()
    assert facts.missing["idle"] == f"GPU busy: 3000 MiB used, by processes {somebody.pid}"
    found = Runner(setup, facts, Store(tmp_path, tmp_path / "t.gz"), work).run(Plan(experiments=[named("h1")]))
    assert found[0].reason.startswith("GPU busy")


def test_a_gpu_in_exclusive_mode_is_somebodys(machine: tuple[Any, Path]) -> None:
    setup, work = machine
    Sim(work / "sim").set_compute_mode(setup.gpu, 3)
    assert "EXCLUSIVE_PROCESS" in runner.look(setup)[1].missing["idle"]


def test_who_is_not_root_measures_what_needs_no_root(machine: tuple[Any, Path], tmp_path: Path) -> None:
    setup, facts = runner.look(machine[0])
    lacking = {**facts.missing, "root": "not root but uid 1000", "cgroup": "no cgroup", "mounts": "no"}
    poorer = replace(facts, missing=lacking, known={**facts.known, "cgroup": "/nowhere"})
    run = Runner(setup, poorer, Store(tmp_path, tmp_path / "t.gz"), machine[1])
    found = run.run(Plan(experiments=[named("h1"), named("h3")]))
    assert found[0].verdict == HOLDS
    assert "no cgroup can be made" in found[0].figures["containers"]
    assert found[1].reason == "not root but uid 1000"


def test_a_compute_mode_is_given_back_even_by_an_experiment_that_was_killed(
    machine: tuple[Any, Path], tmp_path: Path
) -> None:
    setup = replace(machine[0], allow_mode_change=True)
    setup, facts = runner.look(setup)
    sim = Sim(machine[1] / "sim")
    run = Runner(setup, facts, Store(tmp_path, tmp_path / "t.gz"), machine[1])
    run._store.begin(setup, facts)
    sim.set_compute_mode(setup.gpu, 3)
    run._restore_mode()
    assert sim.compute_mode(setup.gpu) == 0


def test_a_run_asked_to_stop_leaves_nothing_and_keeps_what_it_had(tmp_path: Path) -> None:
    need_library()
    command = [
        sys.executable,
        str(runner.RUN),
        "core",
        "--only",
        "h10,h14",
        "--backend",
        "fake",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen([*command, "--world=kernel_us=2000000000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("H10")
    time.sleep(1.0)
    process.terminate()
    process.communicate(timeout=40)
    assert process.returncode == 128 + 15
    assert (tmp_path / "gpu-results.tar.gz").exists()
    mine = f"--out\0{tmp_path}".encode()
    left = [each for each in Path("/proc").glob("[0-9]*/cmdline") if mine in _read(each)]
    assert left == []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
