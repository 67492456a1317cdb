"""The same pods on a real scheduler and in tests/load/sim: GPU by GPU on one node, node by node on several."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from enforcer.resourceslices.devices import (
    InventoryPolicy,
    Order,
    build_devices,
    capacity_mib,
    device_name,
    resource_slices,
)
from enforcer.resourceslices.publisher import SlicePublisher
from gpushare.contract import GPU_MODEL, MANAGED_LABEL, SAME_GPU
from gpushare.kube_client import CORE_V1, path
from tests.fakes.gpu.publish import gpus_of, publish_nodes
from tests.fakes.gpu.state import Machine
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, Bed
from tests.integration.controlplane.objects import HOSTNAME, Object
from tests.load.sim.across import Across
from tests.load.sim.fleet import Fleet, Where
from tests.load.sim.order import Order as Within
from tests.load.sim.play import Play, Rules
from tests.load.sim.sizes import GIB, Card, Part, Pod, Size, apart, together

pytestmark = pytest.mark.controlplane
NODE: Final = "simulated"
STEPS: Final = 32
REORDERED: Final = 8
"""Steps after which the order is written again."""
POLICY: Final = InventoryPolicy(order=Order.BINPACK)
LEFT_MIB: Final = 1000
"""What the marker offers: room for a probe of 512 MiB, and for none of the pods."""
FLEET: Final = "test.gpu-share.io/fleet"
NODES, GPUS, GROUP = 5, 2, 33
Made = tuple[Part, ...]


class Node:
    """One real node, and the simulator's with the same GPUs."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.namespace = bed, bed.namespace("simulated")
        bed.node(NODE, slices=False)
        self.gpus = gpus_of(Machine.named("quad-16g"), NODE)
        self.fleet = Fleet(nodes=1, per_node=4, card=Card(memory=capacity_mib(self.gpus[0], POLICY)))
        self.publisher, self.orders = SlicePublisher(bed.cluster, NODE), 0
        self.there: dict[str, tuple[Where, Size]] = {}

    def reorder(self) -> None:
        """Write the order that the enforcer would, and wait until the scheduler goes by it.

        A new GPU has the enforcer sort them all. It is a marker, of another model each time: a probe that lands on it
        has seen this slice.
        """
        self.orders += 1
        model, probe = f"M{self.orders}", f"probe-{self.orders}"
        memory = LEFT_MIB + POLICY.context_mib
        marker = self.gpus[0]._replace(uuid=f"GPU-marker-{self.orders}", index=99, memory_mib=memory, model=model)
        held = {gpu.uuid: self.fleet.card.memory - left for gpu, left in zip(self.gpus, self.fleet.memory, strict=True)}
        self.publisher.publish(
            resource_slices(NODE, build_devices([*self.gpus, marker], POLICY, reserved_mib=held).devices)
        )
        self.bed.create(self.namespace, objects.pod(probe, "512Mi", node=NODE, **{GPU_MODEL: model}))
        self.bed.wait_bound(self.namespace, probe)
        self.fleet.order[0] = sorted(range(4), key=lambda gpu: (self.fleet.memory[gpu], gpu))

    def create(self, name: str, made: Made, *, same_gpu: bool) -> bool:
        """Make a pod here and there, and compare; returns whether there was room for it."""
        size = together(*made) if same_gpu else apart(*made)
        where = self.fleet.fit(0, size)
        self.bed.create(self.namespace, body(name, made, same_gpu=same_gpu))
        if where is None:
            self.bed.wait_unschedulable(self.namespace, name)
            self.bed.delete_pod(self.namespace, name)
            return False
        got = self.bed.gpus_of(self.bed.wait_bound(self.namespace, name))
        expected = [device_name(self.gpus[gpu]) for gpu in (where if size.parts else where * len(made))]
        assert [got[f"c{number}"] for number in range(len(made))] == expected, (name, size)
        self.fleet.take(where, size)
        self.there[name] = (where, size)
        return True

    def delete(self, name: str) -> None:
        """End a pod. The scheduler learns of its claim's end before it learns of a later claim, by the same watch."""
        self.bed.delete_pod(self.namespace, name)
        self.bed.until("its claim is gone", lambda: name not in self._owners())
        self.fleet.give_back(*self.there.pop(name))

    def _owners(self) -> set[str]:
        claims = self.bed.list(CLAIMS, self.namespace)
        return {owner["name"] for claim in claims for owner in claim["metadata"]["ownerReferences"]}


def body(name: str, made: Made, *, same_gpu: bool) -> Object:
    asked = {f"memory.gpu-share.io/c{number}": f"{part.memory}Mi" for number, part in enumerate(made)}
    asked |= {f"compute.gpu-share.io/c{number}": f"{part.compute}%" for number, part in enumerate(made) if part.compute}
    pod = objects.pod(name, node=NODE, **asked, **({} if same_gpu else {SAME_GPU: "false"}))
    pod["spec"]["containers"] = [
        {"name": f"c{number}", "image": "example.invalid/app:1"} for number in range(len(made))
    ]
    return pod


def drawn(chance: random.Random) -> tuple[Made, bool]:
    """One container, or two on one GPU, or two anywhere."""
    kind = chance.choices(("one", "together", "apart"), (5, 2, 2))[0]
    parts = [Part(chance.randint(1 * GIB, 7 * GIB), chance.choice((0, 0, 10, 30))) for _ in range(1 + (kind != "one"))]
    return tuple(parts), kind != "apart"


@pytest.mark.timeout(400)
def test_on_one_node_every_pod_gets_the_gpu_that_the_simulator_names(bed: Bed) -> None:
    node, chance = Node(bed), random.Random("one node")
    fitted: Counter[bool] = Counter()
    for number in range(STEPS):
        if number % REORDERED == 0:
            node.reorder()
        if node.there and chance.random() < 0.3:
            node.delete(chance.choice(sorted(node.there)))
        made, same_gpu = drawn(chance)
        fitted[node.create(f"pod-{number}", made, same_gpu=same_gpu)] += 1
    assert fitted[True] > STEPS / 2
    assert fitted[False] > 1, "some find no room"
    assert node.fleet.order != [[0, 1, 2, 3]], "the order that was written is not the one it began with"


def preferring(across: Across) -> Object:
    """The pod's own word about sharing pods, to which the webhook adds nothing; without one, about none anywhere."""
    key = HOSTNAME if across in {Across.BINPACK, Across.SPREAD} else "test.gpu-share.io/no-such-label"
    selector = {"matchLabels": {MANAGED_LABEL: "true"}}
    term = {"labelSelector": selector, "namespaceSelector": {}, "topologyKey": key}
    section = "podAntiAffinity" if across is Across.SPREAD else "podAffinity"
    return {section: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}


@contextmanager
def fleet(bed: Bed, name: str) -> Iterator[None]:
    names = [f"{name}-{number}" for number in range(NODES)]
    for each in names:
        bed.node(each, labels={FLEET: name}, slices=False)
    publish_nodes(bed.cluster, names, "pair-16g")
    yield
    for each in names:
        bed.remove(path(CORE_V1, "nodes", each))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("across", [Across.NONE, Across.BINPACK, Across.SPREAD])
def test_over_several_nodes_pods_lie_as_the_simulator_says(bed: Bed, across: Across) -> None:
    """Pods are alike, so how many each node has is the same whatever node a tie went to."""
    name = f"across-{across}"
    namespace = bed.namespace(name)
    with fleet(bed, name):
        for number in range(GROUP):
            pod = objects.pod(f"pod-{number}", "3Gi")
            pod["spec"] |= {"nodeSelector": {FLEET: name}, "affinity": preferring(across)}
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8", "memory": "32Gi"}}
            bed.create(namespace, pod)
        bed.until("all are bound", lambda: all(pod["spec"].get("nodeName") for pod in bed.list(PODS, namespace)), 90)
        bound = bed.list(PODS, namespace)
        on_node = Counter(pod["spec"]["nodeName"] for pod in bound)
        on_gpu = Counter((pod["spec"]["nodeName"], bed.gpus_of(pod)["main"]) for pod in bound)
        bed.empty(namespace)
    card = Card(memory=capacity_mib(gpus_of(Machine.named("pair-16g"))[0], InventoryPolicy()))
    simulated = Fleet(nodes=NODES, per_node=GPUS, card=card)
    Play(fleet=simulated, rules=Rules(order=Within.FIXED, across=across)).run(
        [Pod(number, Size(3 * GIB)) for number in range(GROUP)]
    )
    assert sorted(on_node.values()) == sorted(count for count in simulated.pods if count)
    shares = [(card.memory - left) // (3 * GIB) for left in simulated.memory]
    assert sorted(on_gpu.values()) == sorted(count for count in shares if count)
