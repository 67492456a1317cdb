import os
from pathlib import Path

import pytest

from enforcer.detection.types import ContainerState, DetectorState, Phase
from enforcer.kill.circuit_breaker import NAME, OPEN, CircuitBreaker, opened_at, opened_for, reset
from enforcer.runtime.background import BackgroundExecutor
from tests.support.patience import patient
from tests.unit.enforcer.made import GPU

KEY = (("uid", "model"), GPU)
CASE = ContainerState(used_mib=9, phase=Phase.POSTPONED, samples=9, over_for=9.0, used=5.5, at=9.0)


def make(folder: Path) -> CircuitBreaker:
    """Return a breaker whose disk answers in its time."""
    return CircuitBreaker(folder, BackgroundExecutor("disk", wait=patient(10)))


def test_it_is_open_while_the_file_stands_in_every_life(tmp_path: Path) -> None:
    first, calm = make(tmp_path), DetectorState()
    assert (first.sync_from_disk(calm), first.is_open, first.problem) == (calm, False, None)
    (tmp_path / NAME).write_bytes(b"")
    for breaker in (first, make(tmp_path)):
        assert breaker.sync_from_disk(calm).open
        assert (breaker.is_open, breaker.problem) == (True, OPEN)


def test_taking_the_file_away_closes_it_and_gives_everybody_a_full_budget(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    (tmp_path / NAME).write_bytes(b"")
    state = breaker.sync_from_disk(DetectorState(cases={KEY: CASE}, kills={("uid", "model"): 1.0}))
    assert state.open
    assert reset(tmp_path)
    assert breaker.sync_from_disk(state) == DetectorState(cases={KEY: ContainerState(used_mib=9)})
    assert (breaker.is_open, breaker.problem) == (False, None)
    assert not reset(tmp_path)
    assert opened_at(tmp_path) is None


def test_a_disk_that_cannot_tell_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "lstat", fails)
    for state in (DetectorState(), DetectorState(open=True)):
        breaker = make(tmp_path)
        assert (breaker.is_open, breaker.problem) == (False, None)
        assert breaker.sync_from_disk(state) == state
        assert breaker.is_open is False


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"version": 1}', b"[" * 60_000],
    ids=["empty", "list", "cut", "no-text", "another", "deep"],
)
def test_whatever_is_in_the_file_it_is_open_while_it_stands(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert make(tmp_path).sync_from_disk(DetectorState()).open
    assert opened_at(tmp_path) == ""


@pytest.mark.parametrize(("size", "whole"), [(64 * 1024, True), (64 * 1024 + 1, False)])
@pytest.mark.parametrize("time", ["noon", "noön"])
def test_no_more_of_the_file_is_read_than_it_can_have(tmp_path: Path, size: int, time: str, *, whole: bool) -> None:
    data = f'{{"time": "{time}"'.encode()
    (tmp_path / NAME).write_bytes(data + b" " * (size - len(data) - 1) + b"}")
    assert opened_at(tmp_path) == (time if whole else "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, ""),
        (b"{}", ""),
        (b'{"reason": "a new driver"}', "a new driver"),
        (b'{"reason": "' + b"x" * 400 + b'"}', "x" * 300),
    ],
    ids=["closed", "no reason", "reason", "long"],
)
def test_why_it_is_open_is_what_the_operator_wrote(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    assert opened_for(tmp_path) == reason


@pytest.mark.timeout(20)
def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert opened_at(tmp_path) == ""
