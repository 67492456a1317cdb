from pathlib import Path

import pytest

from enforcer.judging.judge import Case, Kill, State
from enforcer.killing.breaker import NAME, OPEN, Breaker, opened_at, reset
from tests.unit.enforcer.made import CONTAINER, GPU

KEY = (CONTAINER, GPU)
STORM = State(
    cases={KEY: Case(used_mib=9, samples=9, over_for=9.0, last=9.0, held_back=True)},
    kills=(Kill(1.0, "asr", ("uid", "model")),),
    open=True,
)


def test_what_the_judge_opened_stays_open_in_every_later_life(tmp_path: Path) -> None:
    first = Breaker(tmp_path)
    assert first.told(State()) == State()
    first.keep(STORM)
    assert (first.problem, first.told(STORM)) == (OPEN, STORM)
    later = Breaker(tmp_path)
    assert later.told(State()).open
    later.keep(later.told(State()))
    assert opened_at(tmp_path), "it says since when"


def test_taking_the_file_away_closes_it_and_gives_everybody_their_grace_again(tmp_path: Path) -> None:
    breaker = Breaker(tmp_path)
    breaker.keep(STORM)
    assert reset(tmp_path)
    state = breaker.told(STORM)
    assert state == State(cases={KEY: Case(used_mib=9)})
    breaker.keep(state)
    assert breaker.problem is None
    assert not reset(tmp_path)
    assert opened_at(tmp_path) is None


def test_it_can_open_again(tmp_path: Path) -> None:
    breaker = Breaker(tmp_path)
    for _ in range(2):
        breaker.keep(STORM)
        assert (tmp_path / NAME).exists()
        assert reset(tmp_path)
        assert not breaker.told(STORM).open


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff", b'{"version": 1}', b"[" * 60_000],
    ids=["empty", "list", "cut", "no-text", "another", "deep"],
)
def test_whatever_is_in_the_file_it_is_open_while_it_stands(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert Breaker(tmp_path).told(State()).open
    assert opened_at(tmp_path) == ""


def test_a_file_that_cannot_be_written_is_tried_again_and_closes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    breaker = Breaker(folder)
    breaker.keep(STORM)
    assert breaker.told(STORM).open, "it is not there, but nobody took it away"
    folder.mkdir()
    breaker.keep(breaker.told(STORM))
    assert (folder / NAME).exists()
    assert reset(folder)
    assert not breaker.told(STORM).open
