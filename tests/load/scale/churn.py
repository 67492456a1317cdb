"""Steady churn: pods come at a fixed rate, stay for a while and go; how long does one wait that could have a place?"""

import heapq
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane.bed import NOW, PODS, Bed
from tests.load.scale.figures import Figure, at_most, none_of, percentile
from tests.load.scale.fleet import WRITERS, Arm, clear, judge, namespaces, pod
from tests.load.scale.ledger import MIB, Bound, Ledger
from tests.load.scale.loads import Size, mixed
from tests.load.scale.placing import GPU_MIB, NAMESPACES, PER_NODE
from tests.load.scale.watching import watched
from tests.testbed.cluster.controlplane import TENANT

LARGE_MIB: Final = 12288
ONE_IN: Final = 33
"""So many of the pods are large."""
SMALL_MIB: Final = 2048
FILL: Final = 0.8
MOST_SECONDS: Final = 2.0
LOOK: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Pods a second, seconds that do not count and that do, and between which seconds a pod stays once it is bound."""

    rate: float
    warm: float
    seconds: float
    life: tuple[float, float] = (30.0, 120.0)
    seed: int = 1

    def sizes(self) -> list[Size]:
        """What all its pods ask for; one in 33 is large."""
        chance = random.Random(self.seed)
        drawn = mixed(self.seed, round(self.rate * (self.warm + self.seconds)))
        return [Size(LARGE_MIB) if chance.randrange(ONE_IN) == 0 else each for each in drawn]

    def nodes(self) -> int:
        """Nodes of four GPUs that these pods fill to 80 %."""
        together = self.rate * sum(self.life) / 2 * statistics.mean(each.memory_mib for each in self.sizes())
        return max(1, round(together / FILL / (PER_NODE * GPU_MIB)))


@dataclass(slots=True, kw_only=True)
class Coming:
    """Creates and deletes pods as the course says."""

    bed: Bed
    of: str
    course: Course
    spaces: Sequence[str]
    ledger: Ledger
    created: list[float] = field(default_factory=list)
    fills: list[tuple[float, float]] = field(default_factory=list)
    began: float = 0.0
    _due: list[tuple[float, str]] = field(default_factory=list)
    _seen: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """All of it."""
        self.began = time.monotonic()
        with ThreadPoolExecutor(2 * WRITERS) as pool:
            ending = pool.submit(self._end, pool)
            try:
                self._create(pool)
            finally:
                self._over.set()
            ending.result()

    def _create(self, pool: ThreadPoolExecutor) -> None:
        tenant = self.bed.plane.cluster(TENANT)
        for number, size in enumerate(self.course.sizes()):
            self._over.wait(max(0.0, self.began + number / self.course.rate - time.monotonic()))
            body, space = pod(Arm.SHARES, f"c-{number}", size, self.of), self._space(number)
            where = path(CORE_V1, PODS, namespace=space)
            pool.submit(self._ask, partial(tenant.create, where, body), body["metadata"]["name"], size)

    def _ask(self, create: Callable[[], object], name: str, size: Size) -> None:
        self.ledger.ask(name, size.memory_mib, size.compute, time.monotonic())
        create()
        self.created.append(time.monotonic())

    def _end(self, pool: ThreadPoolExecutor) -> None:
        chance = random.Random(self.course.seed + 1)
        while not self._over.wait(LOOK):
            fresh = self.ledger.settled(self._seen)
            self._seen += len(fresh)
            for each in fresh:
                heapq.heappush(self._due, (each.at + chance.uniform(*self.course.life), each.name))
            while self._due and self._due[0][0] <= time.monotonic():
                pool.submit(self._delete, heapq.heappop(self._due)[1])
            self.fills.append((time.monotonic(), self.ledger.fill()))

    def _delete(self, name: str) -> None:
        with suppress(ClusterError):
            self.bed.cluster.delete(path(CORE_V1, PODS, name, self._space(int(name.removeprefix("c-")))), NOW)

    def _space(self, number: int) -> str:
        return self.spaces[number % len(self.spaces)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Churned:
    """What was seen after the warming up. ``open`` are those that wait, with room, when it ends."""

    course: Course
    gpus: int
    rate: float
    fill: tuple[float, float, float]
    bound: list[Bound]
    open: list[float]
    without_room: int
    problems: tuple[str, ...]


def churn(bed: Bed, course: Course, of: str) -> Churned:
    """Run a course and clear up."""
    spaces = namespaces(bed, Arm.SHARES, NAMESPACES, [])
    with watched(bed.cluster, of) as ledger:
        coming = Coming(bed=bed, of=of, course=course, spaces=spaces, ledger=ledger)
        coming.run()
        now, found = time.monotonic(), judge(bed, spaces)
        since = coming.began + course.warm
        fills = [fill for at, fill in coming.fills if at >= since]
        churned = Churned(
            course=course, gpus=len(ledger.devices), rate=sum(at >= since for at in coming.created) / (now - since),
            fill=(min(fills), statistics.mean(fills), max(fills)),
            bound=[each for each in ledger.settled() if each.at - each.since_asked >= since],
            open=ledger.open(now), without_room=ledger.without_room(), problems=(*found.problems, *ledger.problems),
        )  # fmt: skip
    clear(bed, spaces)
    return churned


def _left(found: Churned) -> str:
    return f"{len(found.open)} with room, {found.without_room} without"


def _waits(found: Churned, of: Callable[[Bound], float], only: Callable[[Bound], bool] = bool) -> str:
    waited = [of(each) for each in found.bound if only(each)]
    return _shown(waited)


def _shown(waited: Sequence[float]) -> str:
    if not waited:
        return "none"
    parts = [f"p50 {percentile(waited, 50):.2f}", f"p99 {percentile(waited, 99):.2f}", f"most {max(waited):.2f} s"]
    return f"{', '.join(parts)}, {len(waited)} pods"


def figures(found: Churned) -> list[Figure]:
    """How long pods with room waited, by both accounts, the small and the large ones apart."""
    rate, waited = found.course.rate, [each.since_claims for each in found.bound] + found.open
    small = [each.since_claims for each in found.bound if each.need[0] <= SMALL_MIB * MIB]
    first = at_most(
        "churn", "time from room to bound, p99", percentile(waited, 99), MOST_SECONDS, unit=" s",
        more=f" (p50 {percentile(waited, 50):.2f} s, most {max(waited, default=0):.2f} s)",
    )  # fmt: skip
    return [
        Figure(
            run="churn", what="pods a second", found=f"{found.rate:.2f} on {found.gpus} GPUs, {len(found.bound)} pods",
            wanted=f"{rate:g}", held=found.rate >= 0.98 * rate,
        ),
        Figure(run="churn", what="fill: least, mean, most", found=", ".join(f"{fill:.0%}" for fill in found.fill)),
        first,
        at_most("churn", f"the same, pods up to {SMALL_MIB} MiB", percentile(small, 99), MOST_SECONDS, unit=" s",
                more=f" (most {max(small, default=0):.2f} s)"),
        Figure(run="churn", what="the same from the end of the pod that held the room",
               found=_waits(found, lambda each: each.since_holders)),
        Figure(run="churn", what="pods that had no room when they came",
               found=_waits(found, lambda each: each.since_claims, lambda each: each.since_claims < each.since_asked)),
        Figure(run="churn", what="from asked for to bound", found=_waits(found, lambda each: each.since_asked)),
        Figure(run="churn", what=f"the same, {LARGE_MIB} MiB",
               found=_waits(found, lambda each: each.since_asked, lambda each: each.need[0] == LARGE_MIB * MIB)),
        Figure(run="churn", what="waiting at the end", found=_left(found)),
        none_of("churn", "problems that auditor and ledger found", found.problems, f"{len(found.bound)} allocations"),
    ]  # fmt: skip
