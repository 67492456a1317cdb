"""``python -m tests.load.sim.ahead``: what anybody reaches who takes pods as they come, however much else they know.

Three see every GPU of the fleet at once. ``best fit`` takes the fullest that has room. ``no gaps`` takes one that the
pod fills to the last GiB, else an empty one, else the fullest. ``ahead`` also knows how sizes are drawn and when the
trace ends: for each choice it plays so many futures to their end, all of them by ``no gaps``, and takes what comes out
best (a rollout). None of them refuses a pod that has room. Sizes are the uniform trace, in whole GiB. With 600 futures,
as by default, it takes three to five minutes.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.load.sim.figures import CARD, DEMAND
from tests.load.sim.sizes import GIB
from tests.load.sim.traces import SEEDS, filling

FULL: Final = CARD.memory // GIB
NAMES: Final = ("best fit", "no gaps", "ahead")


@dataclass(slots=True)
class Gpus:
    """GPUs that differ in what is free alone: how many have how many GiB; ``some`` has a bit for each that any has."""

    many: list[int] = field(default_factory=list)
    some: int = 0

    @classmethod
    def empty(cls, gpus: int) -> "Gpus":
        """Make a fleet on which nothing runs."""
        return cls([0] * FULL + [gpus], 1 << FULL)

    def copy(self) -> "Gpus":
        """Make one to try something on."""
        return Gpus(self.many[:], self.some)

    def roomy(self, size: int) -> list[int]:
        """Every amount of free GiB, from the least, that a GPU has and that is enough."""
        return [free for free in range(size, FULL + 1) if self.many[free]]

    def put(self, free: int, size: int) -> None:
        """Place a pod on a GPU that has so much free."""
        self.many[free] -= 1
        if not self.many[free]:
            self.some ^= 1 << free
        self.many[free - size] += 1
        self.some |= 1 << (free - size)

    @property
    def held(self) -> int:
        """GiB given away."""
        return sum(gpus * (FULL - free) for free, gpus in enumerate(self.many))


def fullest(gpus: Gpus, size: int) -> int:
    """What the fullest GPU with room has free; below 0: none has room."""
    enough = gpus.some >> size
    return size + (enough & -enough).bit_length() - 1 if enough else -1


def without_gaps(gpus: Gpus, size: int) -> int:
    """Choose as ``fullest`` does, but rather an empty GPU than one on which something would be left."""
    found = fullest(gpus, size)
    return FULL if found > size and gpus.many[FULL] else found


def played(gpus: Gpus, sizes: Sequence[int], choose: Callable[[Gpus, int], int]) -> int:
    """Place pods as they come; returns the GiB given away in the end."""
    for size in sizes:
        if (free := choose(gpus, size)) >= 0:
            gpus.put(free, size)
    return gpus.held


def looking_ahead(gpus: Gpus, sizes: Sequence[int], futures: int, seed: int) -> int:
    """Place pods as they come, each where it turned out best in so many futures; returns the GiB given away."""
    chance, demand, asked = random.Random(f"futures {seed}"), DEMAND * gpus.many[FULL] * FULL, 0
    for size in sizes:
        asked += size
        if choices := gpus.roomy(size):
            many = futures if len(choices) > 1 else 0
            drawn = [_future(chance, demand - asked) for _ in range(many)]
            gpus.put(max(choices, key=partial(_worth, gpus, size, drawn)), size)
    return gpus.held


def _future(chance: random.Random, missing: float) -> list[int]:
    made: list[int] = []
    while missing > 0:
        made.append(chance.randint(1, FULL))
        missing -= made[-1]
    return made


def _worth(gpus: Gpus, size: int, futures: Sequence[Sequence[int]], free: int) -> int:
    """GiB given away in the end, over all futures, if a pod goes there."""
    worth = 0
    for future in futures:
        tried = gpus.copy()
        tried.put(free, size)
        worth += played(tried, future, without_gaps)
    return worth


def shares(gpus: int, futures: int, seed: int) -> tuple[float, ...]:
    """Give the shares of the fleet's memory that the three of ``NAMES`` place of one seed's trace."""
    sizes = [pod.size.memory // GIB for pod in filling("uniform", seed, DEMAND * gpus * CARD.memory)]
    by_rule = [played(Gpus.empty(gpus), sizes, choose) for choose in (fullest, without_gaps)]
    return tuple(held / (gpus * FULL) for held in (*by_rule, looking_ahead(Gpus.empty(gpus), sizes, futures, seed)))


def main(argv: Sequence[str]) -> int:
    """Print the share of each seed, and the worst."""
    parser = argparse.ArgumentParser("python -m tests.load.sim.ahead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=80, help="of the fleet (%(default)s)")
    parser.add_argument("--futures", type=int, default=600, help="tried for each choice (%(default)s)")
    options = parser.parse_args(argv)
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(shares, options.gpus, options.futures), SEEDS))
    for name, each in zip(NAMES, zip(*found, strict=True), strict=True):
        print(f"{name}: worst {min(each):.1%}; {', '.join(f'{share:.1%}' for share in each)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
