from typing import Any

import pytest

from enforcer.resourceslices.contention import address, claimed_by_plugins, claimed_by_slices
from tests.unit.enforcer.made import GPU, OTHER_GPU
from tests.unit.enforcer.test_loop import card

FIRST = card(GPU, 0)._replace(pci_bus_id="00000000:08:00.0", minor=0)
SECOND = card(OTHER_GPU, 1)._replace(pci_bus_id="00000000:18:00.0", minor=12)
CARDS = (FIRST, SECOND)


@pytest.mark.parametrize(
    ("resource", "ids", "contended"),
    [
        ("nvidia.com/gpu", [GPU], {GPU}),
        ("nvidia.com/gpu", [GPU, OTHER_GPU], {GPU, OTHER_GPU}),
        ("nvidia.com/gpu.shared", [f"{GPU}::0", f"{GPU}::1"], {GPU}),
        ("example.com/vgpu", [f"{OTHER_GPU}-3"], {OTHER_GPU}),
        ("nvidia.com/gpu", ["nvidia12"], {OTHER_GPU}),
        ("nvidia.com/gpu", ["nvidia0/vgpu1"], {GPU}),
        ("nvidia.com/gpu", [], set()),
        ("nvidia.com/mig-1g.5gb", ["MIG-123"], set()),
        ("example.com/nic", ["eth0"], set()),
        ("nvidia.com/gpu", ["whatever"], {GPU, OTHER_GPU}),
        ("example.com/gpu", [f"{GPU}0"], set()),
        ("example.com/gpu", ["nvidia1"], set()),
    ],
    ids=[
        "by uuid", "both", "replicas", "another vendor's name", "by device node", "a slice of a node", "none healthy",
        "MIG is not ours", "no gpu", "unknown id of nvidia's", "a longer uuid", "a shorter node",
    ],
)  # fmt: skip
def test_what_device_plugins_offer_is_contested(resource: str, ids: list[str], contended: set[str]) -> None:
    found = claimed_by_plugins(CARDS, [(resource, ids)])
    assert set(found) == contended
    assert all(said == f"a device plugin offers the GPU as {resource}" for said in found.values())


def published(driver: str, **attributes: str) -> list[Any]:
    device: Any = {"name": "gpu-9", "attributes": {name: {"string": text} for name, text in attributes.items()}}
    device["attributes"] |= {"minor": {"int": 0}}
    return [{"spec": {"driver": driver, "devices": [{"name": "bare"}, device]}}, {"spec": {"driver": driver}}]


@pytest.mark.parametrize(
    ("driver", "attributes", "contended"),
    [
        ("gpu.nvidia.com", {"uuid": GPU}, {GPU}),
        ("gpu.nvidia.com", {"uuid": GPU.upper()}, {GPU}),
        ("other.example.com", {"other.example.com/uuid": OTHER_GPU}, {OTHER_GPU}),
        ("gpu.nvidia.com", {"resource.kubernetes.io/pciBusID": "0000:18:00.0"}, {OTHER_GPU}),
        ("gpu.nvidia.com", {"parentUUID": GPU}, {GPU}),
        ("dra.net", {"resource.kubernetes.io/pciBusID": "0000:18:00.0"}, set()),
        ("gpu.nvidia.com", {"resource.kubernetes.io/pciBusID": "0001:18:00.0"}, set()),
        ("gpu.nvidia.com", {"productName": GPU}, set()),
        ("gpu-share.io", {"uuid": GPU}, set()),
    ],
)
def test_what_other_drivers_publish_is_contested(driver: str, attributes: dict[str, str], contended: set[str]) -> None:
    found = claimed_by_slices(CARDS, published(driver, **attributes))
    assert set(found) == contended
    assert all(said == f"the DRA driver {driver} offers the GPU as device gpu-9" for said in found.values())


def test_addresses_are_alike_however_long_their_domain_is_written() -> None:
    assert {address(text) for text in ("00000000:08:00.0", "0000:08:00.0", "08:00.0")} == {"0:08:00.0"}
    assert address("00000001:0A:00.0") == "1:0a:00.0"
