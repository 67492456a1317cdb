"""Which feature gate is missing is told from what the API server makes of a dry-run; see also the cluster tests."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare_cli.check import preinstall

Change = Callable[[Any], None]


class Api:
    """Stores what it is given, after ``change``; refuses ``forbidden`` kinds, and lists ``slices``."""

    def __init__(self, change: Change = lambda _: None, *, forbidden: tuple[str, ...] = (), slices: Any = ()) -> None:
        self.change, self.forbidden, self.slices = change, forbidden, slices
        self.asked: list[Any] = []

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}, "nothing may be made"
        kind = where.rsplit("/", 1)[-1]
        if kind in self.forbidden:
            said = f'cannot create resource "{kind}" in API group "resource.k8s.io" at the cluster scope'
            raise ClusterError(f'{kind} is forbidden: User "jo" {said}', 403)
        self.asked.append(body)
        made = copy.deepcopy(body)
        self.change(made["spec"])
        return made

    def list(self, where: str, **query: str) -> tuple[Any, str]:
        assert (where.rsplit("/", 1)[-1], query) == ("resourceslices", {})
        return list(self.slices), "1"


def drop(*fields: str) -> Change:
    """An API server that drops such fields wherever they are."""

    def change(value: Any) -> None:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            change(each)
        for field in fields if isinstance(value, dict) else ():
            if field != "capacity" or "deviceClassName" in value:
                value.pop(field, None)

    return change


CAPACITY = ("allowMultipleAllocations", "requestPolicy", "capacity")


def test_with_every_gate_on_all_is_well() -> None:
    assert (preinstall.consumable_capacity(Api()).level, preinstall.device_taints(Api()).level) == ("ok", "ok")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", CAPACITY)
def test_any_field_of_consumable_capacity_that_is_dropped_is_named_with_its_gate(field: str) -> None:
    found = preinstall.consumable_capacity(Api(drop(field)))  # type: ignore[arg-type]
    assert (found.level, field in found.detail) == ("wrong", True)
    assert "DRAConsumableCapacity" in found.hint
    assert preinstall.device_taints(Api(drop(field))).level == "ok"  # type: ignore[arg-type]


def test_taints_that_are_dropped_name_the_other_gate() -> None:
    found = preinstall.device_taints(Api(drop("taints")))  # type: ignore[arg-type]
    assert found.level == "wrong"
    assert "DRADeviceTaints" in found.hint
    assert preinstall.consumable_capacity(Api(drop("taints"))).level == "ok"  # type: ignore[arg-type]


def slice_of(*devices: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"spec": {"driver": "gpu-share.io", "devices": list(devices)}}]


@pytest.mark.parametrize("forbidden", [("resourceslices",), ("resourceclaimtemplates",)])
@pytest.mark.parametrize(
    ("slices", "level"),
    [
        (slice_of({"name": "mig"}, {"name": "status", "allowMultipleAllocations": True}), "ok"),
        (slice_of({"name": "gpu-0"}, {"name": "status"}), "wrong"),
    ],
)
def test_who_may_not_try_is_answered_from_what_enforcers_published(
    forbidden: tuple[str, ...], slices: Any, level: str
) -> None:
    assert preinstall.consumable_capacity(Api(forbidden=forbidden, slices=slices)).level == level  # type: ignore[arg-type]


@pytest.mark.parametrize("slices", [[], slice_of()])
def test_who_may_not_try_and_finds_nothing_published_is_notified_of_the_right(slices: Any) -> None:
    with pytest.raises(ClusterError, match="cannot create resource"):
        preinstall.consumable_capacity(Api(forbidden=("resourceslices",), slices=slices))  # type: ignore[arg-type]


def test_other_failures_are_not_taken_for_a_missing_right() -> None:
    class Broken(Api):
        def create(self, where: str, body: Any, **query: str) -> Any:
            raise ClusterError("no answer", 0)

    with pytest.raises(ClusterError, match="no answer"):
        preinstall.consumable_capacity(Broken(slices=slice_of({"allowMultipleAllocations": True})))  # type: ignore[arg-type]
