"""What a look led to is written down anew where it differs from the look before, or where time alone changes it."""

from dataclasses import fields, replace
from typing import Any

import pytest

from enforcer.audit.record import ChainHead
from enforcer.detection.budget import Account
from enforcer.detection.hidden import Finding
from enforcer.detection.nvml_outage import NvmlOutage
from enforcer.detection.types import ContainerState, DetectorConfig, DetectorState, Phase
from enforcer.nvml.device_health import GpuConditions
from enforcer.quota.types import LimitStatus
from enforcer.runtime.problem import Problem
from enforcer.status.node_status import Snapshot, status
from enforcer.status.node_status_file import StatusCache
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, POD, holder, neighbour, quota
from tests.unit.enforcer.status.test_pod_status_files import seen, snapshot

KEY = (CONTAINER, GPU)
CONTENT: dict[str, Any] = {
    "node": "gpu-8",
    "enforcing": False,
    "views": (seen(holder(101, 1001)),),
    "quotas": (quota(), neighbour()),
    "state": DetectorState(open=True),
    "rules": DetectorConfig(kills=4),
    "head": ChainHead(1, "sha256:1"),
    "problems": [Problem("another problem", Reason.UNKNOWN)],
    "standing": GpuConditions(unhealthy={GPU: Reason.GPU_LOST}),
    "failures": ({"pod": "tts-0"},),
    "peaks": {(POD, "model", GPU): 5200},
    "utilization": {KEY: 30},
    "gpu_utilization": {GPU: 30},
    "setup": {"driverRoot": "/driver-root"},
    "proven": {(CONTAINER, GPU): LimitStatus(state=Reason.UNKNOWN, backend="mps-v2", sentence="said")},
    "unaccounted": {GPU: (3000, 8)},
    "hidden": {GPU: Finding(elsewhere=True)},
    "sight": {GPU: NvmlOutage(999.0, Reason.NVML_HUNG, "the driver hangs")},
}
CASE = ((POD, "model"), GPU)
RUNNING = {
    "over its quota": DetectorState(cases={CASE: ContainerState(used_mib=9000, phase=Phase.OVER, samples=1)}),
    "being ended": DetectorState(cases={CASE: ContainerState(phase=Phase.KILLING)}),
    "without its whole budget": DetectorState(cases={CASE: ContainerState(used=2.0, at=1000.0)}),
    "in a namespace without": DetectorState(accounts={("asr", GPU): Account(used=6.0, at=1000.0, size=5.0)}),
    "ended lately": DetectorState(cases={CASE: ContainerState()}, kills={(POD, "model"): 990.0}),
}


def _next(before: Snapshot) -> Snapshot:
    """The look after it, at which all is as it was."""
    return replace(
        before, time="2026-11-20T22:16:05.623Z", now=before.now + 0.5, views=tuple(map(replace, before.views))
    )


def test_a_look_that_finds_all_as_it_was_says_the_same_with_its_own_time() -> None:
    editions, first = StatusCache(), snapshot(seen(holder(101, 1000)))
    (one, text), (other, again) = editions.render(first), editions.render(_next(first))
    assert one.edition == other.edition == 1
    assert other.time == again["time"] == "2026-11-20T22:16:05.623Z"
    assert again == status(_next(first)) == {**text, "time": again["time"]}


@pytest.mark.parametrize("name", sorted(CONTENT))
def test_whatever_differs_makes_another_edition(name: str) -> None:
    editions, first = StatusCache(), snapshot(seen(holder(101, 1000)))
    editions.render(first)
    changed = replace(_next(first), **{name: CONTENT[name]})
    found, text = editions.render(changed)
    assert found.edition == 2
    assert text == status(changed)


def test_of_every_part_of_a_look_there_is_a_case_above() -> None:
    assert {field.name for field in fields(Snapshot)} - CONTENT.keys() == {"time", "now", "edition"}


@pytest.mark.parametrize("what", sorted(RUNNING))
def test_where_a_time_runs_every_look_is_another(what: str) -> None:
    editions, first = StatusCache(), replace(snapshot(seen(holder(101, 1000))), state=RUNNING[what])
    editions.render(first)
    found, text = editions.render(_next(first))
    assert found.edition == 2
    assert text == status(_next(first))


def test_where_a_gpu_cannot_be_read_every_look_says_for_how_long() -> None:
    editions = StatusCache()
    first = replace(snapshot(seen()), sight={GPU: NvmlOutage(999.0, Reason.NVML_HUNG, "the driver hangs")})
    editions.render(first)
    assert editions.render(_next(first))[0].edition == 2
