"""The checker finds what it is there to find."""

from typing import Any

import pytest

from tests.integration.controlplane.checker import audit, quantity
from tests.integration.controlplane.objects import resource_slice


def claim(name: str, *results: tuple[str, str, str], asked: str = "4Gi") -> dict[str, Any]:
    """A claim with one result (request, device, consumed memory) per tuple."""
    requests = [{"name": r[0], "exactly": {"capacity": {"requests": {"memory": asked}}}} for r in results]
    allocated = [
        {"request": r[0], "driver": "gpu-share.io", "pool": "n", "device": r[1], "consumedCapacity": {"memory": r[2]}}
        for r in results
    ]
    return {
        "metadata": {"namespace": "a", "name": name},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": allocated}}},
    }


def problems(*claims: dict[str, Any]) -> list[str]:
    return audit([resource_slice("n", [16384, 16384])], claims, "gpu-share.io").problems


def test_what_fits_is_fine() -> None:
    full = [claim(f"c{i}", ("main", "gpu-0", "4Gi")) for i in range(4)]
    assert problems(*full, claim("waiting")) == []


def test_one_mebibyte_too_much_is_found() -> None:
    full = [claim(f"c{i}", ("main", "gpu-0", "4Gi")) for i in range(4)]
    assert problems(*full, claim("more", ("main", "gpu-0", "1Mi"), asked="1Mi")) == [
        "gpu-share.io/n/gpu-0: 1.71809e+10 memory promised of 1.71799e+10"
    ]


def test_less_than_was_asked_for_is_found() -> None:
    assert problems(claim("c", ("main", "gpu-0", "3Gi"))) == [
        "a/c request main: asked for 4.29497e+09 memory, got 3.22123e+09"
    ]


def test_a_device_nobody_offers_is_found() -> None:
    assert problems(claim("c", ("main", "gpu-7", "4Gi"))) == [
        "a/c request main: gpu-share.io/n/gpu-7 is in no ResourceSlice"
    ]


def test_an_old_generation_offers_nothing() -> None:
    old, new = resource_slice("n", [16384, 16384]), resource_slice("n", [16384])
    new["spec"]["pool"]["generation"] = 2
    found = audit([old, new], [claim("c", ("main", "gpu-1", "4Gi"))], "gpu-share.io").problems
    assert found == ["a/c request main: gpu-share.io/n/gpu-1 is in no ResourceSlice"]


def test_containers_that_were_to_be_on_one_gpu_and_are_not_are_found() -> None:
    apart = claim("c", ("one", "gpu-0", "4Gi"), ("two", "gpu-1", "4Gi"))
    apart["spec"]["devices"]["constraints"] = [{"requests": ["one", "two"], "matchAttribute": "gpu-share.io/uuid"}]
    assert problems(apart) == ["c: ['one', 'two'] were to be on one GPU, got [('n', 'gpu-0'), ('n', 'gpu-1')]"]


@pytest.mark.parametrize(
    ("text", "value"), [("512Mi", 2**29), ("1Gi", 2**30), ("100", 100), ("1k", 1000), ("500m", 0.5)]
)
def test_quantities_are_exact(text: str, value: float) -> None:
    assert quantity(text) == value
