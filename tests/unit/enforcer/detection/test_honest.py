"""Honest workloads that are over quota now and then, in simulation on the product's own detector, a day each in full.

None is killed that the grace period alone, as it was before there was a debt, would not kill.
"""

from typing import Final

import pytest

from enforcer.detection.types import Decision
from tests.support import extent
from tests.unit.enforcer.detection.node import Cycle, Leak, Node, Pod, Program, neighbour

pytestmark = pytest.mark.timeout(900)
DAY: Final = 86_400
HOUR: Final = 3600
WORKLOADS: Final[dict[str, tuple[int, Program]]] = {
    "graph capture 3 s above quota every ten minutes": (4096, Cycle(3, 600, 6144, 3000)),
    "model reload with both models for 4 s each hour": (4096, Cycle(4, 3600, 8000, 4000)),
    "pulses of half a GiB for 1 s every 30 s": (4096, Cycle(1, 30, 4608, 4096)),
    "the same above a small quota": (512, Cycle(1, 30, 1024, 512)),
    "four times a small quota for 3 s every ten minutes": (512, Cycle(3, 600, 2048, 500)),
    "ten percent for 4 s every five minutes": (8192, Cycle(4, 300, 9011, 8192)),
    "exactly at the threshold": (4096, Leak(4352)),
    "a slow leak": (4096, Leak(3072, 0.05)),
    "a notebook": (2048, Cycle(2, 137, 3000, 1200)),
    "a validation step for 3 s every five minutes": (4096, Cycle(3, 300, 6000, 4000)),
    "a checkpoint for 2 s every quarter of an hour": (4096, Cycle(2, 900, 9000, 4000)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_honest_workload_is_killed_no_more_often_than_by_the_grace_period_alone(name: str) -> None:
    memory_mib, program = WORKLOADS[name]
    now, before = (
        Node([Pod(number=1, memory_mib=memory_mib, program=program), neighbour()], coarse=True, before=each)
        for each in (False, True)
    )
    for node in (now, before):
        node.run(extent.trials(2 * HOUR + 600, DAY))
    assert now.kills() <= before.kills()
    assert before.kills() == 0 or name == "a slow leak"
    assert not [decision for _, decision in now.decisions if decision.decision is Decision.IN_DEBT]


def test_one_bad_member_of_a_job_array_costs_the_others_nothing() -> None:
    bad, size = Pod(number=0, program=Leak(2000)), 50
    node = Node([bad, *(Pod(number=n, program=Leak(300)) for n in range(1, size))], coarse=True)
    node.run(extent.trials(300, DAY))
    assert node.kills() == bad.kills > 0
    assert not node.state.open


@pytest.mark.parametrize(("on", "killed"), [(1.7, False), (3.0, True)])
def test_the_break_even_is_two_seconds_a_minute(on: float, *, killed: bool) -> None:
    node = Node([Pod(number=1, program=Cycle(on, 60, 4096)), neighbour()], coarse=True)
    node.run(extent.trials(HOUR, DAY))
    assert (node.kills() > 0) == killed


def test_one_violation_shorter_than_a_long_grace_period_is_never_ended() -> None:
    node = Node([Pod(number=1, program=Cycle(29, 900, 4096), grace_seconds=30.0)], coarse=True)
    node.run(extent.trials(HOUR, DAY))
    assert node.kills() == 0
