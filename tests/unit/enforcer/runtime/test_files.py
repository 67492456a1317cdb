"""A file of ours is read where it is a plain one; what else stands in its place keeps nobody waiting."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.detection import state_file
from enforcer.detection.types import DetectorState
from enforcer.dra.cdi_files import put
from enforcer.dra.checkpoint import ClaimStore
from enforcer.mps.state_file import FILE, DaemonRecord, DaemonStateFile
from enforcer.quota import checkpoint
from enforcer.status.pod_status_files import load_previous
from gpushare import files
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import World, make

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    return tmp_path / "file"


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _link(place: Path) -> None:
    place.with_name("elsewhere").write_bytes(b"elsewhere")
    place.symlink_to("elsewhere")


def test_a_plain_file_is_read_and_no_more_of_it_than_wanted(place: Path) -> None:
    place.write_bytes(b"0123456789")
    assert files.read_regular_file(place, 100) == b"0123456789"
    assert files.read_regular_file(place, 4) == b"0123"


@pytest.mark.parametrize("make_other", [_pipe, _link, Path.mkdir])
def test_what_is_no_plain_file_is_an_error_at_once(place: Path, make_other: Callable[[Path], object]) -> None:
    make_other(place)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="file"):
        files.read_regular_file(place, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_that_there_is_none_is_reported_as_such(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_regular_file(place, 100)


def test_an_enforcer_starts_whatever_stands_in_place_of_what_it_remembers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / state_file.NAME)
    for world in make(tmp_path, enforcing=True):
        assert isinstance(world, World)
        assert world.enforcer._state == DetectorState()


def test_quotas_that_are_no_plain_file_are_none_and_that_is_notified(tmp_path: Path) -> None:
    quotas = checkpoint.Checkpoint(tmp_path)
    os.mkfifo(quotas.path)
    assert quotas.read() == ()
    assert "not a regular file" in (quotas.problem or "")
    quotas.write([])
    assert quotas.path.is_file()


def test_neither_a_claim_nor_a_note_nor_a_pods_file_keeps_anybody_waiting(tmp_path: Path, place: Path) -> None:
    os.mkfifo(place)
    assert load_previous(place) == ()
    put(place, b"ours")
    assert place.read_bytes() == b"ours"
    os.mkfifo(tmp_path / FILE)
    assert DaemonStateFile(tmp_path, GPU).read() == DaemonRecord()
    (tmp_path / "claims").mkdir()
    os.mkfifo(tmp_path / "claims" / "claim-1.json")
    claims = ClaimStore(tmp_path)
    claims.load()
    assert ["not a regular file" in each for each in claims.problems()] == [True]
