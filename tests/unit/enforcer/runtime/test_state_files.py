"""Break every value in every file of the state directory: the enforcer refuses or reads the file and never exits."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from enforcer.detection import state_file
from enforcer.detection.types import ContainerState, DetectorState
from enforcer.dra import prepared_claim
from enforcer.quota import checkpoint
from gpushare.errors import ConfigError
from tests.golden.state_files import BOOT, CLAIM, NOW, STATE
from tests.unit.enforcer.made import GPU, POD, quota

WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, -(10**400), 1.5, 1e308, float("nan"), float("inf"), "", "x", "\ud800",
    "9" * 5000, [], [[]], {}, {"a": 1},
)  # fmt: skip
"""``10**400`` is a number that JSON can write and floating-point cannot hold."""

FILES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    state_file.NAME: (state_file.encode(STATE, BOOT), lambda data: state_file.decode(data, BOOT, NOW)),
    checkpoint.NAME: (checkpoint.encode([quota()]), checkpoint.decode),
    "claims/claim-1.json": (prepared_claim.encode(CLAIM), prepared_claim.decode),
}


def spoilt(value: Any, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Each document in which one value, of whatever depth, is a wrong one, or is missing."""
    yield from (put(wrong) for wrong in WRONG)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield put({name: each for name, each in value.items() if name != key})
            yield from spoilt(inner, partial(_with_key, put, value, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from spoilt(inner, partial(_with_item, put, value, number))


def _with_key(put: Callable[[Any], Any], value: dict[str, Any], key: str, other: Any) -> Any:
    return put({**value, key: other})


def _with_item(put: Callable[[Any], Any], value: list[Any], number: int, other: Any) -> Any:
    return put([*value[:number], other, *value[number + 1 :]])


@pytest.mark.parametrize("name", FILES)
def test_no_wrong_value_in_a_state_file_is_an_accident(name: str) -> None:
    data, read = FILES[name]
    assert read(data), "as it was written it is read"
    refused = 0
    for content in spoilt(json.loads(data), lambda whole: whole):
        try:
            found = read(json.dumps(content).encode())
        except ConfigError:
            found = None
        refused += found is None
    assert refused > 10 * len(WRONG)


@pytest.mark.parametrize("name", [checkpoint.NAME, "claims/claim-1.json"])
def test_a_number_that_no_metric_can_hold_is_refused(name: str) -> None:
    data, read = FILES[name]
    assert b": 4096" in data
    with pytest.raises(ConfigError):
        read(data.replace(b": 4096", b": 1" + b"0" * 400))


LATE = DetectorState(cases={((POD, "model"), GPU): ContainerState(spared_until=1e300)})


def test_a_pause_that_lies_far_ahead_lets_nobody_be_for_ever() -> None:
    found = state_file.decode(state_file.encode(LATE, BOOT), BOOT, NOW)
    assert found is not None
    assert [case.spared_until for case in found.cases.values()] == [NOW + 15.0]
