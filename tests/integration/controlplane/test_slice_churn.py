"""What claims that come and go make an enforcer write, counted by a real API server; and how large that gets."""

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.quota.types import Quota
from enforcer.resourceslices.devices import InventoryPolicy, Order, capacity_mib, device_name
from enforcer.resourceslices.publisher import SlicePublisher
from gpushare.contract import MAX_CLIENTS, NODE_LABEL
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine
from tests.integration.controlplane.objects import Object, node
from tests.support.slices import slices
from tests.testbed.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane
CARDS = [
    card._replace(index=4 * half + card.index, uuid=f"{card.uuid[:-1]}{4 * half + card.index}")
    for half in range(2)
    for card in gpus_of(Machine.named("h100x4"))
]
SIZES = (1, 2, 4, 8, 10, 16, 20, 24, 40)
TURNS, BURST = 60, 5


@dataclass
class Churn:
    """A node of eight GPUs; claims go to the first GPU that fits by the order that stands on the API server."""

    cluster: KubeClient
    where: str
    order: Order
    chance: random.Random = field(default_factory=lambda: random.Random(8))
    quotas: list[Quota] = field(default_factory=list)
    claims: int = 0

    def __post_init__(self) -> None:
        body = node(self.where)
        body["metadata"]["labels"] = {NODE_LABEL: "true"}
        self.cluster.create(path(CORE_V1, "nodes"), body)
        self.offering = slices(self.cluster, InventoryPolicy(order=self.order), node=self.where)
        self.views = [GpuSnapshot(gpu=card) for card in CARDS]

    def slice(self) -> Object:
        (only,) = self.cluster.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.nodeName={self.where}")[0]
        return only

    def offer(self) -> int:
        """Make the offer; returns the generation it is of."""
        self.offering.reconcile(self.views, self.quotas)
        assert self.offering.problem is None
        return int(self.slice()["spec"]["pool"]["generation"])

    def burst(self) -> None:
        """Claims that come, and as many that go once half of the memory is taken."""
        names = [each["name"] for each in self.slice()["spec"]["devices"]]
        cards = sorted(CARDS, key=lambda card: names.index(device_name(card)))
        for _ in range(BURST):
            held = defaultdict[str, int](int)
            for each in self.quotas:
                held[each.gpu] += each.memory_mib
            if self.chance.random() < sum(held.values()) / len(CARDS) / ROOM:
                self.quotas.pop(self.chance.randrange(len(self.quotas)))
            mib = self.chance.choice(SIZES) * 1024
            card = next((card for card in cards if held[card.uuid] + mib <= ROOM), None)
            if card is not None:
                self.claims += 1
                self.quotas.append(quota(f"{self.claims}", card.uuid, mib))


ROOM = capacity_mib(CARDS[0], InventoryPolicy())


def quota(name: str, gpu: str, mib: int) -> Quota:
    return Quota(
        claim_uid=name, namespace="n", pod=name, pod_uid=name, container="c", container_id=None, gpu=gpu, memory_mib=mib
    )


@pytest.mark.parametrize("order", Order)
def test_a_burst_of_claims_is_one_write_or_none(plane: ControlPlane, order: Order) -> None:
    churn = Churn(plane.cluster(), f"churn-{order}", order)
    generations = [churn.offer()]
    for _ in range(TURNS):
        churn.burst()
        generations.append(churn.offer())
    writes = generations[-1] - generations[0]
    assert all(after - before in {0, 1} for before, after in pairwise(generations))
    assert churn.claims > TURNS * BURST / 2
    assert 0 < writes <= {Order.BINPACK: churn.claims / 10, Order.SPREAD: TURNS}[order]
    print(
        f"\n{order}: {writes} writes for {churn.claims} claims in {TURNS} bursts ({writes / churn.claims:.2f} a claim)"
    )
    SlicePublisher(plane.cluster(), churn.where).publish(())


def test_a_slice_is_as_large_with_a_full_node_as_with_an_empty_one(plane: ControlPlane) -> None:
    churn = Churn(plane.cluster(), "churn-size", Order.BINPACK)
    churn.offer()
    empty = churn.slice()
    for card in CARDS:
        churn.quotas += [quota(f"{card.index}-{n}", card.uuid, 1024) for n in range(MAX_CLIENTS)]
    churn.offer()
    full = churn.slice()
    assert full["spec"] == empty["spec"]
    size = len(json.dumps(full, separators=(",", ":")))
    print(f"\nslice of {len(CARDS)} GPUs: {size} bytes, whatever {len(churn.quotas)} shares hold")
    assert size < 16 * 1024
    SlicePublisher(plane.cluster(), churn.where).publish(())
