"""What an H100 with driver 580.159.04 did, held against the simulator; and the committed figures, asked again today.

The table in docs/design/hardware.md names the test of each row.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.mps import log_parser
from tests.fakes.gpu import exports
from tests.fakes.gpu.mps_daemon import Daemon
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import GpuHost, host
from tests.fakes.gpu.state import Machine, Sim
from tests.gpu.experiments import h1, h2, h3, h14
from tests.gpu.kit import report
from tests.gpu.kit.registry import experiments
from tests.gpu.kit.result import Verdict
from tests.gpu.kit.setup import ROOT

LIMIT, PERCENTAGE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
STRANGER = 65534
H100 = "h100x4"


@pytest.fixture(name="here")
def _here() -> Iterator[GpuHost]:
    with host(need_library(), "single-16g") as made:
        yield made


@pytest.fixture(name="h100")
def _h100() -> Iterator[GpuHost]:
    with host(need_library(), H100) as made:
        yield made


def committed(experiment: str) -> tuple[dict[str, Any], str]:
    """The figures of an experiment and the driver of its run."""
    runs = [(run, each) for run in report.committed() for each in run["results"] if each["experiment"] == experiment]
    run, result = runs[0]
    return dict(result["figures"]), str(run["driver"])


@pytest.mark.node
def test_a_context_takes_memory_by_the_multiprocessors_it_may_use(h100: GpuHost) -> None:
    pipe = h100.daemon()
    rows, _ = committed("H1-MPS")
    assert h100.rows(_started(h100, pipe)) == [("mps", rows["processes"][0]["context_mib"])]
    assert h100.rows(_started(h100, pipe, **{PERCENTAGE: "50"})) == [("mps", 24 + 132 * 373 // 200)]
    assert h100.rows(_started(h100, None, **{PERCENTAGE: "50"})) == [("compute", 516)], "only under MPS"


def _started(here: GpuHost, pipe: Path | None, **variables: str) -> int:
    program = here.start(pipe=pipe, env=variables)
    assert program.hello["ready"]
    return program.pid


@pytest.mark.node
@pytest.mark.parametrize("entry", ["0=2G,1=8G", "GPU-00000000-0000-4000-8000-00000000dead=2G", "0=lots"])
def test_an_entry_that_means_nothing_drops_every_limit(here: GpuHost, entry: str) -> None:
    pipe = here.daemon()
    here.control(pipe, "set_default_device_pinned_mem_limit 0 4096M")
    assert here.start(pipe=pipe, env={LIMIT: entry}).ask("fill 64 12288")["mib"] == 12288


@pytest.mark.node
def test_the_server_holds_memory(here: GpuHost) -> None:
    pipe = here.daemon()
    _started(here, pipe)
    server = int(here.control(pipe, "get_server_list"))
    assert here.rows(server) == [("compute", 66)]


@pytest.mark.node
def test_memory_that_descriptors_hold_is_counted_for_nobody(here: GpuHost) -> None:
    mine, theirs = socket.socketpair()
    program = str(ROOT / "tests" / "gpu" / "exporter.py")
    environment = here.sim.environment(need_library()) | {"PATH": os.environ["PATH"]}
    with theirs, subprocess.Popen(
        [sys.executable, program, str(theirs.fileno()), "2", "1024"], env=environment, pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as maker:  # fmt: skip
        assert maker.stdout is not None
        assert json.loads(maker.stdout.readline()) == {"ready": True, "made": 2}
        held = [each for _ in range(2) for each in socket.recv_fds(mine, 1, 1)[1]]
        assert (here.rows(maker.pid), here.sim.exported(here.gpus[0])) == ([("compute", 300)], 2048)
        maker.kill()
    assert (here.sim.used(here.gpus[0]), here.sim.processes()) == (2048, {})
    assert here.start().ask("meminfo")["free_mib"] == 16384 - 512 - 300 - 2048, "and so says the card"
    os.close(held[0])
    assert here.sim.exported(here.gpus[0]) == 1024
    os.close(held[1])
    mine.close()
    assert here.sim.exported(here.gpus[0]) == 0


@pytest.mark.node
def test_the_card_counts_a_descriptor_of_a_program_without_cuda(here: GpuHost) -> None:
    program = here.start()
    before = program.ask("meminfo")["free_mib"]
    descriptor = exports.make(here.sim.folder / exports.FOLDER, here.gpus[0], 1024)
    assert program.ask("meminfo")["free_mib"] == before - 1024
    os.close(descriptor)
    assert program.ask("meminfo")["free_mib"] == before


@pytest.mark.node
def test_nvml_names_the_server_for_kernels_of_its_clients(here: GpuHost) -> None:
    pipe = here.daemon()
    client = here.start(pipe=pipe)
    assert client.ask("gemm 8 1")["ok"]
    server = int(here.control(pipe, "get_server_list"))
    assert here.sim.ran_kernels(here.gpus[0], 0).keys() == {server}


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_device_pinned_mem_limit 0 1M", ""),
        ("set_default_active_thread_percentage 1", ""),
        ("terminate_client 5 6", "800\n"),
        ("shutdown_server 5 -f", ""),
        ("start_server -uid 0", ""),
    ],
)
def test_a_stranger_changes_nothing_on_a_new_driver(tmp_path: Path, command: str, answer: str) -> None:
    sim = Sim.create(tmp_path, "single-16g")
    daemon = Daemon(sim, sim.machine.gpus[0].uuid)
    refused = daemon.answer(command, STRANGER)
    assert refused.startswith(f"Insufficient privileges for UID {STRANGER}. ")
    assert refused.endswith(f"root user.\n{answer}")
    assert daemon.answer("get_default_active_thread_percentage", STRANGER) == "100.0\n", "who asks is answered"
    assert "privilege" not in daemon.answer(command, os.getuid())


def test_of_recorded_logs_only_those_of_a_fault_are_of_trouble() -> None:
    found: dict[str, set[str]] = {}
    for result in (each for run in report.committed() for each in run["results"]):
        texts = [text for each in result["raw"] if each["kind"] == "mps-log" for text in each["answered"].values()]
        lines = log_parser.parsed(text.encode() for text in "\n".join(texts).splitlines())
        found.setdefault(result["experiment"], set()).update(line.text for line in lines if line.severity == 2)
    assert len(found) > 15
    assert {experiment for experiment, trouble in found.items() if trouble} <= {"H6", "H12"}
    assert any("to be torn down" in text for text in found["H6"])


def test_a_simulated_model_has_the_multiprocessors_of_the_card() -> None:
    assert {gpu.sms for gpu in Machine.named(H100).gpus} == {132}


def test_no_committed_figure_contradicts_what_is_believed_today() -> None:
    found = [result for _, result in report.newest(report.committed(), experiments()).values()]
    wrong = {each.experiment: each.reason for each in found if each.verdict is Verdict.FAILS}
    assert len(found) >= 19
    assert wrong == {}


OTHERS: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "imports count twice": (h1, "H1", {"shared": {"allocated_mib": 1024, "importer_grew_mib": 1024}}, "as well"),
    "imports are lost": (
        h1, "H1", {"shared": {"allocated_mib": 1024, "importer_grew_mib": 0, "importer_grew_without_exporter_mib": 0}},
        "when the exporter has ended",
    ),
    "the server has no row": (h1, "H1-MPS", {"server": {"7": {}}}, "stands in no list"),
    "clients are named": (h1, "H1-MPS", {"ran_kernels": {"the client": True, "the server": True}}, "names an MPS"),
    "managed memory escapes": (h2, "H2", {"DEFAULT": {"managed memory": 12288}}, "managed memory: 12288 MiB"),
    "an unknown entry is skipped": (h2, "H2", {"DEFAULT": {"unknown UUID": 3520}}, "unknown UUID: 3520 MiB"),
    "a stranger ends a client": (h3, "H3", {"effect_on_others": {"terminate": True}}, "terminate: has an effect"),
    "there is a file": (h14, "H14", {"files": [{"user": 0, "mode": "0666"}]}, "the server makes a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_a_driver_that_differs_from_the_recorded_one_fails(case: str) -> None:
    module, experiment, changes, said = OTHERS[case]
    figures, driver = committed(experiment)
    found = module.judge_figures(figures | changes, driver)
    assert (found.verdict, said in found.reason) == (Verdict.FAILS, True), found.reason


def test_before_580_a_client_needs_the_file_of_its_server() -> None:
    figures, _ = committed("H14")
    assert h14.judge_figures(figures, "570.86.15").verdict is Verdict.FAILS


def test_each_row_of_the_table_names_a_test() -> None:
    table = (ROOT / "tests" / "gpu" / "kit" / "hardware.simulator.md").read_text()
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", table)
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
