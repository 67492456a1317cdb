"""``gpu-share check`` on API servers that lack what shares are made of: a gate switched off, or an older version.

The older versions are played by the servers themselves, which behave like one when told to (``--emulated-version``):
gates, their defaults and the versions of the API are those of then.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.integration.controlplane.conftest import BUILD
from tests.integration.controlplane.release import check
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.need import require_binaries

pytestmark = pytest.mark.controlplane
CAPACITY: Final = "consumable capacity (DRAConsumableCapacity)"
TAINTS: Final = "device taints (DRADeviceTaints)"
Check = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture(scope="module", name="ask")
def _ask() -> Iterator[Check]:
    """Start the API server with such flags more, and ask as an administrator."""
    require_binaries()
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-gates")
    (usual,) = (process.command for process in plane.processes if process.name == "kube-apiserver")

    def ask(*flags: str) -> dict[str, tuple[str, str]]:
        gone = plane.drop("kube-apiserver", patience=0)
        plane.again(replace(each, command=[*usual, *flags]) for each in gone)
        return check(plane.kubeconfig(), "--cluster")[1]

    yield ask
    plane.stop()


def test_with_the_gates_of_a_supported_version_both_are_there(ask: Check) -> None:
    found = ask()
    assert (found["Kubernetes"][0], found[CAPACITY], found[TAINTS]) == ("ok", ("ok", ""), ("ok", ""))


def test_without_consumable_capacity_the_gate_is_named_and_what_comes_of_it(ask: Check) -> None:
    found = ask("--feature-gates=DRAConsumableCapacity=false")
    level, detail = found[CAPACITY]
    assert (level, found["Kubernetes"][0], found[TAINTS][0]) == ("wrong", "ok", "ok")
    assert detail.startswith(
        "the API server does not store these fields: a claim's capacity, allowMultipleAllocations, requestPolicy; "
    )


def test_without_device_taints_that_gate_is_named(ask: Check) -> None:
    found = ask("--feature-gates=DRADeviceTaints=false,DRADeviceTaintRules=false")
    assert (found[TAINTS][0], found[CAPACITY][0]) == ("wrong", "ok")


@pytest.mark.parametrize("version", ["1.35", "1.34"])
def test_of_older_versions_both_gates_are_named(ask: Check, version: str) -> None:
    found = ask(f"--emulated-version={version}")
    assert (found[CAPACITY][0], found[TAINTS][0]) == ("wrong", "wrong"), found
    level, detail = found["Kubernetes"]
    assert (level, detail.startswith(f"v{version} (emulated by v1.")) == ("wrong", True), detail


def test_with_its_gates_switched_on_an_older_version_has_them(ask: Check) -> None:
    found = ask("--emulated-version=1.35", "--feature-gates=DRAConsumableCapacity=true,DRADeviceTaints=true")
    assert (found[CAPACITY][0], found[TAINTS][0]) == ("ok", "ok")
