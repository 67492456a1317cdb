"""The phase of a driver upgrade, by the labels that the GPU Operator and its managers set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.quota.driver_upgrade import CORDONED_STATES, DRAINED_STATES, STATE, DriverUpgrade, Phase, phase_of
from enforcer.runtime.manager import Wake
from gpushare.errors import PrepareError
from gpushare.reasons import Reason

CLIENT = "nvidia.com/gpu.deploy.client"
PAUSED = "paused-for-driver-upgrade"
IN_ORDER = (
    "upgrade-required", "cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required",
    "pod-restart-required", "validation-required", "uncordon-required", "upgrade-done",
)  # fmt: skip
SEVERITY = (Phase.IN_SERVICE, Phase.CORDONED, Phase.DRAINING)
STATES = st.sampled_from([*IN_ORDER, *sorted(CORDONED_STATES | DRAINED_STATES), "", "a-state-of-tomorrow"])
COMPONENT = st.sampled_from(["client", "dcgm", "container-toolkit", "device-plugin", "mig-manager"])
VALUES = st.sampled_from(["true", "false", "", "custom", PAUSED, f"custom_{PAUSED}", "paused-for-mig-change"])
LABELS = st.builds(
    lambda state, parts: {STATE: state} | {f"nvidia.com/gpu.deploy.{name}": value for name, value in parts.items()},
    STATES, st.dictionaries(COMPONENT, VALUES),
)  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "phase"),
    [
        ({}, Phase.IN_SERVICE),
        ({CLIENT: "true", STATE: "upgrade-done"}, Phase.IN_SERVICE),
        ({CLIENT: "true", STATE: "upgrade-required"}, Phase.IN_SERVICE),
        ({CLIENT: "true", STATE: "cordon-required"}, Phase.CORDONED),
        ({CLIENT: "true", STATE: "wait-for-jobs-required"}, Phase.CORDONED),
        ({CLIENT: PAUSED, STATE: "wait-for-jobs-required"}, Phase.DRAINING),
        ({CLIENT: "true", STATE: "pod-deletion-required"}, Phase.DRAINING),
        ({CLIENT: PAUSED, STATE: "pod-restart-required"}, Phase.DRAINING),
        ({CLIENT: "true", STATE: "upgrade-failed"}, Phase.DRAINING),
        ({CLIENT: PAUSED}, Phase.DRAINING),
        ({"nvidia.com/gpu.deploy.dcgm": PAUSED, "nvidia.com/gpu.deploy.device-plugin": "false"}, Phase.DRAINING),
        ({CLIENT: "paused-for-mig-change"}, Phase.DRAINING),
        ({CLIENT: f"custom_{PAUSED}"}, Phase.DRAINING),
        ({"example.com/gpu.deploy.client": PAUSED}, Phase.IN_SERVICE),
        ({STATE: "a-state-of-tomorrow"}, Phase.IN_SERVICE),
    ],
)
def test_the_labels_give_the_phase(labels: dict[str, str], phase: Phase) -> None:
    assert phase_of(labels) is phase


def test_an_upgrade_goes_from_service_over_draining_to_service() -> None:
    phases = [phase_of({STATE: state}) for state in IN_ORDER]
    severity = [SEVERITY.index(phase) for phase in phases]
    top = severity.index(max(severity))
    assert (phases[0], phases[-1]) == (Phase.IN_SERVICE, Phase.IN_SERVICE)
    assert severity[:top] == sorted(severity[:top])
    assert severity[top:] == sorted(severity[top:], reverse=True)


@given(labels=LABELS, component=COMPONENT)
def test_a_paused_component_drains_whatever_else_the_labels_say(labels: dict[str, str], component: str) -> None:
    assert phase_of(labels | {f"nvidia.com/gpu.deploy.{component}": PAUSED}) is Phase.DRAINING


@given(labels=LABELS)
def test_the_end_of_the_upgrade_brings_the_node_back_into_service(labels: dict[str, str]) -> None:
    ended = dict.fromkeys(labels, "true") | {STATE: "upgrade-done"}
    assert phase_of(ended) is Phase.IN_SERVICE


@given(labels=LABELS, others=st.dictionaries(st.text(max_size=63), st.text(max_size=63), max_size=5))
def test_other_labels_change_nothing(labels: dict[str, str], others: dict[str, str]) -> None:
    strange = {f"example.org/{key}": value for key, value in others.items()}
    assert phase_of(labels | strange) is phase_of(labels)


@given(history=st.lists(LABELS, max_size=6))
def test_followers_are_woken_by_each_change_and_by_nothing_else(history: list[dict[str, str]]) -> None:
    follower = Wake()
    upgrade = DriverUpgrade([follower])
    for labels in history:
        before = upgrade.phase
        follower.clear()
        upgrade.observe({"metadata": {"labels": labels}})
        assert upgrade.phase is phase_of(labels)
        assert follower.is_set() == (before is not upgrade.phase)


@given(labels=LABELS, prepared=st.booleans())
def test_a_claim_is_refused_with_a_reason_exactly_when_it_would_hold_up_the_upgrade(
    labels: dict[str, str], *, prepared: bool
) -> None:
    upgrade = DriverUpgrade()
    upgrade.observe({"metadata": {"labels": labels}})
    assert (upgrade.objection is None) == (upgrade.phase is Phase.IN_SERVICE)
    if upgrade.draining or (upgrade.phase is Phase.CORDONED and not prepared):
        with pytest.raises(PrepareError) as caught:
            upgrade.check(prepared=prepared)
        assert caught.value.reason is Reason.DRIVER_UPGRADE
    else:
        upgrade.check(prepared=prepared)


def test_a_node_without_labels_is_in_service() -> None:
    upgrade = DriverUpgrade()
    upgrade.observe({"metadata": {}})
    assert upgrade.phase is Phase.IN_SERVICE
