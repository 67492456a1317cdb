"""Who else offers a GPU. One that two parties give away is given away twice, so we leave it alone. Pure.

Others show themselves in two places: the kubelet lists what device plugins offer on its node, and every DRA driver
publishes ResourceSlices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from enforcer.nvml.types import Gpu
from gpushare.contract import DRIVER

UUID_NAMES: Final = frozenset({"uuid", "gpuuuid", "parentuuid"})
PCI_NAMES: Final = frozenset({"pcibusid", "pciebusid"})
WHOLE_GPUS: Final = "gpu.nvidia.com"
"""The driver whose devices are GPUs: a PCI address of any other's may be a network card's."""
VENDOR: Final = "nvidia.com/"
MIG: Final = "MIG-"
NODE: Final = "nvidia"
"""Some plugins name a GPU by its device node: ``nvidia0``, ``nvidia0/vgpu1``."""
UNKNOWN: Final = "cannot be read yet"
"""The reason while a source has not answered yet: any GPU may be contended."""

Allocatable = Sequence[tuple[str, Sequence[str]]]
"""Resource names of device plugins, each with the ids of its devices."""


def claimed_by_plugins(gpus: Iterable[Gpu], allocatable: Allocatable) -> dict[str, str]:
    """Name, by UUID, the GPUs that device plugins offer, each with a sentence that says who does.

    An id of NVIDIA's resources that no GPU is known by stands for any of them: which GPU it means is unknown.
    """
    cards = tuple(gpus)
    found: dict[str, str] = {}
    for resource, ids in allocatable:
        why = f"a device plugin offers the GPU as {resource}"
        for gpu in _meant(cards, resource, ids):
            found.setdefault(gpu.uuid, why)
    return found


def claimed_by_slices(gpus: Iterable[Gpu], slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Name, by UUID, the GPUs that other DRA drivers' ResourceSlices offer, each with a sentence that says who does."""
    cards = tuple(gpus)
    found: dict[str, str] = {}
    for spec in (each.get("spec") or {} for each in slices):
        driver = str(spec.get("driver", ""))
        if driver == DRIVER:
            continue
        for device in spec.get("devices") or []:
            names = frozenset(device_names(driver, device))
            for gpu in (card for card in cards if names & {card.uuid.lower(), address(card.pci_bus_id)}):
                found.setdefault(gpu.uuid, f"the DRA driver {driver} offers the GPU as device {device.get('name')}")
    return found


def address(pci_bus_id: str) -> str:
    """Write a PCI bus id alike, however long its domain is: ``0:08:00.0`` for ``00000000:08:00.0``."""
    domain, _, rest = pci_bus_id.lower().rpartition(":")[0].rpartition(":")
    tail = f"{rest}:{pci_bus_id.lower().rpartition(':')[2]}"
    return f"{domain.lstrip('0') or '0'}:{tail}"


def _meant(gpus: Sequence[Gpu], resource: str, ids: Sequence[str]) -> Iterator[Gpu]:
    for identifier in ids:
        named = [gpu for gpu in gpus if _names_gpu(identifier, gpu)]
        yield from named
        if not named and resource.startswith(VENDOR) and not identifier.startswith(MIG):
            yield from gpus


def _names_gpu(identifier: str, gpu: Gpu) -> bool:
    """Whether an id is this GPU's: its UUID or device node, perhaps with a replica's number behind it."""
    for name in (gpu.uuid, f"{NODE}{gpu.minor}"):
        rest = identifier.removeprefix(name)
        if rest != identifier and not rest[:1].isalnum():
            return True
    return False


def device_names(driver: str, device: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a device of a ResourceSlice is known by, in lower case."""
    for qualified, value in (device.get("attributes") or {}).items():
        name, text = qualified.rpartition("/")[2].lower(), value.get("string")
        if isinstance(text, str) and name in UUID_NAMES:
            yield text.lower()
        if isinstance(text, str) and name in PCI_NAMES and driver == WHOLE_GPUS:
            yield address(text)
