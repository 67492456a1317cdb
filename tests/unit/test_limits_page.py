"""``docs/reference/limits.md``: every line is shown by a test that exists, and says what its evidence is."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "limits.md"
COLUMNS = ["mps-v2", "driver-cgroup", "watch-only", "mig-instance"]
EVIDENCE = {"simulated", "documentation", "real daemon", "believed"}
"""``hardware`` comes with the first line that has some."""
WORDS = ("prevented", "detected", "killed", "not seen", "Unknown", "n/a")


def parts() -> tuple[str, str]:
    """What limits prevent, of memory and of compute."""
    section = PAGE.read_text().partition("\n## What limits prevent, and what they do not\n")[2]
    memory, _, compute = section.partition("\n## Compute\n")
    return memory, compute


def rows() -> list[list[str]]:
    _, head, table = parts()[0].partition("| what a container does |")
    lines = [line for line in (head + table).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


def test_the_table_has_a_column_for_each_back_end() -> None:
    assert [cell.strip("`") for cell in rows()[0][1:5]] == COLUMNS
    assert len(rows()) > 12


@pytest.mark.parametrize("row", rows()[2:], ids=lambda row: row[0][:60])
def test_each_line_is_shown_by_tests_that_exist(row: list[str]) -> None:
    _, *outcomes, shown, evidence = row
    named = re.findall(r"`([^`]+)::([^`]+)`", shown)
    assert named
    assert shown == " ".join(f"`{file}::{name}`" for file, name in named)
    for file, name in named:
        assert name in names_in(ROOT / file), f"{file} has no {name}"
    assert set(evidence.split(", ")) <= EVIDENCE
    assert all(any(word in cell for word in WORDS) for cell in outcomes), outcomes


def test_the_tests_that_show_what_compute_does_exist() -> None:
    named = re.findall(r"`([^`]+)::([^`]+)`", parts()[1])
    assert named
    assert [name for file, name in named if name not in names_in(ROOT / file)] == []
