"""Plays a trace: pods arrive, are placed or wait, leave; enforcers look and write. No clock but the trace's own.

A pod that fits nowhere waits. The scheduler tries it again when a claim is given back, in the order in which pods
began to wait: as memory was free nowhere else, only the node where that happened can have room for it now. Backoff
(1 to 10 s, skipped by an idle scheduler) is left out.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.load.sim.across import Across, Scheduler
from tests.load.sim.fleet import Fleet, Where
from tests.load.sim.order import Enforcers, Order
from tests.load.sim.sizes import NEVER, Pod, Size

ENDS: Final = 0
LOOKS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is tried: order within a node, choice across nodes, and seconds between the looks of an enforcer."""

    order: Order = Order.BINPACK
    across: Across = Across.NONE
    every: float = 10.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a pod went, and when."""

    pod: Pod
    where: Where
    at: float


@dataclass(slots=True, kw_only=True)
class Play:
    """A trace on a fleet. ``placed`` by number of the pod; ``waiting`` by size, in order of arrival."""

    fleet: Fleet
    rules: Rules
    seed: int = 0
    placed: dict[int, Placed] = field(default_factory=dict)
    waiting: dict[Size, deque[Pod]] = field(default_factory=dict)
    enforcers: Enforcers = field(init=False)
    scheduler: Scheduler = field(init=False)
    _events: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.enforcers = Enforcers(fleet=self.fleet, order=self.rules.order, every=self.rules.every)
        chance = random.Random(f"ties {self.seed}")
        self.scheduler = Scheduler(fleet=self.fleet, across=self.rules.across, chance=chance)

    def run(
        self,
        pods: Sequence[Pod],
        samples: Sequence[float] = (),
        sampled: Callable[[float], None] = lambda _: None,
        until: float = NEVER,
    ) -> "Play":
        """Play all of it: every pod arrives in its order; ``sampled`` is called at the times of ``samples``."""
        times = deque(samples)
        for pod in pods:
            while times and times[0] <= pod.arrives:
                self._up_to(times[0])
                sampled(times.popleft())
            self._up_to(pod.arrives)
            self.arrive(pod)
        for time in times:
            self._up_to(time)
            sampled(time)
        self._up_to(until)
        return self

    def arrive(self, pod: Pod) -> None:
        """Place a pod, or let it wait."""
        node = self.scheduler.choose(pod.size)
        if node is None:
            self.waiting.setdefault(pod.size, deque()).append(pod)
        else:
            self._place(pod, node, pod.arrives)

    def _place(self, pod: Pod, node: int, now: float) -> None:
        where = self.fleet.fit(node, pod.size)
        assert where is not None, "the scheduler takes a node that fits"
        self.fleet.take(where, pod.size)
        self.placed[pod.number] = Placed(pod, where, now)
        if pod.lives != NEVER:
            heapq.heappush(self._events, (now + pod.lives, ENDS, pod.number))
        self._changed(node, now)

    def _up_to(self, time: float) -> None:
        """Let everything happen that happens before or at ``time``; ends as soon as nothing is to come."""
        while self._events and self._events[0][0] <= time:
            now, kind, number = heapq.heappop(self._events)
            if kind == LOOKS:
                self.enforcers.look(number)
            else:
                self._end(self.placed[number], now)

    def _end(self, placed: Placed, now: float) -> None:
        self.fleet.give_back(placed.where, placed.pod.size)
        node = placed.where[0] // self.fleet.per_node
        self._changed(node, now)
        while (pod := self._next(node)) is not None:
            self._place(pod, node, now)

    def _next(self, node: int) -> Pod | None:
        """Take from the queue who waits longest of those for whom there is room on a node now."""
        most = self.fleet.most_memory[node]
        heads = [(queue[0].number, size) for size, queue in self.waiting.items() if size.memory <= most or size.parts]
        for _, size in sorted(heads, key=lambda head: head[0]):
            if self.fleet.fit(node, size) is not None:
                queue = self.waiting[size]
                pod = queue.popleft()
                if not queue:
                    del self.waiting[size]
                return pod
        return None

    def _changed(self, node: int, now: float) -> None:
        look = self.enforcers.changed(node, now)
        if look is not None:
            heapq.heappush(self._events, (look, LOOKS, node))
