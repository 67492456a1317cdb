import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.nvml.device_health import (
    APPLICATION_XIDS,
    PATIENCE,
    WELL_AFTER,
    XID_LOOKS,
    Effect,
    GpuConditions,
    Health,
    update_health,
)
from enforcer.resourceslices.devices import InventoryPolicy, build_devices
from gpushare.reasons import Reason
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU
from tests.unit.enforcer.test_loop import card

LOST, SILENT = Reason.GPU_LOST, Reason.NVML_UNAVAILABLE


def after(*seen: Reason | None, begun: Health | None = None) -> Health:
    health = begun or Health()
    for each in seen:
        health = update_health(health, each)
    return health


def test_what_does_not_pass_is_believed_at_once_and_what_may_pass_after_a_few_looks() -> None:
    assert after(LOST).unhealthy is LOST
    assert after(*[SILENT] * (PATIENCE - 1)).unhealthy is None
    assert after(SILENT, SILENT, None, SILENT, SILENT).unhealthy is None
    assert after(*[SILENT] * PATIENCE).unhealthy is SILENT


def test_it_is_well_again_after_a_while_and_not_before() -> None:
    assert after(LOST, *[None] * (WELL_AFTER - 1)).unhealthy is LOST
    assert after(LOST, *[None] * WELL_AFTER).unhealthy is None
    assert after(LOST, *[None] * (WELL_AFTER - 1), SILENT, *[None] * (WELL_AFTER - 1)).unhealthy is LOST


def test_the_first_reason_stays_while_it_lasts() -> None:
    assert after(LOST, SILENT, SILENT, SILENT).unhealthy is LOST


def test_a_critical_error_is_lowered_against_it_for_minutes() -> None:
    struck = update_health(Health(), None, xid=True)
    assert struck.unhealthy is Reason.CRITICAL_XID
    assert after(*[None] * XID_LOOKS, begun=struck).unhealthy is Reason.CRITICAL_XID
    assert after(*[None] * (XID_LOOKS + WELL_AFTER), begun=struck).unhealthy is None


def test_errors_of_programs_are_no_health_error_and_a_card_off_its_bus_is() -> None:
    assert 31 in APPLICATION_XIDS
    assert not {48, 79, 95} & APPLICATION_XIDS


@given(st.lists(st.sampled_from([None, LOST, SILENT, Reason.ECC_UNCORRECTABLE]), max_size=80))
def test_a_judgement_never_changes_faster_than_it_may(seen: list[Reason | None]) -> None:
    health, changes = Health(), []
    for number, each in enumerate(seen):
        before, health = health, update_health(health, each)
        if (before.unhealthy is None) != (health.unhealthy is None):
            changes.append((number, health.unhealthy))
    falls = [number for number, ill in changes if ill is None]
    rises = [number for number, ill in changes if ill is not None]
    assert all(fall - rise >= WELL_AFTER for rise, fall in zip(rises, falls, strict=False))


@pytest.mark.parametrize("effect", [Effect.NO_SCHEDULE, Effect.NO_EXECUTE])
def test_an_unhealthy_gpu_is_tainted_and_stays_on_offer(effect: Effect) -> None:
    cards = [card(GPU, 0), card(OTHER_GPU, 1)]
    policy = InventoryPolicy(health_taint=effect)
    devices = build_devices(cards, policy, standing=GpuConditions(unhealthy={GPU: LOST})).devices
    taint = {"key": "gpu-share.io/unhealthy", "value": "GpuLost", "effect": str(effect)}
    assert [(device["name"], device.get("taints")) for device in devices] == [
        (DEVICE, [taint]), (OTHER_DEVICE, []), ("status", None),
    ]  # fmt: skip
    assert devices[0]["capacity"] == build_devices(cards, policy).devices[0]["capacity"]


def test_taints_can_be_switched_off() -> None:
    policy = InventoryPolicy(health_taint=Effect.NONE)
    assert (
        build_devices([card(GPU, 0)], policy, standing=GpuConditions(unhealthy={GPU: LOST})).devices[0]["taints"] == []
    )


def test_a_contested_gpu_is_left_out_and_the_reason_said() -> None:
    found = build_devices(
        [card(GPU, 0), card(OTHER_GPU, 1)], InventoryPolicy(), standing=GpuConditions(contended={GPU: "it is X's"})
    )
    assert [device["name"] for device in found.devices] == [OTHER_DEVICE, "status"]
    assert [(out.uuid, out.why) for out in found.left_out] == [(GPU, "Contended: it is X's")]
