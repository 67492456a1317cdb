"""Containers that exceed their quota again and again, in simulation: attacks, honest workloads, and our own mistakes.

Each runs on the product's own detector. The grace period alone, as it was before there was a debt, is the control.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from enforcer.detection.types import Decision
from enforcer.quota.types import Quota
from tests.support import extent
from tests.unit.enforcer.detection.node import STARTED, Node, Pod, Program, neighbour, without_debt

GIB: Final = 1024
DAY: Final = 86_400.0
MINUTES: Final = 60.0
HOUR: Final = 3600.0


def cycle(on: float, every: float, mib: int, otherwise: int = 0) -> Program:
    """Hold so many MiB for ``on`` seconds of every ``every``, at their end."""
    return lambda t: mib if t % every >= every - on else otherwise


def always(mib: int) -> Program:
    return lambda _: mib


ATTACKS: Final[dict[str, tuple[Callable[[], list[Pod]], int, int]]] = {
    "bursts below the grace period": (lambda: [Pod(number=1, program=cycle(3.8, 4.4, 13 * GIB))], 2 * GIB, 1280),
    "bursts of two samples": (lambda: [Pod(number=1, program=cycle(0.9, 1.4, 13 * GIB))], 2 * GIB, 1280),
    "a process that restarts itself": (
        lambda: [Pod(number=1, program=always(12 * GIB), stubborn=True)], 2 * GIB, 1280,
    ),
    "six pods": (lambda: [Pod(number=n, program=always(3584)) for n in range(6)], 7 * GIB, 1536),
    "bursts as long as the gaps": (lambda: [Pod(number=1, program=cycle(2.0, 4.0, 13 * GIB))], 2 * GIB, 1280),
}  # fmt: skip
"""By name: the pods, and how many MiB they may hold on average over 120 s and over 600 s."""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_holds_little_more_than_its_quota_and_the_neighbour_is_enforced(name: str) -> None:
    """With six pods all containers of the node would be over at some time, which opens the breaker as it should."""
    pods, short, long = ATTACKS[name]
    over = 500.0 if len(pods()) == 1 else float("inf")
    node, before = Node([*pods(), neighbour(over=over)]), Node([*pods(), neighbour()])
    before.rules = replace(without_debt(before.rules), spacing=30.0)
    for each in (node, before):
        each.run(120)
    found, alone = node.mean(), before.mean()
    node.run(480)
    extent.figure("F7", f"{name}: mean MiB held in 120 s and 600 s", f"{found:.0f}, {node.mean():.0f}")
    extent.figure("F7", f"{name}: with the grace period alone, in 120 s", f"{alone:.0f}")
    assert found <= short < alone
    assert node.mean() <= long
    assert node.kills("victim") == (over < float("inf"))
    assert not node.state.open


def slow_leak(t: float) -> int:
    return 3 * GIB + int(t / 20)


HONEST: Final[dict[str, tuple[int, Program]]] = {
    "graph capture 3 s above quota every ten minutes": (4096, cycle(3, 600, 6144, 3000)),
    "model reload with both models for 4 s each hour": (4096, cycle(4, 3600, 8000, 4000)),
    "pulses of half a GiB for 1 s every 30 s": (4096, cycle(1, 30, 4608, 4096)),
    "the same above a small quota": (512, cycle(1, 30, 1024, 512)),
    "four times a small quota for 3 s every ten minutes": (512, cycle(3, 600, 2048, 500)),
    "ten percent for 4 s every five minutes": (8192, cycle(4, 300, 9011, 8192)),
    "exactly at the threshold": (4096, always(4352)),
    "a slow leak": (4096, slow_leak),
    "a notebook": (2048, cycle(2, 137, 3000, 1200)),
    "a validation step for 3 s every five minutes": (4096, cycle(3, 300, 6000, 4000)),
    "a checkpoint for 2 s every quarter of an hour": (4096, cycle(2, 900, 9000, 4000)),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_workload_is_killed_no_more_often_than_by_the_grace_period_alone(name: str) -> None:
    memory_mib, program = HONEST[name]
    node = Node([Pod(number=1, memory_mib=memory_mib, program=program)])
    node.run(extent.trials(int(10.5 * MINUTES), int(DAY)))
    if name != "a slow leak":
        assert node.kills() == 0
        assert not told(node, Decision.IN_DEBT)
    elif node.kills():
        before = Node([Pod(number=1, memory_mib=memory_mib, program=program)])
        before.rules = replace(without_debt(before.rules), spacing=30.0)
        before.run(DAY)
        assert before.kills() > 0


def test_one_bad_member_of_a_job_array_costs_the_others_nothing() -> None:
    bad, size = Pod(number=0, program=always(2000)), 50
    node = Node([bad, *(Pod(number=n, program=always(500)) for n in range(1, size))])
    node.run(extent.trials(30, int(DAY)))
    assert node.kills() == bad.kills > 0
    assert not node.state.open


@pytest.mark.parametrize(("on", "killed"), [(1.7, False), (3.0, True)])
def test_the_break_even_is_two_seconds_a_minute(on: float, *, killed: bool) -> None:
    node = Node([Pod(number=1, program=cycle(on, 60, 4096)), neighbour()])
    node.run(extent.trials(int(30 * MINUTES), int(DAY)))
    assert (node.kills() > 0) == killed


def test_one_violation_shorter_than_a_long_grace_period_is_never_ended() -> None:
    node = Node([Pod(number=1, program=cycle(29, 900, 4096), grace_seconds=30.0)])
    node.run(extent.trials(int(16 * MINUTES), int(DAY)))
    assert node.kills() == 0


def crowd(namespaces: int, *, apart: float) -> list[Pod]:
    """Twelve containers over a quota that is far too small, from one moment on or one after the other."""
    return [
        Pod(number=n, program=always(4096), namespace=f"team-{n % namespaces}", starts=STARTED + n * apart)
        for n in range(12)
    ]


@pytest.mark.parametrize("namespaces", [1, 2, 5])
@pytest.mark.parametrize(("apart", "most"), [(0.0, 3), (25.0, 7)], ids=["at once", "in steps"])
def test_our_own_mistake_kills_few_before_the_breaker_opens(namespaces: int, apart: float, most: int) -> None:
    node = Node(crowd(namespaces, apart=apart))
    node.run(5 * MINUTES)
    assert node.state.open
    assert sum(pod.kills > 0 for pod in node.pods) <= most


def test_a_breaker_that_an_attacker_has_opened_closes_once_its_pods_are_gone() -> None:
    node = Node([Pod(number=n, program=always(3584)) for n in range(6)])
    node.run(30)
    assert node.state.open
    node.pods.clear()
    node.run(59)
    assert node.state.open
    node.run(3)
    assert not node.state.open


def test_it_closes_when_another_namespace_comes_and_does_not_open_again_for_the_same() -> None:
    node = Node([Pod(number=n, program=always(3584)) for n in range(6)])
    node.run(30)
    assert node.state.open
    node.pods.append(neighbour())
    node.run(60)
    assert not node.state.open
    assert node.kills() == node.kills("asr") > 0


def test_it_closes_when_fewer_than_half_are_over_for_a_minute() -> None:
    node = Node([Pod(number=n, program=lambda t: 3584 if t < 100 else 400) for n in range(6)])
    node.run(99)
    assert node.state.open
    node.run(55)
    assert node.state.open
    node.run(10)
    assert not node.state.open


def told(node: Node, kind: Decision) -> Sequence[Quota]:
    return [verdict.quota for _, verdict in node.said if verdict.decision is kind]


def test_half_of_the_credit_is_a_warning_and_comes_before_the_kill() -> None:
    node = Node([Pod(number=1, program=cycle(2, 20, 4096))])
    node.run(5 * MINUTES)
    first = [verdict.decision for _, verdict in node.said if verdict.decision in {Decision.IN_DEBT, Decision.KILL}]
    assert first[:2] == [Decision.IN_DEBT, Decision.KILL]
    assert len(told(node, Decision.IN_DEBT)) == 1
