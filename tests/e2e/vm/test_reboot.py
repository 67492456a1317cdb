"""The node reboots with shares running, in order and by its reset button, also with other hardware afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pytest

from gpushare import contract
from gpushare.kube_client import RESOURCE_V1, path
from tests.e2e import pinned, pods
from tests.e2e.pods import Object
from tests.e2e.site import STATE, TEAM, Site, ready
from tests.support.extent import figure, trials
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(4 * 3600)]
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
REBOOTS: Final = trials(1, 25)
"""Of each kind."""
CUTS: Final = trials(1, 5)
AGAIN: Final = 300.0
"""Seconds from power-on until the node's pods run again: without KVM everything takes ten times as long."""
SIZES: Final = (256, 320)
"""MiB that the tenant on each GPU has: a row of another size is another's memory."""
UPGRADE: Final = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --set "
MACHINE: Final = f"{STATE}/simulator/state/machine"
GPU_LINE: Final = "gpu\t"
DRIVER: Final = "570.86.15"
NEWER: Final = "580.65.06"


@pytest.fixture(scope="module", name="gpus")
def _gpus(site: Site, vm: VmNode) -> list[str]:
    return listed(vm)


@pytest.fixture(scope="module", name="namespace")
def _namespace(site: Site, gpus: list[str]) -> str:
    """One tenant on each GPU, which stay through all reboots."""
    site.remove(TEAM, "share")  # the README's tenant would take part in each start
    name = site.namespace("rebooted", **{contract.GRACE_PERIOD: "2s"})
    for number, gpu in enumerate(gpus):
        pinned.tenant(site, name, f"steady-{number}", gpu, "hold", f"{SIZES[number]}Mi")
    return name


def listed(vm: VmNode) -> list[str]:
    """UUIDs of the simulated GPUs in NVML's order."""
    return [uuid_in(line) for line in vm.run("cat", MACHINE).splitlines() if line.startswith(GPU_LINE)]


def uuid_in(line: str) -> str:
    """UUID in a line of the simulated machine that describes a GPU."""
    return line.split("uuid=")[1].split(maxsplit=1)[0]


def put_in_order(vm: VmNode, gpus: list[str]) -> None:
    """Have NVML list the GPUs in this order from the simulator's next start."""
    lines = vm.run("cat", MACHINE).splitlines()
    others = [line for line in lines if not line.startswith(GPU_LINE)]
    ordered = sorted((line for line in lines if line.startswith(GPU_LINE)), key=lambda line: gpus.index(uuid_in(line)))
    vm.write(MACHINE, "".join(f"{line}\n" for line in [*others, *ordered]))
    vm.run("sync")


def without_power(site: Site, vm: VmNode, values: str) -> None:
    """Take the node's power, and give it other hardware before it starts again."""
    vm.cut()
    site.shell(UPGRADE + values)
    vm.power_on()


def uuids(site: Site) -> dict[str, str]:
    """UUID by device name, as the node's slices have them."""
    found = {name: each["attributes"].get("uuid") for name, each in site.devices().items()}
    return {name: str(uuid["string"]) for name, uuid in found.items() if uuid}


def allocated(site: Site, namespace: str) -> dict[str, list[str]]:
    """GPUs by claim, as the scheduler chose them."""
    claims = site.cluster.list(path(RESOURCE_V1, "resourceclaims", namespace=namespace))[0]
    return {
        claim["metadata"]["name"]: [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]
        for claim in claims
        if "allocation" in claim["status"]
    }


def rows(site: Site, namespace: str, name: str) -> set[tuple[str, int]]:
    """GPU and MiB of a pod's memory, as the enforcer attributes it."""
    mine = [row for row in site.status()["containers"] if (row["namespace"], row["pod"]) == (namespace, name)]
    return {(row["gpu"], row["usedMib"]) for row in mine if row["usedMib"]}


def started(pods_: list[Object]) -> set[str]:
    """Containers that have been started, by the runtime's ids: a pod counts as ready until its node is up again."""
    statuses = [each for pod in pods_ for each in pod["status"].get("containerStatuses") or []]
    return {each["containerID"] for each in statuses if each.get("containerID")}


@contextmanager
def coming_back(site: Site, vm: VmNode, namespace: str, gpus: Mapping[int, str]) -> Iterator[None]:
    """Wait until the tenants of these GPUs run again, each with its own memory on its own GPU and no other."""
    before, boot = started([*site.enforcers(), *site.pods(namespace)]), vm.boot_id()
    yield

    def again(pod: Object) -> bool:
        return ready(pod) and not started([pod]) & before

    vm.wait_ready()
    assert vm.boot_id() != boot
    site.until("the enforcer is ready", lambda: [again(each) for each in site.enforcers()] == [True], AGAIN)
    for number, gpu in gpus.items():
        came_back(site, namespace, f"steady-{number}", gpu, again)


def came_back(site: Site, namespace: str, name: str, gpu: str, again: Callable[[Object], bool]) -> None:
    site.until(f"{name} runs again", lambda: again(site.bed.pod(namespace, name)), AGAIN)
    assert site.environ(namespace, name)["CUDA_VISIBLE_DEVICES"] == gpu
    size = SIZES[int(name[-1])]
    site.until(f"{name} has its memory", lambda: rows(site, namespace, name) == {(gpu, size)}, AGAIN)


def nothing_terminates(site: Site, namespace: str) -> None:
    site.until(
        "nothing is left in Terminating",
        lambda: not [each for each in site.pods(namespace) if "deletionTimestamp" in each["metadata"]],
        AGAIN,
    )


@pytest.mark.parametrize("how", [VmNode.reboot, VmNode.reset], ids=lambda how: how.__name__)
def test_shares_come_back_on_the_gpu_of_their_claim(
    site: Site, vm: VmNode, namespace: str, gpus: list[str], how: Callable[[VmNode], None]
) -> None:
    """Each time NVML lists the GPUs the other way round."""
    site.until("both GPUs are published", lambda: len(uuids(site)) == len(gpus))
    devices = uuids(site)
    for number in range(REBOOTS):
        name, order = f"leaving-{how.__name__}-{number}", listed(vm)[::-1]
        put_in_order(vm, order)
        site.run(namespace, pods.pod(name, "hold", "256Mi"))
        before = allocated(site, namespace)
        with coming_back(site, vm, namespace, dict(enumerate(gpus))):
            site.remove(namespace, name)
            how(vm)
        assert listed(vm) == order
        nothing_terminates(site, namespace)
        assert allocated(site, namespace).items() <= before.items()
        site.until("the devices are the same", lambda: uuids(site) == devices)
        assert site.leftovers() == []
    figure("40", f"reboots ({how.__name__}) after which a pod was stuck or had another GPU", f"0 in {REBOOTS}")


def test_no_record_is_lost_when_power_fails_during_a_kill_and_the_driver_changes(
    site: Site, vm: VmNode, namespace: str, gpus: list[str]
) -> None:
    """The first time it changes, which replaces the enforcer's pod; then the same pod starts again."""
    for number in range(CUTS):
        name = f"greedy-{number}"
        site.run(namespace, pods.pod(name, *GREEDY))
        site.record(namespace, name, "INTENT")
        acknowledged = site.records(namespace, name)
        with coming_back(site, vm, namespace, dict(enumerate(gpus))):
            without_power(site, vm, f"simulate.driver={NEWER}")
        assert f"driver={NEWER}" in vm.run("cat", MACHINE)
        kept = site.records(namespace, name)
        assert kept[: len(acknowledged)] == acknowledged, "what was read from the log is still there"
        assert "ok:" in site.in_enforcer("gpu-share audit verify")
        site.delete(namespace, name, AGAIN)
    figure("40", "power cuts during a kill after which a record was lost or the chain did not verify", f"0 in {CUTS}")


def test_a_share_whose_gpu_is_missing_is_refused_with_the_reason(
    site: Site, vm: VmNode, namespace: str, gpus: list[str]
) -> None:
    """Its pod waits and names the device. It can be deleted, or comes back once the GPU has."""
    put_in_order(vm, gpus)  # the one that stays is the first
    pinned.tenant(site, namespace, "leaves", gpus[1], "hold", "256Mi")
    missing = next(name for name, uuid in uuids(site).items() if uuid == gpus[1])
    with coming_back(site, vm, namespace, {0: gpus[0]}):
        without_power(site, vm, f"simulate.driver={DRIVER},simulate.gpus=1")
    for name in ("steady-1", "leaves"):
        site.until(f"{name} is refused", lambda name=name: refused(site, namespace, name, missing), AGAIN)  # type: ignore[misc] # bound now
        assert not rows(site, namespace, name)
    site.delete(namespace, "leaves", AGAIN)
    with coming_back(site, vm, namespace, dict(enumerate(gpus))):
        without_power(site, vm, "simulate.gpus=2")
    nothing_terminates(site, namespace)


def refused(site: Site, namespace: str, name: str, device: str) -> bool:
    """Whether an Event of the pod says that the node does not have its device."""
    return any(
        f"{device} of pool" in note and "has only the devices" in note for note in site.events(namespace, name).values()
    )
