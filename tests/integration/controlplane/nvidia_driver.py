"""A stand-in for NVIDIA's DRA driver: publishes the devices of a simulated machine as that driver does.

Source: ``cmd/gpu-kubelet-plugin`` of github.com/kubernetes-sigs/dra-driver-nvidia-gpu (``deviceinfo.go``: names,
attributes and capacities; ``consumable_shares.go``: what its gate ConsumableShares adds; ``driver.go``: one pool a node
and all devices in one slice), and the DeviceClasses of its chart.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from tests.fakes.gpu.machine import Machine, MachineGpu
from tests.integration.controlplane.objects import Object

DRIVER: Final = "gpu.nvidia.com"
GPU_CLASS: Final = DRIVER
MIG_CLASS: Final = "mig.nvidia.com"
WHOLE_GPU: Final = "nvidia.com/gpu"
"""The extended resource that the class of whole GPUs has."""
CLASSES: Final = path(RESOURCE_V1, "deviceclasses")
SLICES: Final = path(RESOURCE_V1, "resourceslices")
PROFILE_IDS: Final = {"1g.10gb": 19, "3g.40gb": 9}


class Publisher:
    """The driver on one node. Each call of ``publish`` is the next generation of the node's pool."""

    def __init__(self, cluster: KubeClient, node: str, machine: Machine) -> None:
        self._cluster, self._node, self._machine = cluster, node, machine
        self._generation = 0

    def install(self) -> None:
        """Create the DeviceClasses, as the chart does."""
        whole = {"extendedResourceName": WHOLE_GPU}
        for name, kind, more in ((GPU_CLASS, "gpu", whole), (MIG_CLASS, "mig", {})):
            text = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
            spec = {"selectors": [{"cel": {"expression": text}}], **more}
            self._cluster.create(CLASSES, {"metadata": {"name": name}, "spec": spec})

    def remove(self) -> None:
        """Remove all that there is of the driver."""
        self.withdraw()
        for name in (GPU_CLASS, MIG_CLASS):
            self._cluster.delete(f"{CLASSES}/{name}")

    def uuids(self) -> dict[str, str]:
        """Return the UUID behind the name of each device."""
        return {name: card.uuid for name, card in self._named().items()}

    def publish(
        self,
        *,
        shares: str = "memory",
        others: Mapping[str, str] | None = None,
        lacking: int = 0,
        generation: int | None = None,
    ) -> None:
        """Publish all devices.

        Args:
            shares: the chart's ``consumableShares``: ``memory``, ``unlimited``, a number, or ``disabled``.
            others: UUIDs that stand for those of some devices, by the name of the device.
            lacking: slices of the pool that are never written, as while the driver is at it.
            generation: an older one, which stays beside the newest; the next one replaces all that there are.
        """
        before = [] if generation is not None or lacking else self._published()
        if generation is None:
            self._generation += 1
        devices = [
            _device(self._machine, name, card, (others or {}).get(name, card.uuid), shares)
            for name, card in self._named().items()
        ]
        pool = {"name": self._node, "resourceSliceCount": 1 + lacking, "generation": generation or self._generation}
        spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": devices}
        self._cluster.create(SLICES, {"metadata": {"generateName": f"{self._node}-{DRIVER}-"}, "spec": spec})
        for each in before:
            self._cluster.delete(each)

    def withdraw(self) -> None:
        """Delete the slices, as the kubelet does while the driver is away."""
        for each in self._published():
            self._cluster.delete(each)

    def _published(self) -> list[str]:
        mine, _ = self._cluster.list(SLICES, fieldSelector=f"spec.nodeName={self._node},spec.driver={DRIVER}")
        return [f"{SLICES}/{each['metadata']['name']}" for each in mine]

    def _named(self) -> dict[str, MachineGpu]:
        minors = {card.uuid: card.minor for card in self._machine.gpus}
        found = {f"gpu-{card.minor}": card for card in self._machine.gpus if not card.mig}
        for each in self._machine.instances:
            profile = _profile(each)
            kind = f"{profile.replace('.', '')}-{PROFILE_IDS[profile]}"
            found[f"gpu-{minors[each.parent]}-mig-{kind}-{each.minor}"] = each
        return found


def _profile(card: MachineGpu) -> str:
    return card.name.partition(" MIG ")[2]


def _device(machine: Machine, name: str, card: MachineGpu, uuid: str, shares: str) -> Object:
    memory = {"memory": _memory(card.memory_mib, shares)}
    made: Object = {
        "name": name,
        "attributes": _attributes(machine, card, uuid),
        "capacity": memory | (_of_an_instance(card) if card.parent else {}),
    }
    if shares == "disabled":
        return made
    if shares.isdecimal():
        made["capacity"]["shares"] = {"value": shares, "requestPolicy": _policy("1", "1", shares, "1")}
    return made | {"allowMultipleAllocations": True}


def _attributes(machine: Machine, card: MachineGpu, uuid: str) -> Object:
    texts = {
        "type": "mig" if card.parent else "gpu", "uuid": uuid, "productName": card.name.partition(" MIG ")[0],
        "brand": "Nvidia", "architecture": "Hopper", "resource.kubernetes.io/pciBusID": card.pci[4:].lower(),
        **({"parentUUID": card.parent, "profile": _profile(card)} if card.parent else {}),
    }  # fmt: skip
    versions = {
        "cudaComputeCapability": f"{card.cc}.0", "driverVersion": machine.driver,
        "cudaDriverVersion": f"{machine.cuda // 1000}.{machine.cuda % 1000 // 10}.0",
    }  # fmt: skip
    found = {key: {"string": text} for key, text in texts.items()}
    return found | {key: {"version": text} for key, text in versions.items()}


def _memory(mib: int, shares: str) -> Object:
    value = f"{mib}Mi"
    if shares == "disabled":
        return {"value": value}
    least = "1Mi" if shares == "memory" else "0"
    default = value if shares == "memory" else "0"
    return {"value": value, "requestPolicy": _policy(default, least, value, "1Mi")}


def _policy(default: str, least: str, most: str, step: str) -> dict[str, Any]:
    return {"default": default, "validRange": {"min": least, "max": most, "step": step}}


def _of_an_instance(card: MachineGpu) -> Object:
    """Without a policy: the first claim on an instance takes all of these, whatever memory it asks for."""
    numbers = {"multiprocessors": card.sms, "copyEngines": 1, "decoders": 1, f"memorySlice{card.minor}": 1}
    return {name: {"value": str(number)} for name, number in numbers.items()}
