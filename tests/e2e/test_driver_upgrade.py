"""Driver upgrades as the GPU Operator does them, again and again under load: pods leave, nothing holds the driver.

The labels are set in the operator's order. The pods are those of a Deployment, so that others come for those evicted.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from gpushare.kube_client import APPS_V1, CORE_V1, EVENTS_V1, path
from gpushare.reasons import Reason
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import Site, ready, restarts
from tests.support.extent import trials
from tests.testbed.cluster.node import Node

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(3600)]
TIMES: Final = trials(3, 20)
REPLICAS: Final = 6
STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
CLIENT: Final = "nvidia.com/gpu.deploy.client"
PAUSED: Final = "paused-for-driver-upgrade"
BEFORE: Final = ("upgrade-required", "cordon-required", "wait-for-jobs-required", "pod-deletion-required")
AFTER: Final = ("validation-required", "uncordon-required", "upgrade-done")


@pytest.fixture(name="namespace", scope="module")
def _namespace(site: Site) -> Iterator[str]:
    name = site.namespace("upgraded")
    yield name
    label(site, {STATE: None, CLIENT: None})


def test_drivers_are_upgraded_under_load_without_a_manual_step(site: Site, namespace: str) -> None:
    offered, enforcer = gpus(site), site.enforcer()["metadata"]["uid"]
    started = restarts(site.enforcer())
    site.apply(namespace, APPS_V1, "deployments", deployment(namespace))
    took = []
    for _ in range(TIMES):
        site.until("the load runs", lambda: sum(map(ready, site.pods(namespace))) == REPLICAS, 180, 1.0)
        before = running(site, namespace)
        began = time.monotonic()
        for state in BEFORE:
            label(site, {STATE: state, CLIENT: "true"})
        label(site, {STATE: "pod-restart-required", CLIENT: PAUSED})
        site.until("nothing is offered", lambda: not gpus(site), 60)
        until_gone(site, namespace, before)
        site.until("nothing of ours holds the driver", lambda: holders(site) == [], 60, 1.0)
        took.append(time.monotonic() - began)
        label(site, {CLIENT: "true"})
        assert not gpus(site), "the operator validates the driver first"
        for state in AFTER:
            label(site, {STATE: state})
        site.until("the same GPUs are offered again", lambda: offered == gpus(site), 90)
    site.until("the load runs again", lambda: sum(map(ready, site.pods(namespace))) == REPLICAS, 180, 1.0)
    print(f"\n{TIMES} upgrades; until the driver was free: {', '.join(f'{each:.0f}' for each in took)} s")
    assert site.enforcer()["metadata"]["uid"] == enforcer
    assert restarts(site.enforcer()) == started
    assert reasons(site, namespace) >= {str(Reason.DRIVER_UPGRADE)}
    site.until("no problem is left", lambda: site.status()["problems"] == [], 60)


def label(site: Site, labels: dict[str, str | None]) -> None:
    site.cluster.patch(path(CORE_V1, "nodes", site.node.name), {"metadata": {"labels": labels}})


def deployment(namespace: str) -> Object:
    template = pods.pod("load", "hold", "256Mi", memory="512Mi")
    metadata = template["metadata"] | {"labels": template["metadata"].get("labels", {}) | {"app": "load"}}
    metadata.pop("name")
    spec = template["spec"] | {"restartPolicy": "Always", "terminationGracePeriodSeconds": 5}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "load", "namespace": namespace},
        "spec": {
            "replicas": REPLICAS, "selector": {"matchLabels": {"app": "load"}},
            "template": {"metadata": metadata, "spec": spec},
        },
    }  # fmt: skip


def gpus(site: Site) -> set[str]:
    """Names of the GPUs that are offered; the device that gives pods their status directory is no GPU."""
    return {name for name, device in site.devices().items() if "uuid" in device.get("attributes", {})}


def until_gone(site: Site, namespace: str, uids: set[str]) -> None:
    site.until("the pods of before are gone", lambda: not uids & running(site, namespace), 180, 1.0)


def running(site: Site, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in site.pods(namespace)}


def reasons(site: Site, namespace: str) -> set[str]:
    return {event["reason"] for event in site.cluster.list(path(EVENTS_V1, "events", namespace=namespace))[0]}


def holders(site: Site) -> list[str]:
    """Processes of the node that have NVIDIA's management library or a device of it open, and MPS daemons.

    Nodes share the machine's processes, so the node's control group says which are its own.
    """
    assert isinstance(site.node, Node), "a virtual machine has processes of its own"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if site.node.cgroup not in (process / "cgroup").read_text():
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            if b"nvidia-cuda-mps" in command or b"libnvidia-ml" in (process / "maps").read_bytes() or devices(process):
                found.append(f"{process.name} {command.decode(errors='replace')}")
    return found


def devices(process: Path) -> list[str]:
    """Device nodes of NVIDIA that a process has open."""
    links = []
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith("/dev/nvidia")]
