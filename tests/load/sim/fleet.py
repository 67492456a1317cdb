"""Nodes with GPUs, what is left of each, and the stock allocator's rule on one node: the first GPU listed that fits.

The allocator (dynamic-resource-allocation, release 1.37) takes a pool's devices in the order of its slices, tries them
one after the other for a claim's first request, then for the next, and goes back where a later request finds none. The
first complete answer is the one. All GPUs of a fleet are numbered; node n has those from n * per_node on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.load.sim.sizes import Card, Part, Size

Where = tuple[int, ...]
"""GPUs by number: one for a claim on one GPU, else one for each part."""


@dataclass(slots=True, kw_only=True)
class Fleet:
    """What is left of every GPU. ``order`` is what each node's slice says now, which is the order of choice.

    ``most_memory`` is that of a node's GPUs which take one more client, ``most_compute`` that of any.
    """

    nodes: int
    per_node: int = 8
    card: Card = field(default_factory=Card)
    memory: list[int] = field(init=False)
    compute: list[int] = field(init=False)
    clients: list[int] = field(init=False)
    order: list[list[int]] = field(init=False)
    most_memory: list[int] = field(init=False)
    most_compute: list[int] = field(init=False)
    pods: list[int] = field(init=False)

    def __post_init__(self) -> None:
        gpus = self.nodes * self.per_node
        self.memory, self.compute, self.clients = (
            [each] * gpus for each in (self.card.memory, self.card.compute, self.card.clients)
        )
        self.order = [list(self.gpus(node)) for node in range(self.nodes)]
        self.most_memory, self.most_compute = [self.card.memory] * self.nodes, [self.card.compute] * self.nodes
        self.pods = [0] * self.nodes

    @property
    def capacity(self) -> int:
        """MiB of all GPUs."""
        return self.nodes * self.per_node * self.card.memory

    @property
    def held(self) -> int:
        """MiB that pods have been given."""
        return self.capacity - sum(self.memory)

    def gpus(self, node: int) -> range:
        """GPUs of a node, by number."""
        return range(node * self.per_node, (node + 1) * self.per_node)

    def fit(self, node: int, size: Size) -> Where | None:
        """Find the GPUs the allocator gives to this claim on this node; ``None`` where it finds none."""
        if size.parts:
            return self._fit_apart(self.order[node], size.parts)
        needed, compute, clients = size.memory, size.compute, size.clients
        for gpu in self.order[node]:
            if self.memory[gpu] >= needed and self.compute[gpu] >= compute and self.clients[gpu] >= clients:
                return (gpu,)
        return None

    def _fit_apart(self, order: Sequence[int], parts: Sequence[Part]) -> Where | None:
        """Go through the GPUs for the first part, for each of them through those for the next, and so on."""
        if not parts:
            return ()
        for gpu in order:
            if self.memory[gpu] >= parts[0].memory and self.compute[gpu] >= parts[0].compute and self.clients[gpu]:
                self._change(gpu, parts[0], -1)
                rest = self._fit_apart(order, parts[1:])
                self._change(gpu, parts[0], +1)
                if rest is not None:
                    return (gpu, *rest)
        return None

    def take(self, where: Where, size: Size) -> None:
        """Give a claim what it asked for."""
        self._all(where, size, -1)
        self.pods[where[0] // self.per_node] += 1

    def give_back(self, where: Where, size: Size) -> None:
        """Take it away again."""
        self._all(where, size, +1)
        self.pods[where[0] // self.per_node] -= 1

    def _all(self, where: Where, size: Size, sign: int) -> None:
        if size.parts:
            for gpu, part in zip(where, size.parts, strict=True):
                self._change(gpu, part, sign)
        else:
            self._change(where[0], Part(size.memory, size.compute), sign, size.clients)
        self._know_most(where[0] // self.per_node)

    def _change(self, gpu: int, part: Part, sign: int, clients: int = 1) -> None:
        self.memory[gpu] += sign * part.memory
        self.compute[gpu] += sign * part.compute
        self.clients[gpu] += sign * clients

    def _know_most(self, node: int) -> None:
        own = slice(node * self.per_node, (node + 1) * self.per_node)
        with_room = zip(self.memory[own], self.clients[own], strict=True)
        self.most_memory[node] = max((memory for memory, clients in with_room if clients), default=0)
        self.most_compute[node] = max(self.compute[own])


def over_committed(fleet: Fleet) -> list[int]:
    """GPUs that were promised more than they have; there must be none."""
    return [
        gpu for gpu, left in enumerate(zip(fleet.memory, fleet.compute, fleet.clients, strict=True)) if min(left) < 0
    ]


def usable(fleet: Fleet, memory: int) -> float:
    """Share of the free memory that pods of ``memory`` MiB could have, one after the other; 1 where nothing is free."""
    free = sum(fleet.memory)
    return sum(each // memory * memory for each in fleet.memory) / free if free else 1.0


def used(fleet: Fleet) -> int:
    """GPUs that hold at least one share."""
    return sum(left < fleet.card.memory for left in fleet.memory)
