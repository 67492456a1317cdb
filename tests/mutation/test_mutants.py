import json
from pathlib import Path

import pytest

from tests.mutation import explained, results, table
from tests.mutation.explained import Count
from tests.mutation.model import Module, Mutant

LEFT = Mutant("enforcer.attribution.cgroup:owner_of", "if a > b:", "if a >= b:")
OTHER = Mutant("enforcer.attribution.procfs:lives", "return True", "return False")
ATTRIBUTE = Module("enforcer.attribution.cgroup", {"killed": 8, "timeout": 1, "survived": 1}, (LEFT,))
PAGE = f"before\n{table.BEGIN}{table.END}\nafter\n"


def test_a_survivor_that_is_explained_is_all_right() -> None:
    rows, problems = explained.counted([ATTRIBUTE], {LEFT: "the same"})
    assert rows == [Count("enforcer.attribution.cgroup", 10, 9, 1, 1)]
    assert problems == []


def test_a_survivor_that_is_not_explained_is_named() -> None:
    rows, problems = explained.counted([ATTRIBUTE], {})
    assert rows == [Count("enforcer.attribution.cgroup", 10, 9, 1, 0)]
    assert problems == [f"survives and is not explained: {LEFT}"]


def test_an_explanation_of_none_is_an_error_unless_its_module_did_not_run() -> None:
    gone = Mutant("enforcer.attribution.cgroup:owner_of", "if a > b:", "if a < b:")
    _, problems = explained.counted([ATTRIBUTE], {LEFT: "the same", gone: "was", OTHER: "elsewhere"})
    assert problems == [f"explained.toml explains what does not survive: {gone}"]


def test_what_is_explained_and_did_not_survive_is_found() -> None:
    gone = Mutant("enforcer.attribution.cgroup:owner_of", "if a > b:", "if a < b:")
    assert explained.dead([ATTRIBUTE], [LEFT, gone, OTHER]) == [gone]


def test_what_took_too_long_is_found_by_module(tmp_path: Path) -> None:
    for name, codes in {
        "attribution/procfs": {"a": 1, "b": -24, "c": 0},
        "attribution/process_cache": {"d": 255},
        "runtime/lock": {},
    }.items():
        file = tmp_path / "mutants" / "enforcer" / f"{name}.py.meta"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"exit_code_by_key": codes}))
    assert results.called(tmp_path, [], results.LATE) == ["d", "b"]
    assert results.called(tmp_path, ["enforcer.attribution.procfs"], results.LATE) == ["b"]
    assert results.called(tmp_path, ["enforcer.attribution.procfs"], results.DOUBTFUL) == ["b", "c"]


@pytest.mark.parametrize(
    "status", ["not checked", "suspicious", "segfault", "skipped", "check was interrupted by user"]
)
def test_a_mutant_that_was_not_tried_to_the_end_is_an_error(status: str) -> None:
    _, problems = explained.counted([Module("enforcer.attribution.procfs", {"killed": 3, status: 1}, ())], {})
    assert problems == [f"enforcer.attribution.procfs: mutants are {status}"]


def test_a_mutant_that_no_test_reaches_counts_as_one_that_survives() -> None:
    rows, problems = explained.counted(
        [Module("enforcer.attribution.procfs", {"killed": 3, "no tests": 1}, (OTHER,))], {}
    )
    assert rows == [Count("enforcer.attribution.procfs", 4, 3, 1, 0)]
    assert problems == [f"survives and is not explained: {OTHER}"]


def test_all_that_is_explained_is_explained_in_words() -> None:
    for mutant, why in explained.load().items():
        assert len(why.split()) > 3, mutant
        assert mutant.was != mutant.now


def test_an_explanation_that_lacks_a_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "explained.toml"
    file.write_text('[[mutant]]\nwhere = "a:b"\nwas = "c"\nwhy = "because"\n')
    with pytest.raises(KeyError, match="now"):
        explained.load(file)


def test_the_page_gets_the_rows_of_what_ran_and_keeps_the_others() -> None:
    page = table.put(
        PAGE, [Count("enforcer.attribution.procfs", 4, 3, 1, 1), Count("enforcer.attribution.cgroup", 10, 9, 1, 1)]
    )
    page = table.put(page, [Count("enforcer.attribution.cgroup", 12, 12, 0, 0)])
    assert page.startswith("before\n")
    assert page.endswith(f"{table.END}\nafter\n")
    assert page.splitlines()[4:-2] == [
        "| enforcer.attribution.cgroup | 12 | 12 | 0 | 0 |",
        "| enforcer.attribution.procfs | 4 | 3 | 1 | 1 |",
        "| all | 16 | 15 | 1 | 1 |",
    ]


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="mutants: make mutants"):
        table.put("before\n", [])


def test_the_committed_page_has_a_place_for_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "design" / "safety.md").read_text(encoding="utf-8")
    assert table.put(page, []).count(table.BEGIN) == 1
