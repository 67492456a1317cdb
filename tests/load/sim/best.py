"""The best possible, to hold the rule against: proven on small cases, a bound that nobody can pass on large ones.

Best is who places the most memory, of all pods at once, before knowing none of them: no scheduler that takes pods as
they come can be asked for more.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.load.sim.sizes import Card, Part, Size

TRIES: Final = 300_000
"""Branches after which the exact search gives up."""
NARROWINGS: Final = 60


@dataclass(slots=True)
class _Search:
    """Branch and bound: pods by size, the largest first, each onto every GPU that is unlike the others, or left out.

    It ends when the bound is met: all that is left, or all that is free on top of what is placed.
    """

    sizes: Sequence[Size]
    tries: int
    best: int = 0
    rest: list[int] = field(default_factory=list)

    def run(self, gpus: list[tuple[int, int, int]]) -> int | None:
        self.rest = [sum(each.memory for each in self.sizes[at:]) for at in range(len(self.sizes) + 1)]
        self._go(0, 0, gpus)
        return self.best if self.tries > 0 else None

    def _go(self, at: int, placed: int, gpus: list[tuple[int, int, int]]) -> None:
        self.best = max(self.best, placed)
        free = sum(memory for memory, _, _ in gpus)
        if self.tries <= 0 or at == len(self.sizes) or placed + min(free, self.rest[at]) <= self.best:
            return
        self.tries -= 1
        size = self.sizes[at]
        for gpu in sorted(set(gpus)):
            left = (gpu[0] - size.memory, gpu[1] - size.compute, gpu[2] - size.clients)
            if min(left) >= 0:
                number = gpus.index(gpu)
                self._go(at + 1, placed + size.memory, [*gpus[:number], left, *gpus[number + 1 :]])
        self._go(at + 1, placed, gpus)


def most(sizes: Iterable[Size], card: Card, gpus: int, tries: int = TRIES) -> int | None:
    """Find the most memory, in MiB, that any placement gives these pods; ``None`` where ``tries`` do not prove it.

    Args:
        sizes: claims on one GPU each.
        card: what each GPU offers.
        gpus: how many there are.
        tries: branches to look at.
    """
    ordered = sorted(sizes, key=lambda size: (-size.memory, size.compute, size.clients))
    if any(size.parts for size in ordered):
        raise ValueError("a claim on several GPUs has no place here: leave it out, or use bound()")
    return _Search(ordered, tries).run([(card.memory, card.compute, card.clients)] * gpus)


def bound(sizes: Iterable[Size], card: Card, gpus: int) -> float:
    """Return MiB that no placement passes: pods may be cut, and all GPUs are one.

    What compute and clients allow counts as well, each of them beside memory (a linear programme with two limits,
    solved through its dual; every value of the dual is a bound, so that stopping early errs to the safe side).
    """
    counted = Counter(Size(size.memory, size.compute, size.clients) for size in sizes)
    room, percent, clients = card.memory * gpus, card.compute * gpus, card.clients * gpus
    return min(
        _two_limits([(size.memory, size.compute, many) for size, many in counted.items()], room, percent),
        _two_limits([(size.memory, size.clients, many) for size, many in counted.items()], room, clients),
    )


def _two_limits(pods: Sequence[tuple[int, int, int]], room: int, other: int) -> float:
    """Bound the memory placed, for (memory, other thing, how many) each."""
    everything = float(sum(memory * many for memory, _, many in pods))
    if sum(thing * many for _, thing, many in pods) <= other:
        return min(everything, room)
    low, high = 0.0, max(memory / thing for memory, thing, _ in pods if thing)
    for _ in range(NARROWINGS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if _dual(pods, room, other, left) <= _dual(pods, room, other, right):
            high = right
        else:
            low = left
    return min(everything, room, _dual(pods, room, other, low), _dual(pods, room, other, high))


def _dual(pods: Sequence[tuple[int, int, int]], room: int, other: int, price: float) -> float:
    """Buy the other thing at a price (in MiB), then fill the room with what is worth most for its memory."""
    worth = sorted(((1 - price * thing / memory, memory * many) for memory, thing, many in pods), reverse=True)
    value, free = price * other, float(room)
    for share, memory in worth:
        if share <= 0 or free <= 0:
            break
        value += share * min(memory, free)
        free -= memory
    return value


def fewest_gpus(sizes: Iterable[Size], card: Card) -> int:
    """Return a number of GPUs below which nobody can place all of these pods."""
    parts = [part for size in sizes for part in size.parts or (Part(size.memory, size.compute),)]
    halves = sum(2 * part.memory > card.memory for part in parts)
    clients = sum(size.clients for size in sizes)
    sums = (sum(part.memory for part in parts), sum(part.compute for part in parts), clients)
    needed = [-(-have // each) for have, each in zip(sums, (card.memory, card.compute, card.clients), strict=True)]
    return max(halves, *needed)


def best_fit(pods: Iterable[Size], card: Card, gpus: int) -> int:
    """Place pods as they come, each on the fullest GPU of all that fits; returns the MiB that were placed.

    What somebody could do who sees the whole fleet, but not what comes next. Parts of a claim need not be on one node.
    """
    left = [(card.memory, number) for number in range(gpus)]
    other = [(card.compute, card.clients)] * gpus
    placed = 0
    for size in pods:
        for part in size.parts or (size,):
            clients = 1 if size.parts else size.clients
            placed += _onto_the_fullest(left, other, (part.memory, part.compute, clients))
    return placed


def _onto_the_fullest(left: list[tuple[int, int]], other: list[tuple[int, int]], asked: tuple[int, int, int]) -> int:
    memory, compute, clients = asked
    for at in range(bisect_left(left, (memory, 0)), len(left)):
        free, gpu = left[at]
        percent, more = other[gpu]
        if percent >= compute and more >= clients:
            del left[at]
            insort(left, (free - memory, gpu))
            other[gpu] = (percent - compute, more - clients)
            return memory
    return 0
