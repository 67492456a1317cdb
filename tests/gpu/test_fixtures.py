"""What real hardware said, read again by our parsers; and the fakes, held to the same shape.

Recordings come from experiment H10. The answers of the one marked "documentation" were put together from NVIDIA's
manuals and from the control daemon of driver 535.
"""

import json
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.need import need_library
from tests.gpu.kit import replay
from tests.gpu.kit.runner import RUN

RECORDINGS = replay.recordings()
LATER = {"get_client_list <server>  after"}
"""The card's server lists a terminated client until that has disconnected, some 60 ms later; the simulator's not."""


@pytest.fixture(name="folder", params=RECORDINGS)
def _folder(request: pytest.FixtureRequest) -> Path:
    return RECORDINGS[request.param]


@pytest.fixture(name="simulated", scope="module")
def _simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What H10 records on the simulated machine."""
    need_library()
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, str(RUN), "h10", "--backend", "fake", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(out / "gpu-results.tar.gz") as archive:
        files = {name: archive.extractfile(f"gpu-results/fixtures/{name}.json") for name in ("mps", "nvml", "origin")}
        return {name: json.load(file) for name, file in files.items() if file is not None}


def test_there_is_a_recording_and_it_says_where_it_is_from(folder: Path) -> None:
    origin = replay.load(folder, "origin")
    assert origin["origin"] in {replay.RECORDED, replay.DOCUMENTED}
    assert (folder.name == "documentation") is (origin["origin"] == replay.DOCUMENTED)
    if origin["origin"] == replay.DOCUMENTED:
        assert origin["marks"].keys() == replay.load(folder, "mps").keys()


def test_there_is_a_recording_of_hardware() -> None:
    assert replay.RECORDED in {replay.load(each, "origin")["origin"] for each in RECORDINGS.values()}


def test_our_parsers_understand_what_mps_said(folder: Path) -> None:
    assert replay.problems_with_mps(replay.load(folder, "mps")) == []


def test_our_reader_understands_what_nvml_said(folder: Path) -> None:
    assert replay.problems_with_nvml(replay.load(folder, "nvml"), replay.load(folder, "origin")["gpu"]) == []


@pytest.mark.node
@pytest.mark.parametrize("part", ["mps", "nvml"])
def test_the_fakes_answer_in_the_same_shape(folder: Path, simulated: dict[str, Any], part: str) -> None:
    recorded = replay.load(folder, part)
    common = recorded.keys() & simulated[part].keys() - {"nvmlDeviceGetName"} - LATER
    different = {
        key: (replay.shape(recorded[key]), replay.shape(simulated[part][key]))
        for key in sorted(common) if not _alike(recorded[key], simulated[part][key])
    }  # fmt: skip
    assert recorded.keys() <= simulated[part].keys() | {"nvmlDeviceGetCount"}
    assert different == {}


def _alike(recorded: Any, simulated: Any) -> bool:
    """Same shape; an empty list has the shape of any list."""
    if isinstance(recorded, list) and isinstance(simulated, list) and not (recorded and simulated):
        return True
    return bool(replay.shape(recorded) == replay.shape(simulated))


@pytest.mark.node
def test_what_a_fake_records_is_marked_as_simulated(simulated: dict[str, Any]) -> None:
    assert simulated["origin"]["origin"] == "simulated"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_server_list", "Server list:\n12\n"),
        ("get_server_list", ""),
        ("get_server_status <server>", "FAULT\n"),
        ("get_default_device_pinned_mem_limit 0", "\n"),
        ("get_default_active_thread_percentage", "100%\n"),
        ("terminate_client <server> <client>", "0\nServer busy\n"),
        ("terminate_client <server> <nobody>", "0\n"),
    ],
)
def test_an_answer_our_parsers_do_not_expect_is_found(command: str, answer: str) -> None:
    found = replay.problems_with_mps({command: {"status": 0, "out": answer, "err": ""}})
    assert len(found) == 1
    assert command in found[0]


def test_a_row_without_an_amount_or_with_too_much_is_found() -> None:
    folder = RECORDINGS["documentation"]
    gpu = replay.load(folder, "origin")["gpu"]
    for wrong in (None, 1 << 50):
        nvml = replay.load(folder, "nvml")
        nvml["nvmlDeviceGetComputeRunningProcesses"][0]["usedGpuMemory"] = wrong
        assert len(replay.problems_with_nvml(nvml, gpu)) == 1


def test_a_driver_that_only_knows_the_older_names_is_understood() -> None:
    folder = RECORDINGS["documentation"]
    nvml = replay.load(folder, "nvml")
    for name in ("Compute", "Graphics", "MPSCompute"):
        rows = nvml.pop(f"nvmlDeviceGet{name}RunningProcesses")
        nvml[f"nvmlDeviceGet{name}RunningProcesses"] = {"error": -1, "name": "NVMLLibraryMismatchError: x"}
        nvml[f"nvmlDeviceGet{name}RunningProcesses_v2"] = rows
    with warnings.catch_warnings():
        assert replay.problems_with_nvml(nvml, replay.load(folder, "origin")["gpu"]) == []
