"""``docs/reference/limits.md``: every line is shown by a test that exists, and says what its evidence is."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "limits.md"
COLUMNS = ["mps-v2", "driver-cgroup", "watch-only", "mig-instance"]
EVIDENCE = ("simulated", "documentation", "real daemon", "H100, 580")
WORDS = ("prevented", "detected", "killed", "not seen", "Unknown", "unknown", "n/a")


def parts() -> tuple[str, str]:
    """What limits prevent, of memory and of compute."""
    section = PAGE.read_text().partition("\n## What limits prevent, and what they do not\n")[2]
    memory, _, compute = section.partition("\n## Compute\n")
    return memory, compute


def table(head: str) -> list[list[str]]:
    """Return the cells of the table of memory that begins like this, line by line."""
    lines = (head + parts()[0].partition(head)[2]).partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def rows() -> list[list[str]]:
    return table("| # | what")


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def test_the_table_has_a_column_for_each_back_end() -> None:
    assert [cell.strip("`") for cell in rows()[0][2:6]] == COLUMNS
    assert len(rows()) > 12


@pytest.mark.parametrize("row", rows()[1:], ids=lambda row: row[1][:60])
def test_each_line_says_what_comes_of_it_and_its_evidence(row: list[str]) -> None:
    _, _, *outcomes, evidence = row
    about = [re.sub(r"^`[a-z-]+` |: [^;]+$", "", part) for part in evidence.split("; ")]  # of one backend, of one case
    assert [each for each in about if each not in EVIDENCE] == []
    assert all(any(word in cell for word in WORDS) for cell in outcomes), outcomes


def test_each_kind_of_evidence_is_explained_and_used() -> None:
    page = PAGE.read_text()
    assert [each for each in EVIDENCE if f"| `{each}` |" not in page] == []
    assert [each for each in EVIDENCE if not any(each in row[-1] for row in rows()[1:])] == []


def test_each_line_is_shown_by_tests_that_exist() -> None:
    shown = dict(table("| # | tests")[1:])
    assert list(shown) == [number for number, *_ in rows()[1:]]
    for tests in shown.values():
        named = re.findall(r"`([^`]+)::([^`]+)`", tests)
        assert named
        assert tests == " ".join(f"`{file}::{name}`" for file, name in named)
        assert [name for file, name in named if name not in names_in(ROOT / file)] == []


def test_the_tests_that_show_what_compute_does_exist() -> None:
    named = re.findall(r"`([^`]+)::([^`]+)`", parts()[1])
    assert named
    assert [name for file, name in named if name not in names_in(ROOT / file)] == []
