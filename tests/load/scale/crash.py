"""Bursts of pods in which the API server is killed at once: how often does the scheduler give the same room twice?"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.integration.controlplane.bed import Bed
from tests.load.scale.chaos import Writing
from tests.load.scale.figures import Figure, none_of
from tests.load.scale.fleet import Arm, clear, namespaces, promises
from tests.load.scale.harm import restart
from tests.load.scale.loads import mixed, must_all_fit
from tests.load.scale.placing import GPU_MIB, NAMESPACES
from tests.load.scale.unsure import Sorted, sort
from tests.load.scale.watching import watched

BURST_SECONDS: Final = 3.0
EARLIEST: Final = 0.8
"""Seconds from the first pod of a burst until the API server may be killed."""
PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What came of one: problems as they were sorted, and how many pods had no node in the end."""

    told: Sorted
    unbound: int


def bursts(bed: Bed, seed: int, count: int, pods: int, of: str, gpus: int) -> Iterator[Burst]:
    """Make so many, one after the other, each on an empty fleet."""
    chance = random.Random(seed)
    for number in range(count):
        sizes = mixed(seed + number, pods)
        assert must_all_fit(sizes, gpus, GPU_MIB)
        spaces = namespaces(bed, Arm.SHARES, NAMESPACES, sizes)
        with watched(bed.cluster, of) as ledger:
            writing = Writing(bed=bed, of=of, spaces=spaces, ledger=ledger)
            creating = threading.Thread(target=writing.create, args=(sizes, BURST_SECONDS))
            creating.start()
            try:
                time.sleep(chance.uniform(EARLIEST, BURST_SECONDS))
                restart(bed.plane)
            except BaseException:
                writing.over()
                raise
            creating.join()
            deadline = time.monotonic() + PATIENCE
            while len(ledger.bound) < pods and time.monotonic() < deadline:
                time.sleep(0.3)
            log = bed.plane.log("kube-scheduler").read_text(errors="replace")
            told = sort(*promises(bed, spaces), ledger.shortfalls, log)
            yield Burst(told=told, unbound=pods - len(ledger.bound))
        clear(bed, spaces, let_go=True)


def figures(found: Sequence[Burst]) -> list[Figure]:
    """How often, and that nothing else was wrong."""
    lost = set().union(*(each.told.lost for each in found))
    twice = sum(bool(each.told.twice) for each in found)
    others = [problem for each in found for problem in each.told.others]
    return [
        Figure(run="crash", what="allocations of which the scheduler got no answer", found=f"{len(lost)}"),
        Figure(run="crash", what="bursts in which a GPU was given twice by that", found=f"{twice} of {len(found)}"),
        none_of("crash", "problems of another cause", others, f"{len(found)} bursts"),
        none_of("crash", "pods without a node", [each for each in found if each.unbound], f"{len(found)} bursts"),
    ]


def trivial(found: Sequence[Burst]) -> list[str]:
    """What did not happen although this is about nothing else."""
    return [] if any(each.told.lost for each in found) else ["no answer was lost"]
