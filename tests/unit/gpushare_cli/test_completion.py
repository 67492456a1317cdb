"""``kubectl_complete-gpu_share``: kubectl runs it with the words so far, the last of which is to be completed."""

import tomllib
from pathlib import Path

import pytest

from gpushare_cli.completion import complete
from gpushare_cli.main import VERBS

ROOT = Path(__file__).parents[3]
NO_FILES = ":4"
FILES = ":0"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([""], [*VERBS, NO_FILES]),
        (["inj"], ["inject", NO_FILES]),
        (["no-such"], [NO_FILES]),
        (["inject", "--templ"], ["--templates", NO_FILES]),
        (["inject", "-o", ""], ["yaml", "json", "patch", "diff", NO_FILES]),
        (["inject", "-f", "a.yaml", "-o", "y"], ["yaml", NO_FILES]),
        (["inject", "--output=p"], ["--output=patch", NO_FILES]),
        (["inject", "-f", ""], [FILES]),
        (["inject", "--filename="], [FILES]),
        (["inject", "--pod-at", ""], [NO_FILES]),
        (["migrate", "--ca"], ["--card", NO_FILES]),
        (["migrate", "-f", ""], [FILES]),
        (["audit", "ver"], ["verify", NO_FILES]),
        (["audit", "verify", "--stat"], ["--state", NO_FILES]),
        (["audit", "verify", "--state", "/v"], [FILES]),
        (["completion", ""], ["bash", "fish", "zsh", NO_FILES]),
        (["completion", "b"], ["bash", NO_FILES]),
        (["resize", "--dry"], ["--dry-run", NO_FILES]),
        (["resize", "po"], [NO_FILES]),
        (["top", "--sort", "kill"], ["kill-in", "kills", NO_FILES]),
        (["bundle", "--to", ""], [FILES]),
        ([], [*VERBS, NO_FILES]),
    ],
)
def test_verbs_options_and_values_are_completed_for_kubectl(
    words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == found


def test_kubectl_finds_the_program_beside_the_plugin() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"kubectl-gpu_share", "kubectl_complete-gpu_share"} <= scripts.keys()
    module, _, function = scripts["kubectl_complete-gpu_share"].partition(":")
    assert (module, function) == (complete.__module__, complete.__name__)
