"""Publishes simulated machines for nodes that are only API objects, with the product's own code."""

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import replace

from enforcer.nvml.types import Gpu
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, resource_slices
from enforcer.resourceslices.publisher import SlicePublisher
from gpushare.kube_client import KubeClient
from tests.fakes.gpu.state import Machine, MachineGpu


def gpus_of(machine: Machine, node: str = "") -> tuple[Gpu, ...]:
    """The machine's GPUs as NVML would describe them; with ``node`` they get UUIDs of that node's own."""
    cards = enumerate((*machine.gpus, *machine.instances))
    return tuple(_gpu(machine, index, each, node) for index, each in cards)


def publish_nodes(
    cluster: KubeClient, nodes: Iterable[str], machine: Machine | str, policy: InventoryPolicy | None = None
) -> dict[str, tuple[Gpu, ...]]:
    """Publish the same machine for every node; returns the GPUs of each. The nodes themselves must exist already."""
    shape = Machine.named(machine) if isinstance(machine, str) else machine
    published = {}
    for node in nodes:
        published[node] = gpus_of(shape, node)
        devices = build_devices(published[node], policy or InventoryPolicy()).devices
        SlicePublisher(cluster, node).publish(resource_slices(node, devices))
    return published


def _gpu(machine: Machine, index: int, each: MachineGpu, node: str) -> Gpu:
    one = replace(each, uuid=_uuid(node, each.uuid)) if node else each
    major, minor = one.cc.split(".")
    model, _, profile = one.name.partition(" MIG ")
    minor_of = {card.uuid: card.minor for card in machine.gpus}
    return Gpu(
        uuid=one.uuid, index=index, minor=minor_of.get(one.parent, one.minor), model=model, memory_mib=one.memory_mib,
        reserved_mib=one.reserved_mib, compute_capability=(int(major), int(minor)), pci_bus_id=one.pci,
        driver_version=machine.driver, cuda_version=(machine.cuda // 1000, machine.cuda % 1000 // 10),
        mig_enabled=one.mig, parent=_parent(one, node), profile=profile if one.parent else "", sms=one.sms,
    )  # fmt: skip


def _parent(one: MachineGpu, node: str) -> str | None:
    if not one.parent:
        return None
    return _uuid(node, one.parent) if node else one.parent


def _uuid(node: str, uuid: str) -> str:
    digest = hashlib.sha256(f"{node}/{uuid}".encode()).hexdigest()
    return f"{uuid[:3]}-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


if __name__ == "__main__":
    publish_nodes(KubeClient.connect(sys.argv[1]), sys.argv[3:], sys.argv[2])
