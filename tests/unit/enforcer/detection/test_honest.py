"""Honest workloads that are over quota now and then, in simulation on the product's own detector, a day each in full.

None is killed that the grace period alone, as it was before there were budgets, would not kill.
"""

from dataclasses import dataclass, replace
from typing import Final

import pytest

from tests.support import extent
from tests.unit.enforcer.detection.node import NEVER, STARTED, Cycle, Leak, Node, Pod, Program, neighbour

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


def test_one_bad_member_of_a_job_array_costs_the_others_nothing() -> None:
    bad, size = Pod(number=0, program=Leak(2000)), 50
    node = Node([bad, *(Pod(number=n, program=Leak(300)) for n in range(1, size))], coarse=True)
    node.run(extent.trials(300, DAY))
    assert node.kills() == bad.kills > 0


@pytest.mark.parametrize(("on", "killed"), [(1.7, False), (3.0, True)])
def test_the_break_even_is_two_and_a_half_seconds_a_minute(on: float, *, killed: bool) -> None:
    node = Node([Pod(number=1, program=Cycle(on, 60, 4096)), neighbour()], coarse=True)
    node.run(extent.trials(HOUR, DAY))
    assert (node.kills() > 0) == killed


@pytest.mark.parametrize("grace", [0.0, 5.0])
def test_a_worker_that_is_replaced_every_six_seconds_is_never_killed(grace: float) -> None:
    """The driver counts each for 0.14 s beside its successor: a budget is overdrawn by much more, or never."""
    node = Node([Pod(number=1, program=Cycle(0.14, 6.0, 900, 450), grace_seconds=grace)])
    node.run(extent.trials(HOUR, DAY))
    assert node.kills() == 0


def test_one_violation_shorter_than_a_long_grace_period_is_never_ended() -> None:
    node = Node([Pod(number=1, program=Cycle(29, 900, 4096), grace_seconds=30.0)], coarse=True)
    node.run(extent.trials(HOUR, DAY))
    assert node.kills() == 0


@dataclass(frozen=True)
class Job:
    """Over quota for a while at its start, within it until its end, then gone."""

    over: float
    mib: int
    modest: int
    lasts: float = NEVER

    def usages(self, t: float) -> int:
        return 0 if t >= self.lasts else self.mib if t < self.over else self.modest

    def quiet(self, t: float, mib: int) -> float:
        return 0.0 if t < self.over else NEVER


def rollout(pods: int, apart: float, *, share_mib: int, part: float = 2.0, lasts: float = NEVER) -> list[Pod]:
    """Pods of one namespace, one after the other, each 3 s over at its start; all are full to their quota."""
    job = Job(3.0, int(share_mib * part), share_mib, lasts)
    return [Pod(number=n, memory_mib=share_mib, program=job, starts=STARTED + n * apart) for n in range(pods)]


MANY: Final[dict[str, list[Pod]]] = {
    "a rollout of 10 pods, 10 s apart": rollout(10, 10.0, share_mib=1024),
    "the same with four times the quota": rollout(10, 10.0, share_mib=1024, part=4.0),
    "a rollout of 100 pods on this GPU, a dozen at a time": rollout(100, 10.0, share_mib=1024, lasts=120.0),
    "a job array, all at once": rollout(12, 0.0, share_mib=1024, part=1.25),
    "a job array, 2 s apart": rollout(12, 2.0, share_mib=1024),
    "a model loaded twice in each of three pods": rollout(3, 20.0, share_mib=4096),
}


@pytest.mark.parametrize("seed", range(extent.trials(1, 10)))
@pytest.mark.parametrize("name", MANY)
def test_many_honest_pods_of_one_namespace_lose_none(name: str, seed: int) -> None:
    node = Node([*(replace(pod) for pod in MANY[name]), neighbour()], seed=seed)
    node.run(MANY[name][-1].starts - STARTED + 60)
    assert node.kills() == 0


@pytest.mark.parametrize("namespaces", [1, 5, 40])
def test_a_node_that_starts_40_shares_at_once_kills_none(namespaces: int) -> None:
    """The card of 16 GiB has room for some of them beyond their quotas."""
    pods = [replace(pod, namespace=f"team-{pod.number % namespaces}") for pod in rollout(40, 0.0, share_mib=300)]
    node = Node(pods)
    node.run(60)
    assert node.kills() == 0


def test_a_burst_beside_an_attacker_of_many_namespaces_keeps_its_grace_period() -> None:
    evil = [Pod(number=n, program=Cycle(4.0, 4.5, 12_000, 500), namespace=f"evil-{n}") for n in range(4)]
    node = Node([*evil, Pod(number=50, program=Cycle(3.0, 120.0, 1300, 500), namespace="honest")])
    node.run(300)
    assert node.kills("honest") == 0
    assert node.kills() > 0
