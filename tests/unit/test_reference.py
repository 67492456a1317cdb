"""The reference names every annotation and label there is, and every way to read the kill log."""

from pathlib import Path
from typing import Final

import pytest

from gpushare import contract
from gpushare.cli.main import build_parser

TEXT: Final = (Path(__file__).resolve().parents[2] / "docs" / "reference.md").read_text()
TABLE: Final = TEXT.partition("\n## Annotations and labels\n")[2].partition("\n## ")[0]
KEYS: Final = (
    contract.NAMESPACE_LABEL, contract.NODE_MODE, contract.NODE_GPUS, contract.MANAGED_LABEL, contract.LEFT_OUT,
    contract.KILL_LOG, *contract.POD_ANNOTATIONS, *contract.NAMESPACE_ANNOTATIONS,
    *(f"{prefix}<container>" for prefix in (*contract.CONTAINER_PREFIXES, contract.RESIZE_OF)),
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_in_the_table(key: str) -> None:
    assert f"`{key}" in TABLE


def test_every_way_to_read_the_kill_log_is_in_its_table() -> None:
    parser = build_parser("audit")
    help_ = next(action for action in parser._actions if action.dest == "verb").choices["audit"]  # type: ignore[index]
    actions = next(action for action in help_._actions if action.dest == "action").choices
    for name, action in actions.items():
        assert f"| `{name}` |" in TEXT
        words = [word for each in action._actions for word in each.option_strings if word.startswith("--")]
        spoken = {"--help", "--kubeconfig", "--context", "--all-nodes", "--output", "--namespace"}
        assert [word for word in words if word not in spoken and word not in TEXT] == [], name
