"""Containers that exceed their quota again and again, in simulation: attacks, and our own mistakes.

Each runs on the product's own detector. The grace period alone, as it was before there were budgets, is the control.
"""

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from enforcer.detection.types import Decision
from enforcer.quota.types import Quota
from tests.support import extent
from tests.unit.enforcer.detection.adversary import Plan, attack, best
from tests.unit.enforcer.detection.node import (
    NEVER,
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
    """Run both; return MiB gained on average in 120 s, now and with the grace period alone."""
    node.run(120, each[0])
    control.run(120, each[1])
    now, before = node.gain, control.gain
    node.run(480, each[0])
    extent.figure("F7", f"{name}: mean MiB gained in 120 s and 600 s", f"{now:.0f}, {node.gain:.0f}")
    extent.figure("F7", f"{name}: with the grace period alone, in 120 s", f"{before:.0f}")
    return now, before


@pytest.mark.parametrize("seed", range(extent.trials(1, 20)))
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gains_little_and_the_neighbour_is_enforced(name: str, seed: int) -> None:
    node = Node([*ATTACKS[name](), neighbour(over=400.0)], seed=seed)
    control = Node([*ATTACKS[name](), neighbour()], before=True, seed=seed)
    now, before = figures(name, node, control, [tuple, tuple])
    assert now <= 2 * GIB < before
    assert node.gain <= GIB
    assert node.kills("victim") == 1


@pytest.mark.parametrize("seed", range(extent.trials(1, 20)))
@pytest.mark.parametrize("name", FRESH)
def test_fresh_pods_gain_little_and_the_neighbour_is_enforced(name: str, seed: int) -> None:
    node, control = Node([neighbour(over=400.0)], seed=seed), Node([neighbour()], before=True, seed=seed)
    made = FreshPods(node, FRESH[name]), FreshPods(control, FRESH[name])
    now, before = figures(name, node, control, made)
    assert now <= 2 * GIB < before
    assert node.gain <= GIB
    assert node.kills("victim") == 1


SHARES: Final = (512, 2048, 8192)
CARDS: Final = {16 * GIB: 2 * GIB, 80 * GIB: 20 * GIB}
"""Memory of a card, and what an attack may gain of it on average in two minutes."""
PULSES: Final = (
    Plan(on=0.16, gap=0.1),
    Plan(on=0.06, gap=0.05),
    Plan(containers=4, on=0.16, gap=0.1),
    Plan(containers=16, pods=16, on=0.16, gap=0.1),
    Plan(containers=8, pods=8, namespaces=8, on=0.16, gap=0.0),
    Plan(containers=8, pods=8, on=0.16, gap=0.1, together=True),
    Plan(containers=4, pods=4, on=0.02, gap=0.003),
    Plan(containers=16, pods=16, on=0.02, gap=0.003),
)


@pytest.mark.parametrize("grace", [0.0, 5.0])
@pytest.mark.parametrize("gpu_mib", CARDS)
@pytest.mark.parametrize("plan", PULSES, ids=str)
def test_memory_that_is_taken_for_less_than_three_samples_at_a_time_gains_little(
    plan: Plan, gpu_mib: int, grace: float
) -> None:
    assert attack(plan, 512, gpu_mib, seed=1, grace=grace) <= CARDS[gpu_mib]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("share_mib", SHARES)
def test_the_best_split_that_a_search_finds_gains_little_more_than_one_container(share_mib: int) -> None:
    tries, every = extent.trials(4, 150), extent.trials(1, 3)
    for seed in range(every):
        one, split = searched(share_mib, 16 * GIB, seed, tries)
        assert split <= 1.2 * one
        assert split <= CARDS[16 * GIB]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share_mib", SHARES if extent.full() else SHARES[:1])
def test_the_best_split_that_a_search_finds_gains_at_most_a_quarter_of_a_large_card(share_mib: int) -> None:
    """Each of many containers takes the card for the moment until it is killed: a split gains more than one."""
    _, split = searched(share_mib, 80 * GIB, 0, extent.trials(0, 150))
    assert split <= CARDS[80 * GIB]


def searched(share_mib: int, gpu_mib: int, seed: int, tries: int) -> tuple[float, float]:
    """Return the MiB that the best attack found gains from one container, and split over up to 16."""
    one, _ = best(share_mib, gpu_mib, seed, most=1, tries=tries, climbs=tries)
    split, plan = best(share_mib, gpu_mib, seed, most=16, tries=tries, climbs=tries)
    where = f"a share of {share_mib} MiB of {gpu_mib // GIB} GiB"
    extent.figure("F7", f"best of {2 * tries} attacks from {where}, one container", f"{one:.0f}")
    extent.figure("F7", f"best of {2 * tries} attacks from {where}, split (seed {seed})", f"{split:.0f}: {plan}")
    return one, split


def test_other_containers_of_the_namespace_are_killed_only_over_their_own_quota() -> None:
    modest = [Pod(number=n, program=Cycle(2.0, 300.0, 700, 400)) for n in range(50, 54)]
    node = Node([*modest, neighbour()])
    node.run(100)
    node.pods += [Pod(number=n, program=Leak(3000), starts=node.now) for n in range(6)]
    node.run(499)
    assert [pod.kills > 0 for pod in node.pods if pod.number < 50 and pod.namespace == "asr"] == [True] * 6
    assert [pod.kills for pod in modest] == [0] * 4


def test_four_of_seven_namespaces_over_at_once_stop_no_kill() -> None:
    greedy = [Pod(number=n, program=Leak(2500), namespace=f"evil-{n}") for n in range(4)]
    modest = [Pod(number=10 + n, program=Leak(400), namespace=f"team-{n}") for n in range(3)]
    node = Node([*greedy, *modest])
    node.run(30)
    assert all(pod.kills for pod in greedy)
    assert not any(pod.kills for pod in modest)


def test_a_quota_that_is_lowered_without_its_claim_kills_nobody_for_ten_minutes() -> None:
    """The driver refuses a resize below what is held: a lower quota is our mistake or an operator's."""
    node = Node([Pod(number=n, memory_mib=4096, program=Leak(1300), namespace=f"team-{n % 3}") for n in range(12)])
    node.card_mib = NEVER
    node.run(100)
    for pod in node.pods:
        pod.memory_mib = 512
    node.run(590)
    assert node.kills() == 0
    assert len(decided(node, Decision.LOWERED)) == 12
    node.run(30)
    assert node.kills() > 0


def test_who_resizes_to_and_fro_has_no_longer_than_without() -> None:
    """Within the smaller quota when it is lowered, as the driver wants it, and over it from then on."""
    node = Node([Pod(number=1, memory_mib=4096, program=Until(100.0, 400, 4000))])
    node.run(90)
    node.pods[0].memory_mib = 512
    node.run(30)
    assert node.kills() > 0


def decided(node: Node, kind: Decision) -> Sequence[Quota]:
    return [decision.quota for _, decision in node.decisions if decision.decision is kind]
