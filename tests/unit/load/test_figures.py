"""Figures of scale runs, and the page they go into."""

from pathlib import Path

from tests.load.scale.figures import BEGIN, END, Figure, at_most, none_of, percentile, write

PAGE = f"before\n{BEGIN}| run | figure | found | wanted |\n|---|---|---|---|\n| main | a | 1 |  |\n| churn | b | 2 | 3 |\n{END}\nafter\n"  # noqa: E501


def test_limits_are_held_or_not() -> None:
    assert at_most("main", "ratio", 1.2, 1.2).held
    assert not at_most("main", "ratio", 1.21, 1.2).held
    assert none_of("main", "stuck", [], "5").held
    assert not none_of("main", "stuck", ["x"], "5").held
    assert str(none_of("main", "stuck", ["x"], "5")) == "main: stuck: 1 of 5 (wanted 0: NO)"


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(each) for each in range(1, 101)]
    assert [percentile(values, each) for each in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert (percentile([7.0], 99), percentile([], 99)) == (7.0, 0.0)


def test_a_run_replaces_its_rows_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text(PAGE)
    write([Figure(run="main", what="c", found="4"), Figure(run="main", what="d", found="5", wanted="6")], page)
    rows = [line for line in page.read_text().splitlines() if line.startswith(("| main", "| churn"))]
    assert rows == ["| churn | b | 2 | 3 |", "| main | c | 4 |  |", "| main | d | 5 | 6 |"]
    assert (page.read_text().splitlines()[0], page.read_text().splitlines()[-1]) == ("before", "after")
