"""Extras of the wheel: what a program says that lacks one."""

import re
import tomllib
from importlib.metadata import packages_distributions

import pytest

from gpushare_cli import extras
from gpushare_cli.main import PARTS, VERBS, main
from tests.house import ROOT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(DECLARED))
def test_the_modules_of_an_extra_come_from_what_it_declares(extra: str) -> None:
    declared = {re.split(r"[<>=]", each)[0] for each in DECLARED[extra]}
    whose = packages_distributions()
    assert {name.replace("_", "-").lower() for module in extras.MODULES[extra] for name in whose[module]} <= declared


def test_each_extra_belongs_to_a_program() -> None:
    assert {*extras.OF_PARTS.values(), extras.UI} == set(extras.MODULES) == set(DECLARED)
    assert set(extras.OF_PARTS) <= set(PARTS)
    assert extras.UI in VERBS


def test_a_process_without_its_extra_names_modules_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(extras.MODULES, "webhook", ("json", "no_such_module"))
    assert main(["webhook", "--help"]) == 1
    assert capsys.readouterr().err.startswith("gpu-share webhook: no_such_module: not installed; run: pip install")
