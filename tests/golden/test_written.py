"""Lines of two answers differ wherever the answers do, and a difference leads back to its answer."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import contract
from tests.golden.written import difference, lines, restored

SIDECAR = {"name": contract.SIDECAR, "image": "gpu-share:1", "args": ["sidecar"]}
ENV = [{"name": "A", "value": "a" * 100}, {"name": "B", "value": "b" * 100}, {"name": "C", "value": "c"}]
BASE: dict[str, Any] = {
    "reason": "Applied",
    "warnings": [],
    "patch": [
        {"op": "add", "path": "/spec/containers/0/env", "value": ENV},
        {"op": "add", "path": "/spec/initContainers", "value": [SIDECAR]},
    ],
    "template": {"kind": "ResourceClaimTemplate"},
}


def swap_variables(answer: dict[str, Any]) -> None:
    answer["patch"][0]["value"].reverse()


def repeat_a_variable(answer: dict[str, Any]) -> None:
    answer["patch"][0]["value"].append(ENV[0])


def swap_operations(answer: dict[str, Any]) -> None:
    answer["patch"].reverse()


def replace_instead(answer: dict[str, Any]) -> None:
    answer["patch"][0]["op"] = "replace"


def write_a_number(answer: dict[str, Any]) -> None:
    answer["patch"][0]["value"][2]["value"] = 1


def put_the_sidecar_last(answer: dict[str, Any]) -> None:
    answer["patch"][1]["value"].insert(0, {"name": "other", "image": "other:1"})


def change_the_sidecar(answer: dict[str, Any]) -> None:
    answer["patch"][1]["value"][0]["image"] = "gpu-share:2"


def add_a_second_sidecar(answer: dict[str, Any]) -> None:
    answer["patch"].append({"op": "add", "path": "/spec/initContainers/0", "value": {**SIDECAR, "args": []}})


def warn(answer: dict[str, Any]) -> None:
    answer["warnings"] = ["of something"]


def forget_the_template(answer: dict[str, Any]) -> None:
    del answer["template"]


CHANGES = (
    swap_variables, repeat_a_variable, swap_operations, replace_instead, write_a_number, put_the_sidecar_last,
    change_the_sidecar, add_a_second_sidecar, warn, forget_the_template,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_answer_has_a_difference_that_leads_back_to_it(change: Callable[[dict[str, Any]], None]) -> None:
    answer = copy.deepcopy(BASE)
    change(answer)
    written = difference(lines(BASE), lines(answer))
    assert written
    assert restored(lines(BASE), written) == lines(answer) != lines(BASE)


def test_a_difference_to_another_base_is_refused() -> None:
    written = difference(lines(BASE), lines({**BASE, "reason": "NotRequested"}))
    with pytest.raises(ValueError, match="Applied"):
        restored(['reason "Allowed"'], written)
