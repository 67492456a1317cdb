"""Containers that exceed their quota again and again, in simulation: attacks, and our own mistakes.

Each runs on the product's own detector. The grace period alone, as it was before there was a debt, is the control.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from enforcer.detection.types import Decision
from enforcer.quota.types import Quota
from tests.support import extent
from tests.unit.enforcer.detection.node import (
    NEVER,
    STARTED,
    Cycle,
    FreshPods,
    Leak,
    Node,
    Pod,
    Program,
    Until,
    neighbour,
)

GIB: Final = 1024
MINUTES: Final = 60.0
ATTACKS: Final[dict[str, Callable[[], list[Pod]]]] = {
    "bursts below the grace period": lambda: [Pod(number=1, program=Cycle(3.8, 4.4, 13 * GIB))],
    "bursts of two samples": lambda: [Pod(number=1, program=Cycle(0.9, 1.4, 13 * GIB))],
    "bursts as long as the gaps": lambda: [Pod(number=1, program=Cycle(2.0, 4.0, 13 * GIB))],
    "a process that restarts itself": lambda: [Pod(number=1, program=Leak(12 * GIB), stubborn=True)],
    "six pods": lambda: [Pod(number=n, program=Leak(2560)) for n in range(6)],
}
FRESH: Final[dict[str, Program]] = {
    "fresh pods that are killed": Leak(12 * GIB),
    "fresh pods that end before their grace period": Until(3.8, 12 * GIB, 0),
}


def figures(name: str, node: Node, control: Node, each: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Run both; return MiB kept on average in 120 s, now and with the grace period alone."""
    node.run(120, each[0])
    control.run(120, each[1])
    now, before = node.mean(), control.mean()
    node.run(480, each[0])
    extent.figure("F7", f"{name}: mean MiB held in 120 s and 600 s", f"{now:.0f}, {node.mean():.0f}")
    extent.figure("F7", f"{name}: with the grace period alone, in 120 s", f"{before:.0f}")
    return now, before


@pytest.mark.parametrize("seed", range(extent.trials(1, 20)))
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_holds_little_more_than_its_quota_and_the_neighbour_is_enforced(name: str, seed: int) -> None:
    """Beside six pods the neighbour stays within its quota: all of a node in ten minutes would open the breaker."""
    over = NEVER if name == "six pods" else 400.0
    node = Node([*ATTACKS[name](), neighbour(over=over)], seed=seed)
    control = Node([*ATTACKS[name](), neighbour()], before=True, seed=seed)
    now, before = figures(name, node, control, [tuple, tuple])
    assert now <= 2 * GIB < before
    assert node.mean() <= 1280
    assert node.kills("victim") == (over < NEVER)
    assert not node.state.open


@pytest.mark.parametrize("over", [30.0, 400.0])
def test_one_violation_among_a_neighbours_containers_does_not_open_the_breaker_for_six_pods(over: float) -> None:
    modest = replace(neighbour(), number=90)
    node = Node([*ATTACKS["six pods"](), neighbour(over=over), modest])
    node.run(120)
    assert node.mean() <= 2 * GIB
    node.run(480)
    assert node.kills("victim") == 1
    assert not node.state.open


@pytest.mark.parametrize("seed", range(extent.trials(1, 20)))
@pytest.mark.parametrize("name", FRESH)
def test_fresh_pods_hold_little_more_than_a_quota_and_the_neighbour_is_enforced(name: str, seed: int) -> None:
    node, control = Node([neighbour(over=400.0)], seed=seed), Node([neighbour()], before=True, seed=seed)
    made = FreshPods(node, FRESH[name]), FreshPods(control, FRESH[name])
    now, before = figures(name, node, control, made)
    assert now <= 3 * GIB < before
    assert node.mean() <= 1280
    assert node.kills("victim") == 1
    assert not node.state.open


def test_running_pods_of_the_namespace_keep_their_grace_period_and_the_limit_of_kills() -> None:
    settled = [Pod(number=n, program=Cycle(4.5, 300.0, 2000, 400)) for n in range(50, 54)]
    node = Node([*settled, neighbour()])
    node.run(100)
    node.pods += [Pod(number=n, program=Leak(3000), starts=node.now) for n in range(6)]
    node.run(499)
    assert [pod.kills > 0 for pod in node.pods if pod.number < 50 and pod.namespace == "asr"] == [True] * 6
    assert [pod.kills for pod in settled] == [0] * 4


def crowd(namespaces: int, *, apart: float) -> list[Pod]:
    """Twelve containers over a quota that is far too small, from one moment on or one after the other."""
    return [
        Pod(number=n, program=Leak(1300), namespace=f"team-{n % namespaces}", starts=STARTED + n * apart)
        for n in range(12)
    ]


@pytest.mark.parametrize("namespaces", [1, 2, 5])
@pytest.mark.parametrize("settled", [0.0, 100.0], ids=["from the start", "later"])
def test_a_total_that_nvml_reports_for_each_process_kills_few_before_the_breaker_opens(
    namespaces: int, settled: float
) -> None:
    node = Node([replace(pod, program=Until(settled, 400, 12_000)) for pod in crowd(namespaces, apart=0.0)])
    node.card_mib = NEVER
    node.run(5 * MINUTES)
    assert killed(node) <= 3


@pytest.mark.parametrize("namespaces", [1, 2, 5])
@pytest.mark.parametrize(("apart", "most"), [(0.0, 3), (25.0, 7)], ids=["at once", "in steps"])
def test_a_wrong_default_of_new_pods_kills_few_before_the_breaker_opens(
    namespaces: int, apart: float, most: int
) -> None:
    node = Node(crowd(namespaces, apart=apart))
    node.run(5 * MINUTES)
    assert node.state.open
    assert killed(node) <= most


@pytest.mark.parametrize(("namespaces", "most"), [(1, 7), (2, 3), (5, 3)])
@pytest.mark.parametrize("apart", [0.0, 25.0], ids=["at once", "in steps"])
def test_a_quota_that_is_lowered_for_running_pods_kills_few(namespaces: int, apart: float, most: int) -> None:
    """Where it concerns several namespaces the changed quotas themselves open the breaker, after one kill or none."""
    node = Node([replace(pod, memory_mib=4096, program=Leak(1300)) for pod in crowd(namespaces, apart=0.0)])
    node.run(100)
    start = node.now

    def lower() -> None:
        for pod in node.pods:
            if node.now - start >= pod.number * apart:
                pod.memory_mib = 512

    node.run(5 * MINUTES, lower)
    assert node.state.open
    assert killed(node) <= (most if apart else 3)


def killed(node: Node) -> int:
    """Containers of which at least one process was ended."""
    return sum(pod.kills > 0 for pod in node.pods)


def test_a_breaker_that_an_attacker_has_opened_closes_once_its_pods_are_gone() -> None:
    node = Node([Pod(number=n, program=Leak(3584)) for n in range(6)])
    node.run(30)
    assert node.state.open
    node.pods.clear()
    node.run(59)
    assert node.state.open
    node.run(3)
    assert not node.state.open


def test_it_closes_when_another_namespace_comes_and_does_not_open_again_for_the_same() -> None:
    node = Node([Pod(number=n, program=Leak(3584)) for n in range(6)])
    node.run(30)
    assert node.state.open
    node.pods.append(neighbour())
    node.run(60)
    assert not node.state.open
    assert node.kills() == node.kills("asr") > 0


def test_it_closes_when_fewer_than_half_are_over_for_a_minute() -> None:
    node = Node([Pod(number=n, program=Until(100, 3584, 400)) for n in range(6)])
    node.run(99)
    assert node.state.open
    node.run(55)
    assert node.state.open
    node.run(10)
    assert not node.state.open


def decided(node: Node, kind: Decision) -> Sequence[Quota]:
    return [decision.quota for _, decision in node.decisions if decision.decision is kind]


def test_half_of_the_credit_is_a_warning_and_comes_before_the_kill() -> None:
    node = Node([Pod(number=1, program=Cycle(2, 20, 4096))])
    node.run(5 * MINUTES)
    first = [
        decision.decision for _, decision in node.decisions if decision.decision in {Decision.IN_DEBT, Decision.KILL}
    ]
    assert first[:2] == [Decision.IN_DEBT, Decision.KILL]
    assert len(decided(node, Decision.IN_DEBT)) == 1
