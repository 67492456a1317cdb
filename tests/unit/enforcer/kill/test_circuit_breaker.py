import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.detection.kill_history import RecentKill
from enforcer.detection.storm import Opening
from enforcer.detection.types import DetectorState, ViolationState
from enforcer.kill.circuit_breaker import NAME, OPEN, CircuitBreaker, opened_at, opened_for, reset
from enforcer.runtime import files
from enforcer.runtime.background import BackgroundExecutor
from tests.support.patience import patient
from tests.unit.enforcer.made import CONTAINER, GPU

KEY = (CONTAINER, GPU)
STORM = DetectorState(
    cases={KEY: ViolationState(used_mib=9, samples=9, over_for=9.0, last=9.0, postponed=True)},
    kills=(RecentKill(1.0, "asr", ("uid", "model")),),
    open=True,
)


def make(folder: Path) -> CircuitBreaker:
    """Return a breaker whose disk answers in its time."""
    return CircuitBreaker(folder, BackgroundExecutor("disk", wait=patient(10)))


def test_what_the_detector_opened_stays_open_in_every_later_life(tmp_path: Path) -> None:
    first = make(tmp_path)
    assert first.is_open is False
    assert make(tmp_path).problem is None
    assert first.sync_from_disk(DetectorState()) == DetectorState()
    first.persist(STORM)
    assert (first.problem, first.sync_from_disk(STORM)) == (OPEN, STORM)
    later = make(tmp_path)
    assert later.sync_from_disk(DetectorState()).open
    later.persist(later.sync_from_disk(DetectorState()))
    assert opened_at(tmp_path), "it says since when"


def test_taking_the_file_away_closes_it_and_gives_everybody_their_grace_again(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    breaker.persist(STORM)
    assert reset(tmp_path)
    state = breaker.sync_from_disk(STORM)
    assert state == DetectorState(cases={KEY: ViolationState(used_mib=9)})
    breaker.persist(state)
    assert breaker.problem is None
    assert not reset(tmp_path)
    assert opened_at(tmp_path) is None


def test_what_the_detector_closes_is_closed_on_disk_before_anything_else_is_believed(tmp_path: Path) -> None:
    breaker, calm = make(tmp_path), DetectorState()
    breaker.persist(STORM)
    breaker.persist(calm)
    assert not (tmp_path / NAME).exists()
    assert (breaker.is_open, breaker.problem, breaker.sync_from_disk(calm)) == (False, None, calm)
    breaker.persist(STORM)
    assert (tmp_path / NAME).exists(), "and it can open again"


def test_a_file_that_cannot_be_removed_is_tried_again_and_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, calm = make(tmp_path), DetectorState()
    breaker.persist(STORM)
    with monkeypatch.context() as patched:

        def fails(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        patched.setattr(Path, "unlink", fails)
        breaker.persist(calm)
        assert breaker.sync_from_disk(calm) == calm
        assert (tmp_path / NAME).exists(), "nobody is killed while it stands"
    breaker.persist(calm)
    assert not (tmp_path / NAME).exists()


def test_a_file_that_is_gone_already_when_the_detector_closes_is_written_when_it_opens_again(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    breaker.persist(STORM)
    assert reset(tmp_path)
    breaker.persist(DetectorState())
    breaker.persist(STORM)
    assert (tmp_path / NAME).exists()


def test_it_can_open_again(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    for _ in range(2):
        breaker.persist(STORM)
        assert (tmp_path / NAME).exists()
        assert reset(tmp_path)
        assert not breaker.sync_from_disk(STORM).open


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"version": 1}', b"[" * 60_000],
    ids=["empty", "list", "cut", "no-text", "another", "deep"],
)
def test_whatever_is_in_the_file_it_is_open_while_it_stands(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert make(tmp_path).sync_from_disk(DetectorState()).open
    assert opened_at(tmp_path) == ""


def test_a_file_that_cannot_be_written_is_tried_again_and_closes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    breaker = make(folder)
    breaker.persist(STORM)
    assert breaker.sync_from_disk(STORM).open, "it is not there, but nobody took it away"
    folder.mkdir()
    breaker.persist(breaker.sync_from_disk(STORM))
    assert (folder / NAME).exists()
    assert reset(folder)
    assert not breaker.sync_from_disk(STORM).open


def test_the_file_says_since_when_and_whose_kills_opened_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.kill.circuit_breaker.utc_now", lambda: "2026-01-02T03:04:05Z")
    make(tmp_path).persist(STORM)
    data = (tmp_path / NAME).read_bytes()
    assert data.endswith(b"}\n")
    killed = {"namespace": "asr", "podUid": "uid", "container": "model"}
    assert json.loads(data) == {"time": "2026-01-02T03:04:05Z", "reason": "", "killed": [killed]}
    assert (opened_at(tmp_path), opened_for(tmp_path)) == ("2026-01-02T03:04:05Z", "")


@pytest.mark.parametrize(("namespaces", "named"), [(2, "n0, n1"), (3, "n0, n1, n2"), (5, "n0, n1, n2, ...")])
def test_the_file_says_which_containers_opened_it(namespaces: int, named: str, tmp_path: Path) -> None:
    by = frozenset((f"n{number % namespaces}", (f"uid-{number}", "model")) for number in range(7))
    make(tmp_path).persist(replace(STORM, opening=Opening(by=by, pods=frozenset())))
    assert opened_for(tmp_path) == f"containers killed or due to be killed: 7, of namespaces {named}"
    reset(tmp_path)
    assert opened_for(tmp_path) == ""


def test_the_mark_is_durable_before_anything_rests_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    replace = files.replace

    def seen(path: Path, data: bytes, *, durable: bool = False) -> None:
        asked.append(durable)
        replace(path, data, durable=durable)

    monkeypatch.setattr(files, "replace", seen)
    make(tmp_path).persist(STORM)
    assert asked == [True]


def test_a_mark_that_an_operator_made_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"for the night")
    breaker = make(tmp_path)
    breaker.persist(breaker.sync_from_disk(DetectorState()))
    assert (tmp_path / NAME).read_bytes() == b"for the night"
    assert reset(tmp_path)
    assert not breaker.sync_from_disk(STORM).open, "it counts as written, so taking it away closes"


def test_a_mark_that_an_operator_makes_before_it_is_read_is_not_removed(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    calm = breaker.sync_from_disk(DetectorState())
    (tmp_path / NAME).write_bytes(b"for the night")
    breaker.persist(calm)
    assert (tmp_path / NAME).read_bytes() == b"for the night"
    assert breaker.sync_from_disk(calm).open


def test_a_mark_that_stands_opens_and_forgets_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    known = DetectorState(cases=STORM.cases, kills=STORM.kills, cooling={("uid", "model"): 7.0})
    reported = make(tmp_path).sync_from_disk(known)
    assert reported == DetectorState(cases=known.cases, kills=known.kills, cooling=known.cooling, open=True)


def test_where_nothing_can_be_reported_of_the_mark_it_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, unwritten = make(tmp_path), make(tmp_path)
    breaker.persist(STORM)

    def fails(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "lstat", fails)
    assert breaker.sync_from_disk(STORM) == STORM
    assert breaker.sync_from_disk(DetectorState()).open
    assert unwritten.sync_from_disk(DetectorState()) == DetectorState()


@pytest.mark.parametrize(("size", "whole"), [(64 * 1024, True), (64 * 1024 + 1, False)])
@pytest.mark.parametrize("time", ["noon", "noön"])
def test_no_more_of_the_file_is_read_than_it_can_have(tmp_path: Path, size: int, time: str, *, whole: bool) -> None:
    data = f'{{"time": "{time}"'.encode()
    (tmp_path / NAME).write_bytes(data + b" " * (size - len(data) - 1) + b"}")
    assert opened_at(tmp_path) == (time if whole else "")


@pytest.mark.timeout(20)
def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert opened_at(tmp_path) == ""


def test_being_reported_again_that_it_is_closed_closes_nothing_that_opened_since(tmp_path: Path) -> None:
    breaker = make(tmp_path)
    breaker.persist(STORM)
    assert reset(tmp_path)
    assert not breaker.sync_from_disk(STORM).open
    assert breaker.sync_from_disk(STORM) == STORM, "it opened anew and is not written yet"
