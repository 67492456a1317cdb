"""The traces: sizes, lifetimes and arrivals drawn from seeds that were fixed before the first run."""

import math
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from tests.load.sim.sizes import GIB, NEVER, Part, Pod, Size, apart, together

SEEDS: Final = (101, 202, 303, 404, 505)
TAIL: Final = 1.1
"""Exponent of the heavy tail: most pods are small, most memory is asked for by the large."""
MIX: Final = {1: 8, 2: 14, 4: 18, 6: 8, 8: 16, 10: 6, 12: 6, 16: 9, 20: 4, 24: 4, 32: 3, 40: 2, 64: 1, 80: 1}
"""GiB, and how many in a hundred pods ask for it: notebooks, small and middling inference, some training."""
Draw = Callable[[random.Random], Size]


def uniform(chance: random.Random) -> Size:
    """Any whole number of GiB from 1 to 80."""
    return Size(chance.randint(1, 80) * GIB)


def heavy(chance: random.Random, step: int = GIB) -> Size:
    """From 1 to 80 GiB in whole steps, a Pareto distribution that is cut there."""
    while (steps := int(chance.paretovariate(TAIL))) > 80 * GIB // step:
        pass
    return Size(steps * step)


def tiny(chance: random.Random) -> Size:
    """The same from 512 MiB on: half of the pods are smaller than a 48th of a GPU, so that clients run out as well."""
    return heavy(chance, GIB // 2)


def mixed(chance: random.Random) -> Size:
    """Memory as ``MIX``; half of the pods have a cap on compute; one in ten has two containers, some on two GPUs."""
    main = Part(_gib(chance), 0)
    if chance.random() < 0.5:
        fair = 100 * main.memory / (80 * GIB) * chance.uniform(0.5, 1.5)
        main = main._replace(compute=min(100, 5 * math.ceil(fair / 5)))
    kind = chance.random()
    if kind >= 0.1 or main.memory > 64 * GIB:
        return together(main)
    return (apart if kind < 0.02 else together)(main, Part(chance.choice((1, 2, 4)) * GIB))


def _gib(chance: random.Random) -> int:
    return chance.choices(list(MIX), list(MIX.values()))[0] * GIB


TRACES: Final[dict[str, Draw]] = {"uniform": uniform, "heavy tail": heavy, "mix": mixed, "tiny": tiny}


def filling(name: str, seed: int, demand: float, per_second: float = 100.0) -> tuple[Pod, ...]:
    """Pods that stay, one after the other, until they ask for ``demand`` MiB in all."""
    chance, asked = random.Random(f"{name} {seed}"), 0
    made: list[Pod] = []
    for number in count():
        if asked >= demand:
            return tuple(made)
        made.append(Pod(number, TRACES[name](chance), number / per_second))
        asked += made[-1].size.memory
    raise AssertionError("count() does not end")


def churning(name: str, seed: int, load: float, capacity: int, *, mean: float, seconds: float) -> tuple[Pod, ...]:
    """Pods that come and go for so long: they ask for ``load`` times ``capacity`` MiB on the average.

    Args:
        name: of the trace.
        seed: of all that is drawn.
        load: above 1 the queue grows without end.
        capacity: MiB of the fleet.
        mean: of the lifetimes in seconds; they are lognormal, the median is three fifths of it.
        seconds: until the last arrival.
    """
    chance = random.Random(f"{name} {seed}")
    sizes = random.Random(f"{name} mean")
    typical = sum(TRACES[name](sizes).memory for _ in range(20_000)) / 20_000
    rate = load * capacity / (typical * mean)
    return tuple(_arrivals(TRACES[name], chance, rate, mean, seconds))


def _arrivals(draw: Draw, chance: random.Random, rate: float, mean: float, seconds: float) -> Iterator[Pod]:
    now = chance.expovariate(rate)
    for number in count():
        if now > seconds:
            return
        yield Pod(number, draw(chance), now, chance.lognormvariate(math.log(mean) - 0.5, 1.0))
        now += chance.expovariate(rate)


def burst(name: str, seed: int, pods: int, per_second: float) -> tuple[Pod, ...]:
    """So many pods that stay, at an even pace."""
    chance = random.Random(f"{name} {seed}")
    return tuple(Pod(number, TRACES[name](chance), number / per_second, NEVER) for number in range(pods))
