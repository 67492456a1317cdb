"""An outage is a state of its own: begun, reported when it lasts, ended; what status, metrics and pods say of it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from enforcer.detection.nvml_outage import (
    EVERYWHERE,
    REPORT_AFTER,
    Outages,
    Transition,
    container_message,
    operator_message,
    update,
)
from enforcer.status.metrics import StatusCollector
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.wiring import NodeEvents
from tests.unit.enforcer.made import GPU, OTHER_GPU
from tests.unit.enforcer.test_loop import World, make, world

if TYPE_CHECKING:
    from enforcer.status.events import NodeEvent

__all__ = ["make", "world"]
HUNG = NvmlError("the driver hangs", Reason.NVML_HUNG)
GONE = NvmlError("fell off the bus", Reason.GPU_LOST)


def through(steps: list[tuple[float, dict[str, NvmlError]]]) -> list[tuple[str, Transition, Reason]]:
    seen: list[tuple[str, Transition, Reason]] = []
    state: Outages = {}
    for now, problems in steps:
        state, changes = update(state, problems, now)
        seen += [(each.gpu, each.transition, each.outage.reason) for each in changes]
    return seen


def test_sight_is_lost_once_reported_once_and_back_once() -> None:
    looks = [(at / 2, {GPU: HUNG}) for at in range(100)]
    assert through([*looks, (50.0, {}), (50.5, {})]) == [
        (GPU, Transition.LOST, Reason.NVML_HUNG),
        (GPU, Transition.STAYS_LOST, Reason.NVML_HUNG),
        (GPU, Transition.BACK, Reason.NVML_HUNG),
    ]


def test_what_passes_is_reported_nobody_and_begins_again() -> None:
    state, _ = update({}, {GPU: HUNG}, 0.0)
    state, [change] = update(state, {}, REPORT_AFTER - 0.1)
    assert (change.transition, operator_message(change, REPORT_AFTER - 0.1)) == (Transition.BACK, None)
    state, _ = update(state, {GPU: HUNG}, REPORT_AFTER)
    _, changes = update(state, {GPU: HUNG}, 2 * REPORT_AFTER - 0.1)
    assert changes == ()


def test_another_reason_goes_on_with_the_same_blindness() -> None:
    state, _ = update({}, {GPU: HUNG, OTHER_GPU: GONE}, 5.0)
    state, (change, _) = update(state, {GPU: GONE}, 5.0 + REPORT_AFTER)
    assert (change.transition, state[GPU].since, state[GPU].reason) == (Transition.STAYS_LOST, 5.0, Reason.GPU_LOST)
    told = f"the enforcer cannot read GPU {GPU} and enforces no quota on it: fell off the bus"
    assert operator_message(change, 99.0) == told
    _, [back] = update(state, {}, 30.0)
    assert operator_message(back, 30.0) == f"the enforcer can read GPU {GPU} again, after 25 s"
    state, _ = update({}, {EVERYWHERE: HUNG}, 0.0)
    _, [change] = update(state, {EVERYWHERE: HUNG}, REPORT_AFTER)
    told = "the enforcer cannot read the GPUs of this node and enforces no quota on this node: the driver hangs"
    assert operator_message(change, 0.0) == told


def test_of_a_gpu_with_a_process_of_nobody_knows_whom_operators_are_told_that_quotas_are_enforced_in_part() -> None:
    hidden = NvmlError("process 7 holds GPU memory", Reason.PROCESS_HIDDEN)
    state, _ = update({}, {GPU: hidden}, 0.0)
    _, [change] = update(state, {GPU: hidden}, REPORT_AFTER)
    told = operator_message(change, 99.0)
    assert told is not None
    assert told.endswith(hidden.message)
    assert "enforces no quota" not in told


def test_a_container_on_a_gpu_that_cannot_be_read_is_reported_so_and_not_what_it_kept_before() -> None:
    state, _ = update({}, {GPU: HUNG}, 5.0)
    text = container_message("model", state[GPU], 17.0)
    assert text.startswith("the enforcer does not enforce the quota of model: it could not read the GPU")
    assert text.endswith(" for 12 s (NvmlHung: the driver hangs)")


def test_status_metrics_and_operators_say_of_blindness_what_for_and_since_when(world: World) -> None:
    text: list[NodeEvent] = []
    world.enforcer._parts = replace(world.enforcer._parts, events=NodeEvents(text))
    world.reader.used[GPU] = {101: 9000}
    status = world.look(2)
    assert (status["gpus"][0]["blindReason"], status["gpus"][0]["blindFor"]) == (None, None)
    world.reader.broken = {GPU}
    status = world.look(3)
    gpu, [container] = status["gpus"][0], status["containers"]
    assert (gpu["blindReason"], gpu["blindFor"], text) == ("NvmlUnavailable", 1.0, [])
    assert (container["state"], container["usedMib"]) == ("Unknown", None)
    assert "could not read the GPU for 1 s (NvmlUnavailable: the GPU fell off the bus)" in container["sentence"]
    world.look(int(REPORT_AFTER / 0.5))
    [news] = text
    assert (news.reason, GPU in news.note, news.warning) == (Reason.NVML_UNAVAILABLE, True, True)
    registry, latest = CollectorRegistry(), StatusCollector()
    registry.register(latest)
    latest.status = world.look()
    assert (
        f'gpu_share_gpu_nvml_unavailable_seconds{{gpu="{GPU}",reason="NvmlUnavailable"}} 11.5'
        in generate_latest(registry).decode()
    )
    assert world.decisions == []
    world.reader.broken = set()
    status = world.look()
    assert (status["gpus"][0]["blind"], status["gpus"][0]["blindFor"], text[1].reason) == (None, None, Reason.RECOVERED)
