"""Figures of safety tests: how often is tried, and what the page says."""

import json
from pathlib import Path

from tests.safety import __main__ as command
from tests.support import extent

PAGE = f"before\n{command.BEGIN}| test | figure | found |\n|---|---|---|\n| 15 | hit | 1 |\n{command.END}\nafter\n"


def test_all_trials_are_for_make_safety() -> None:
    assert (extent.trials(2, 9, {}), extent.trials(2, 9, {extent.VARIABLE: "full"})) == (2, 9)


def test_a_figure_replaces_its_row_and_leaves_the_others(tmp_path: Path) -> None:
    where = tmp_path / "figures"
    extent.figure("3, 4", "lost", "0 in 7", {extent.FIGURES: str(where)})
    rows = command._rows(where.read_text().splitlines())
    page = command._with_table(command._with_table(PAGE, rows), [("15", "hit", "0 in 9")])
    assert page.splitlines()[2:6] == [
        "| test | figure | found |", "|---|---|---|", "| 3, 4 | lost | 0 in 7 |", "| 15 | hit | 0 in 9 |",
    ]  # fmt: skip
    assert (page.splitlines()[0], page.splitlines()[-1]) == ("before", "after")
    assert json.loads(where.read_text())["found"] == "0 in 7"


def test_every_file_runs_in_one_of_two_turns() -> None:
    ran = [file for turn in command.turns() for worker in turn for session in worker for file in session.files]
    there = sorted(file.relative_to(command.ROOT).as_posix() for file in command.ROOT.glob("tests/safety/test_*.py"))
    assert sorted(ran) == there
    assert [len(turn) for turn in command.turns()] == [1, 2]
