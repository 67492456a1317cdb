"""Which node the stock scheduler takes of those that fit (release 1.37), and which of them it looks at at all.

It begins where it left off, stops once it has found enough (all below 100 nodes, then a share that falls from 50 % to
5 %), scores what it found and takes the best, ties at random. Claims take no part in the scores. What does: how much
of the node's CPU and memory is asked for (least allocated), and affinities where a pod has some. Every pod is taken to
ask for the same CPU and memory, so that every score is a function of how many pods a node has.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice

from tests.load.sim.fleet import Fleet
from tests.load.sim.sizes import Size

MOST = 100
"""Highest score of a plugin."""
ENOUGH = 100
"""Nodes that are always looked for."""
AFFINITY = 2
"""Weight of the plugin InterPodAffinity, as of NodeAffinity; that of NodeResourcesFit is 1."""
HOST_PODS = 192
"""Pods after which a node's CPU and memory are used up."""


class Across(StrEnum):
    """Across nodes."""

    NONE = "none"
    """No affinity: the node with the fewest pods."""
    TIES = "ties"
    """No affinity, and nodes so large that their scores are the same."""
    BINPACK = "binpack"
    """A preferred affinity to other sharing pods."""
    SPREAD = "spread"
    """A preferred anti-affinity to them."""


def looked_for(nodes: int) -> int:
    """Nodes that fit after which the scheduler stops looking for more."""
    if nodes < ENOUGH:
        return nodes
    return max(ENOUGH, nodes * max(5, 50 - nodes // 125) // 100)


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Chooses a node for one pod after the other."""

    fleet: Fleet
    across: Across
    chance: random.Random
    _start: int = 0
    _looked_at: int = 0

    def choose(self, size: Size) -> int | None:
        """Return a node on which the claim fits; ``None`` where there is none."""
        found = list(islice(self._fitting(size), looked_for(self.fleet.nodes)))
        self._start = (self._start + self._looked_at) % self.fleet.nodes
        return self._best(found) if found else None

    def _fitting(self, size: Size) -> Iterator[int]:
        fit, nodes, start = self.fleet.fit, self.fleet.nodes, self._start
        memory, compute = self.fleet.most_memory, self.fleet.most_compute
        needed, percent = (0, 0) if size.parts else (size.memory, size.compute)
        exact = not size.parts and not size.compute and size.clients == 1
        self._looked_at = nodes
        for node in chain(range(start, nodes), range(start)):
            # What a node has most of tells most nodes apart, without a look at each of their GPUs.
            if memory[node] >= needed and (exact or (compute[node] >= percent and fit(node, size) is not None)):
                self._looked_at = (node - start) % nodes + 1
                yield node
        self._looked_at = nodes

    def _best(self, found: list[int]) -> int:
        if self.across is Across.TIES:
            return self.chance.choice(found)
        counts = [self.fleet.pods[node] for node in found]
        fewest, most = min(counts), max(counts)
        scores = {count: self._score(count, fewest, most) for count in set(counts)}
        best = max(scores.values())
        return self.chance.choice([node for node, count in zip(found, counts, strict=True) if scores[count] == best])

    def _score(self, count: int, fewest: int, most: int) -> int:
        """Score a node of so many pods, where those that fit have from ``fewest`` to ``most``."""
        free = max(0, HOST_PODS - count - 1) * MOST // HOST_PODS
        if self.across is Across.NONE or most == fewest:
            return free
        above = count - fewest if self.across is Across.BINPACK else most - count
        return AFFINITY * int(MOST * above / (most - fewest)) + free
