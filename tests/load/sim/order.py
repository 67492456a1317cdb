"""Which GPU of a node its slice lists first, and how late that is said.

The enforcer sorts by what claims hold (``enforcer.resourceslices.devices``), for binpack only once GPUs are out of
order by more than a quarter of a card. It looks every few seconds and writes only what changed. Between two looks the
scheduler goes by an old order: never wrong, for fitting is exact, only less apt. A write is counted for each look that
found another order.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final

from enforcer.resourceslices.devices import REORDER_TOLERANCE
from enforcer.resourceslices.devices import Order as Offered
from tests.load.sim.fleet import Fleet


class Order(StrEnum):
    """Within a node: fullest first, the same to the letter, emptiest first, or as the cards are numbered."""

    BINPACK = "binpack"
    STRICT = "strict"
    SPREAD = "spread"
    FIXED = "fixed"


SIGN: Final = {Order.BINPACK: 1, Order.STRICT: 1, Order.SPREAD: -1, Order.FIXED: 0}
LENIENT: Final = {Order.BINPACK: REORDER_TOLERANCE[Offered.BINPACK], Order.SPREAD: REORDER_TOLERANCE[Offered.SPREAD]}
"""By how much of a card one may be fuller than another that it should not be listed after (or before)."""


def wanted(fleet: Fleet, node: int, order: Order) -> list[int]:
    """Sort a node's GPUs as its enforcer would, unless they stand in that order already, or nearly."""
    sign, left, standing = SIGN[order], fleet.memory, fleet.order[node]
    slack = LENIENT.get(order, 0.0) * fleet.card.memory
    highest = accumulate((sign * left[gpu] for gpu in standing), max)
    if all(most - sign * left[gpu] <= slack for most, gpu in zip(highest, standing, strict=True)):
        return standing
    return sorted(fleet.gpus(node), key=lambda gpu: (sign * left[gpu], gpu))


@dataclass(slots=True, kw_only=True)
class Enforcers:
    """The enforcers of all nodes. ``every``: seconds between looks; 0 says that each change is seen at once."""

    fleet: Fleet
    order: Order
    every: float = 10.0
    writes: int = 0
    _waiting: set[int] = field(default_factory=set)

    def changed(self, node: int, now: float) -> float | None:
        """Note that claims of a node changed; returns when its enforcer has to look, ``None`` where that is settled."""
        if self.order is Order.FIXED or node in self._waiting:
            return None
        if self.every == 0:
            self.look(node)
            return None
        self._waiting.add(node)
        return self._next_look(node, now)

    def look(self, node: int) -> None:
        """Write the node's slice if its order is not what it should be."""
        self._waiting.discard(node)
        order = wanted(self.fleet, node, self.order)
        if order != self.fleet.order[node]:
            self.fleet.order[node] = order
            self.writes += 1

    def _next_look(self, node: int, now: float) -> float:
        """Enforcers began at different times, so they do not look at the same ones."""
        began = (node * 0.618034) % 1 * self.every
        return began + (math.floor((now - began) / self.every) + 1) * self.every
