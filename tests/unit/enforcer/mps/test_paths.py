"""What an MPS daemon's directory may look like when the enforcer comes to it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.procfs import read_stat
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import folder_of
from enforcer.mps.manager import MpsManager
from gpushare.errors import MpsError
from tests.unit.enforcer.made import GPU, OTHER_GPU


def daemon(folder: Path) -> MpsDaemon:
    return MpsDaemon(GPU, folder / "mps", folder / "no-such-program", limit_mib=1024)


@pytest.mark.parametrize("place", ["mps", "mps/pipe", "mps/log", "mps/log/control.log", "mps/daemon.json.new"])
def test_a_directory_that_cannot_be_used_is_an_answer_and_no_accident(place: str, tmp_path: Path) -> None:
    hindrance = tmp_path / place
    hindrance.parent.mkdir(parents=True, exist_ok=True)
    if place.endswith(("control.log", "json.new")):
        hindrance.mkdir()
        (tmp_path / "mps" / "daemon.json").write_text(json.dumps({"pid": os.getpid(), "start": 1}))
    else:
        hindrance.write_text("")
    manager = MpsManager({GPU: daemon(tmp_path)})
    assert isinstance(manager.start()[GPU], MpsError)
    assert isinstance(manager.health()[GPU], MpsError)


@pytest.mark.parametrize(
    "note",
    [
        {"pid": "1"}, {"pid": -1, "start": 5}, {"pid": 0}, {"pid": 2**70}, {"pid": True}, {"pid": 1.5},
        {"pid": [1]}, {"pid": 7, "start": "soon"}, {"previous_mode": 99}, {"previous_mode": "0"},
        {"gpu": 5, "pid": 7}, [], 5, None,
    ],
)  # fmt: skip
def test_a_note_nobody_wrote_is_no_note(note: Any, tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "daemon.json").write_text(json.dumps(note))
    found = daemon(tmp_path)
    assert not found.noted
    with pytest.raises(MpsError, match="cannot run"):
        found.start()


def test_a_process_that_took_a_dead_daemons_pid_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    stat = read_stat(Path("/proc/self/stat"))
    assert stat
    note = {"pid": os.getpid(), "start": stat.start - 1, "previous_mode": None}
    (tmp_path / "mps" / "daemon.json").write_text(json.dumps(note))
    with pytest.raises(MpsError):
        daemon(tmp_path).start()


def test_another_gpus_daemon_is_neither_taken_over_nor_ended(tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    stat = read_stat(Path("/proc/self/stat"))
    assert stat
    note = json.dumps({"pid": os.getpid(), "start": stat.start, "previous_mode": 0, "gpu": OTHER_GPU})
    (tmp_path / "mps" / "daemon.json").write_text(note)
    found = daemon(tmp_path)
    assert not found.noted
    for act in (found.start, found.stop):
        with pytest.raises(MpsError, match=rf"MPS control daemon \({OTHER_GPU}\); the enforcer .* for {GPU}$"):
            act()
    assert (tmp_path / "mps" / "daemon.json").read_text() == note


def test_every_gpu_has_a_folder_of_its_own_for_ever() -> None:
    assert {len(folder_of(gpu)) for gpu in (GPU, OTHER_GPU)} == {12}
    assert folder_of(GPU) != folder_of(OTHER_GPU)
    assert folder_of("GPU-a1000000-0000-4000-8000-000000000000") == "38d05d67b1e0"
