"""The experiments behind docs/design/placement.md: each a function of a seed, so a rerun gives the same figures."""

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.detection import lending
from tests.load.sim.best import best_fit, bound, fewest_gpus, most
from tests.load.sim.fleet import Fleet, over_committed, usable, used
from tests.load.sim.order import Order
from tests.load.sim.play import Play, Rules
from tests.load.sim.sizes import GIB, Card, Pod
from tests.load.sim.traces import burst, churning, filling

DEMAND: Final = 1.25
"""What a filling trace asks for, of what the fleet has."""
CARD: Final = Card()
PACES: Final = (10.0, 1.0, 0.1)
"""Pods a second onto one node."""
CHURN_NODES: Final = 10
MEAN_LIFE: Final = 600.0
CHURN: Final = 7200.0
WARM: Final = 1800.0
CLASSES: Final = ((0, 4), (4, 16), (16, 40), (40, 80))
"""Sizes in GiB: above the first, up to the second."""
SMALL_PODS: Final = 40
SMALL: Final = 8 * GIB
NEXT: Final = (1, 2, 4, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80)
"""GiB that a next pod might ask for."""
QUARTERS_FULL: Final = 0.75
CURVE: Final = tuple(0.7 + 0.025 * step for step in range(53))
"""What is asked for, of what the fleet has."""
MOMENT: Final = 1e-6
"""Seconds after an arrival, when it is decided."""


@dataclass(frozen=True, slots=True)
class Packing:
    """A fleet that is asked for more than it has: MiB placed by the rule, by best fit over all GPUs, and the bound."""

    placed: int
    best_fit: int
    bound: float
    gpus: int

    @property
    def of_best(self) -> float:
        """Share of the bound."""
        return self.placed / self.bound

    @property
    def of_best_fit(self) -> float:
        """Share of what best fit places, which sees the whole fleet but takes pods as they come too."""
        return self.placed / self.best_fit


def packing(nodes: int, trace: str, rules: Rules, seed: int, card: Card = CARD) -> Packing:
    """Fill a fleet with pods that stay."""
    fleet = Fleet(nodes=nodes, card=card)
    pods = filling(trace, seed, DEMAND * fleet.capacity)
    play(fleet, rules, seed, pods)
    sizes, gpus = [pod.size for pod in pods], len(fleet.memory)
    return Packing(fleet.held, best_fit(sizes, card, gpus), bound(sizes, card, gpus), gpus)


def play(fleet: Fleet, rules: Rules, seed: int, pods: Sequence[Pod]) -> Play:
    """Play a trace whose pods stay, and make sure that no GPU was promised twice."""
    played = Play(fleet=fleet, rules=rules, seed=seed).run(pods)
    if found := over_committed(fleet):
        raise AssertionError(f"GPUs {found} were promised more than they have")
    return played


@dataclass(frozen=True, slots=True)
class Exact:
    """A small case: MiB placed by the rule, the proven most (``None``: not proven), and the bound."""

    placed: int
    most: int | None
    bound: float


def exact(gpus: int, trace: str, seed: int) -> Exact:
    """One node that is asked for more than it has, on which the optimum can be proven."""
    fleet = Fleet(nodes=1, per_node=gpus)
    pods = [pod for pod in filling(trace, seed, DEMAND * fleet.capacity) if not pod.size.parts]
    play(fleet, Rules(order=Order.BINPACK), seed, pods)
    sizes = [pod.size for pod in pods]
    return Exact(fleet.held, most(sizes, CARD, gpus), bound(sizes, CARD, gpus))


def filling_curve(nodes: int, trace: str, rules: Rules, seed: int) -> tuple[tuple[float, float], ...]:
    """Follow a fleet as ever more is asked for: (asked for, placed), both in percent of what there is."""
    fleet = Fleet(nodes=nodes)
    pods = filling(trace, seed, CURVE[-1] * fleet.capacity)
    asked = list(itertools.accumulate(pod.size.memory for pod in pods))
    times = [pods[bisect_left(asked, step * fleet.capacity)].arrives + MOMENT for step in CURVE[:-1]]
    held: list[float] = []
    Play(fleet=fleet, rules=rules, seed=seed).run(pods, times, lambda _: held.append(fleet.held))
    return tuple((100 * step, 100 * each / fleet.capacity) for step, each in zip(CURVE, held, strict=False))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A fleet three quarters full, of which nobody had to wait."""

    usable: tuple[float, ...]
    """Share of the free memory that pods of each size in ``NEXT`` could have."""
    used: int
    fewest: int
    """GPUs that hold something, and below how many nobody can go."""
    empty_nodes: int
    waiting: int
    lent: float
    """Of all memory, what nobody reserved on GPUs with a share, but for what has to stay free: borrowers can use it."""


def pieces(nodes: int, trace: str, rules: Rules, seed: int) -> Pieces:
    """Fill three quarters of a fleet and look at what is left."""
    fleet = Fleet(nodes=nodes)
    pods = filling(trace, seed, QUARTERS_FULL * fleet.capacity)
    played = play(fleet, rules, seed, pods)
    waiting = sum(map(len, played.waiting.values()))
    left = tuple(usable(fleet, size * GIB) for size in NEXT)
    free = [mib for mib in fleet.memory if mib < CARD.memory]
    lent = sum(max(0, mib - lending.SLACK_MIB) for mib in free) / fleet.capacity
    return Pieces(left, used(fleet), fewest_gpus([pod.size for pod in pods], CARD), fleet.pods.count(0), waiting, lent)


@dataclass(frozen=True, slots=True)
class Churn:
    """Pods that come and go: what was promised on the average, writes for each pod, waits by class of size."""

    load: float
    packing: float
    writes: float
    placed: int
    waits: tuple[tuple[float, ...], ...]
    """Seconds that each pod waited, by class of ``CLASSES``, sorted; one that still waits counts until the end."""


def churn(trace: str, rules: Rules, seed: int, load: float) -> Churn:
    """Two hours of pods that live ten minutes on the average; the first half hour is not counted."""
    fleet = Fleet(nodes=CHURN_NODES)
    pods = churning(trace, seed, load, fleet.capacity, mean=MEAN_LIFE, seconds=CHURN)
    played = Play(fleet=fleet, rules=rules, seed=seed)
    shares: list[float] = []
    times = [WARM + 60 * step for step in range(int((CHURN - WARM) / 60))]
    played.run(pods, times, lambda _: shares.append(_share(played)), CHURN)
    if found := over_committed(fleet):
        raise AssertionError(f"GPUs {found} were promised more than they have")
    waits = tuple(tuple(_waits(played, pods, low, high)) for low, high in CLASSES)
    return Churn(
        load, sum(shares) / len(shares), played.enforcers.writes / len(played.placed), len(played.placed), waits
    )


def _share(played: Play) -> float:
    """Say how much is promised, of what could be: all that is there, or all that is asked for."""
    fleet = played.fleet
    asked = fleet.held + sum(size.memory * len(queue) for size, queue in played.waiting.items())
    return fleet.held / min(asked, fleet.capacity) if asked else 1.0


def _waits(played: Play, pods: Sequence[Pod], low: int, high: int) -> list[float]:
    mine = [pod for pod in pods if low * GIB < pod.size.memory <= high * GIB and pod.arrives >= WARM]
    ends = {pod.number: played.placed[pod.number].at if pod.number in played.placed else CHURN for pod in mine}
    return sorted(ends[pod.number] - pod.arrives for pod in mine)


def gap(rules: Rules, seed: int, per_second: float) -> float:
    """Give one node small pods; returns by how much its fullest GPU passed the emptiest, in shares of the largest."""
    pods = [pod for pod in burst("heavy tail", seed, SMALL_PODS, per_second) if pod.size.memory <= SMALL]
    fleet, gaps = Fleet(nodes=1), []
    times = [pod.arrives + MOMENT for pod in pods]
    Play(fleet=fleet, rules=rules, seed=seed).run(
        pods, times, lambda _: gaps.append(max(fleet.memory) - min(fleet.memory))
    )
    return max(gaps) / max(pod.size.memory for pod in pods)


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank of sorted values; 0 where there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
