"""Which experiments there are, and what becomes of their figures: tables and charts. Nothing here draws or counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from enforcer.resourceslices.controller import APART, EVERY
from enforcer.resourceslices.devices import InventoryPolicy, capacity_mib
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine
from tests.load.sim import figures
from tests.load.sim.across import Across
from tests.load.sim.order import Order
from tests.load.sim.play import Rules
from tests.load.sim.sizes import GIB, Card
from tests.load.sim.traces import SEEDS, TRACES
from tests.support.pictures.chart import Axis, Line, chart

POLICIES: Final[Mapping[str, Rules]] = {
    "binpack, binpack": Rules(order=Order.BINPACK, across=Across.BINPACK, every=EVERY),
    "strict, binpack": Rules(order=Order.STRICT, across=Across.BINPACK, every=EVERY),
    "fixed, binpack": Rules(order=Order.FIXED, across=Across.BINPACK, every=EVERY),
    "binpack, none": Rules(order=Order.BINPACK, across=Across.NONE, every=EVERY),
    "spread, spread": Rules(order=Order.SPREAD, across=Across.SPREAD, every=APART),
}
"""Order within a node, choice across nodes; where shares are spread the enforcer does not wait for its next turn."""
PACKED: Final = "binpack, binpack"
WITHOUT_STRICT: Final = tuple(policy for policy in POLICIES if policy != "strict, binpack")
FLEETS: Final[Mapping[int, tuple[Sequence[str], Sequence[str], Sequence[int]]]] = {
    10: (tuple(TRACES), tuple(POLICIES), SEEDS),
    100: (("uniform", "heavy tail", "mix"), WITHOUT_STRICT, SEEDS),
    1000: (("uniform", "mix"), (PACKED, "binpack, none"), SEEDS[:1]),
    5000: (("uniform",), (PACKED, "binpack, none"), SEEDS[:1]),
}
"""Nodes: traces, policies and seeds that are played on so many."""
REAL: Final = Card(memory=capacity_mib(gpus_of(Machine.named("h100x4"))[0], InventoryPolicy()))
"""What an H100 of 80 GB leaves to shares after the driver's reserve and the context of MPS."""
LOOKS: Final = (0.0, 1.0, APART, 5.0, EVERY, 20.0, 30.0, 60.0)
"""Seconds between an enforcer's looks."""
LOADS: Final = (0.9, 1.1, 1.25)
"""What is asked for at a time, of what the fleet has."""
OVERLOAD: Final = 1.1
"""The load of which the chart of waiting is."""
WRITTEN: Final = {Order.BINPACK: Across.BINPACK, Order.STRICT: Across.BINPACK, Order.SPREAD: Across.SPREAD}
"""Orders that cost writes, and what they are played with."""
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One call of ``tests.load.sim.figures``, known by its key."""

    key: Key
    call: Callable[..., Any]
    arguments: tuple[Any, ...]

    def run(self) -> tuple[Key, Any]:
        """Do it; in whichever process."""
        return self.key, self.call(*self.arguments)


def jobs(most_nodes: int) -> Iterator[Job]:
    """All of them, the longest first; fleets of at most so many nodes."""
    for nodes in sorted((each for each in FLEETS if each <= most_nodes), reverse=True):
        for trace, policy, seed in product(*FLEETS[nodes]):
            key = ("packing", nodes, trace, policy, seed)
            yield Job(key, figures.packing, (nodes, trace, POLICIES[policy], seed))
    for seed in SEEDS:
        yield Job(("real", seed), figures.packing, (10, "mix", POLICIES[PACKED], seed, REAL))
        for trace in ("uniform", "heavy tail", "mix"):
            yield Job(("exact", trace, seed), figures.exact, (4, trace, seed))
    for policy, rules in POLICIES.items():
        yield Job(("curve", policy), figures.filling_curve, (100, "uniform", rules, SEEDS[0]))
        yield Job(("pieces", policy), figures.pieces, (100, "mix", rules, SEEDS[0]))
    yield from _in_time()


def _in_time() -> Iterator[Job]:
    for load, policy, seed in product(LOADS, POLICIES, SEEDS):
        if load > 1 or policy == PACKED:
            yield Job(("churn", load, policy, seed), figures.churn, ("mix", POLICIES[policy], seed, load))
    for every in LOOKS:
        for order, across in WRITTEN.items():
            rules = Rules(order=order, across=across, every=every)
            yield Job(("writes", order, every), figures.churn, ("mix", rules, SEEDS[0], LOADS[0]))
        for pace, seed in product(figures.PACES, SEEDS):
            rules = Rules(order=Order.SPREAD, every=every)
            yield Job(("gap", pace, every, seed), figures.gap, (rules, seed, pace))


def charts(found: Mapping[Key, Any]) -> dict[str, str]:
    """Draw the charts: name of the file, and SVG."""
    return {
        "filling.svg": _filling(found), "pieces.svg": _pieces(found), "waiting.svg": _waiting(found),
        "writes.svg": _writes(found), "gap.svg": _gap(found),
    }  # fmt: skip


def _filling(found: Mapping[Key, Any]) -> str:
    lines = [Line(policy, found["curve", policy]) for policy in WITHOUT_STRICT]
    bound = Line("best possible", [(70.0, 70.0), (100.0, 100.0), (200.0, 100.0)])
    x = Axis("memory asked for, % of the fleet's", (70, 100, 125, 150, 175, 200))
    y = Axis("memory placed, % of the fleet's", (70, 75, 80, 85, 90, 95, 100))
    return chart("Pods of 1 to 80 GiB, uniform; 800 GPUs of 80 GiB", x, y, [*lines, bound])


def _pieces(found: Mapping[Key, Any]) -> str:
    sizes = figures.NEXT
    lines = [
        Line(policy, [(size, 100 * share) for size, share in zip(sizes, found["pieces", policy].usable, strict=True)])
        for policy in WITHOUT_STRICT
    ]
    memory = figures.CARD.memory // GIB
    whole = Line("were it whole GPUs", [(size, 100 * (memory // size * size) / memory) for size in sizes])
    x = Axis("size of the next pods, GiB", (1, 10, 20, 30, 40, 50, 60, 70, 80))
    y = Axis("free memory they can have, %", (0, 20, 40, 60, 80, 100))
    return chart("How much of what is free is of use; the mix, three quarters full", x, y, [*lines, whole])


def _waiting(found: Mapping[Key, Any]) -> str:
    pods = [found["churn", OVERLOAD, PACKED, seed].waits for seed in SEEDS]
    lines = []
    for number, (low, high) in enumerate(figures.CLASSES):
        waits = sorted(wait for each in pods for wait in each[number])
        shares = [share / 100 for share in range(0, 101, 2)]
        points = [(100 * share, figures.quantile(waits, share) / 60) for share in shares]
        lines.append(Line(f"{low} to {high} GiB", points))
    x = Axis("pods that waited no longer, %", (0, 20, 40, 60, 80, 100))
    y = Axis("waited, minutes", (0, 15, 30, 45, 60, 75, 90))
    return chart("A fleet that is asked for 110 %; the mix", x, y, lines)


def _writes(found: Mapping[Key, Any]) -> str:
    lines = [Line(order.value, [(every, found["writes", order, every].writes) for every in LOOKS]) for order in WRITTEN]
    x = Axis("seconds between an enforcer's checks", (0, 10, 20, 30, 40, 50, 60))
    y = Axis("writes of a slice for each pod", (0, 0.5, 1, 1.5))
    return chart("What an order costs; the mix, 640 pods at a time", x, y, [*lines, Line("fixed", [(0, 0), (60, 0)])])


def worst_gap(found: Mapping[Key, Any], pace: float, every: float) -> float:
    """Of all seeds, by how many of the largest share the fullest GPU passed the emptiest."""
    return float(max(found["gap", pace, every, seed] for seed in SEEDS))


def _gap(found: Mapping[Key, Any]) -> str:
    lines = [
        Line(f"{pace:g} pods a second", [(every, worst_gap(found, pace, every)) for every in LOOKS])
        for pace in figures.PACES
    ]
    x = Axis("seconds between an enforcer's checks", (0, 10, 20, 30, 40, 50, 60))
    y = Axis("fullest GPU less emptiest, largest shares", (0, 2, 4, 6, 8, 10, 12, 14))
    return chart("Spread within a node of 8 GPUs", x, y, lines)
