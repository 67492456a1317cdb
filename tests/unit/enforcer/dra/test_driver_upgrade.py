"""Claims that the kubelet has prepared while the GPU Operator upgrades the driver."""

from pathlib import Path
from typing import Any

import pytest

from enforcer.quota.driver_upgrade import STATE
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_during_a_driver_upgrade_no_claim_is_prepared_and_afterwards_it_is(world: World) -> None:
    first, second = world.tenant("first"), world.tenant("second")
    world.driver.prepare(first)
    world.upgrade.observe({"metadata": {"labels": {STATE: "wait-for-jobs-required"}}})
    assert world.driver.prepare(first), "its pod runs"
    refusals = [(second, "wait-for-jobs-required"), (first, "pod-restart-required"), (second, "pod-restart-required")]
    for ref, state in refusals:
        world.upgrade.observe({"metadata": {"labels": {STATE: state}}})
        with pytest.raises(PrepareError) as caught:
            world.driver.prepare(ref)
        assert caught.value.reason is Reason.DRIVER_UPGRADE
    assert world.store.get(second.uid) is None
    world.upgrade.observe({"metadata": {"labels": {STATE: "upgrade-done"}}})
    assert world.driver.prepare(second)


def test_an_upgrade_that_begins_while_a_claim_is_prepared_is_in_time(world: World) -> None:
    ref, get = world.tenant("late"), world.api.get

    def begins(where: str, **query: Any) -> Any:
        world.upgrade.observe({"metadata": {"labels": {STATE: "pod-restart-required"}}})
        return get(where, **query)

    world.api.get = begins  # type: ignore[method-assign] # it begins between the first check and the last
    with pytest.raises(PrepareError) as caught:
        world.driver.prepare(ref)
    assert caught.value.reason is Reason.DRIVER_UPGRADE
    assert world.store.get(ref.uid) is None
