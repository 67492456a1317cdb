"""What steps do to the node: cordon, drain, driver upgrade as the GPU Operator does it, another sharing mode."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final

from gpushare.kube_client import CORE_V1, path
from tests.e2e.absences import ENFORCERS
from tests.e2e.site import NAME, SYSTEM, Site
from tests.fakes.gpu.node import DRIVER
from tests.rehearsal.acts import ENABLED, ENFORCER, MPS
from tests.rehearsal.releases import CHART, driver, ready
from tests.rehearsal.rules import NOTICE
from tests.rehearsal.state import LABEL
from tests.rehearsal.tenants import LATE, pinned, renew
from tests.rehearsal.where import each_node, real
from tests.testbed.cluster.binaries import Group, wanted

NEWER: Final = "615.71.09"
MODE: Final = "gpu-share.io/mode"
UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
CLIENT: Final = "nvidia.com/gpu.deploy.client"
PAUSED: Final = "paused-for-driver-upgrade"
BEFORE: Final = ("upgrade-required", "cordon-required", "wait-for-jobs-required")
AFTER: Final = ("validation-required", "uncordon-required")
DRAIN: Final = "--ignore-daemonsets --delete-emptydir-data --force --timeout=150s"
NOTICED: Final = NOTICE + 3.0
"""Seconds between the announcement and what it announces; some more than needed, because it is seen once a second."""


@contextmanager
def cordon(site: Site) -> Iterator[None]:
    """Keep new pods off the node for a while."""
    site.shell(f"kubectl cordon {site.node.name}")
    try:
        yield
    finally:
        site.shell(f"kubectl uncordon {site.node.name}")


@contextmanager
def labelled(site: Site, *names: str) -> Iterator[None]:
    """Take labels of the node away in the end, whatever they were set to."""
    try:
        yield
    finally:
        label(site, dict.fromkeys(names))


def cordoned(site: Site, _: str, rng: Random) -> None:
    """Cordon the node for some seconds."""
    with cordon(site):
        time.sleep(rng.uniform(3, 15))


def drained(site: Site, namespace: str, rng: Random) -> None:
    """Drain the node half a minute after it was cordoned, and have other tenants come."""
    with cordon(site):
        drain(site)
    renew(site, namespace, rng)


def taken_out_and_in(site: Site, namespace: str, rng: Random) -> None:
    """Drain the node, have gpu-share leave it and come back, as for a driver upgrade by hand."""
    with cordon(site):
        drain(site)
        label(site, {ENABLED: None})
        try:
            site.until("gpu-share has left the node", lambda: not ours(site), 90, 1.0)
            time.sleep(rng.uniform(0, 10))
        finally:
            label(site, {ENABLED: "true"})
            ready(site)
    renew(site, namespace, rng)


def older_kubelet(site: Site, namespace: str, rng: Random) -> None:
    """Drain the node, run it with the kubelet of the oldest Kubernetes while shares come and go, and go back."""
    try:
        kubelet(site, Group.OLDER_NODE)
        job = pinned(f"older-{rng.randrange(10**6)}", site.node.name, rng)
        name = site.create(namespace, job)["metadata"]["name"]
        site.until("a share runs to its end there", lambda: ended(site, namespace, name), LATE)
        time.sleep(rng.uniform(0, 10))
    finally:
        kubelet(site, Group.NODE)
    renew(site, namespace, rng)


def older_containerd(site: Site, namespace: str, rng: Random) -> None:
    """Drain the node, run it with an older containerd, and upgrade that while a share runs."""
    with cordon(site):
        drain(site)
        containerd(site, Group.OLDER_NODE)
    try:
        job = pinned(f"older-{rng.randrange(10**6)}", site.node.name, rng)
        name = site.create(namespace, job)["metadata"]["name"]
        site.until("a share has started there", lambda: started(site, namespace, name), LATE)
    finally:
        containerd(site, Group.NODE)
    site.until("it runs to its end", lambda: ended(site, namespace, name), LATE)
    renew(site, namespace, rng)


def containerd(site: Site, group: Group) -> None:
    """Give the node the containerd of a group."""
    real(site).restart_containerd(group)
    await_version(site, "containerRuntimeVersion", f"containerd://{version(group, 'containerd')}")


def kubelet(site: Site, group: Group) -> None:
    """Drain the node and give it the kubelet of another group."""
    with cordon(site):
        drain(site)
        real(site).stop_kubelet()
        real(site).start_kubelet(group=group)
        await_version(site, "kubeletVersion", f"v{version(group, 'kubelet')}")


def version(group: Group, name: str) -> str:
    """Return the version of a program of a group."""
    return next(each.version for each in wanted(group) if each.name == name)


def await_version(site: Site, key: str, version: str) -> None:
    """Wait until the Node says that of its software, and is Ready."""

    def there() -> bool:
        node = site.cluster.get(path(CORE_V1, "nodes", site.node.name))
        return bool(node["status"]["nodeInfo"][key] == version) and site.node.ready()

    site.until(f"{key} is {version}", there, 90)


def started(site: Site, namespace: str, name: str) -> bool:
    """Whether a pod runs, or has run to its end."""
    found = site.find_pod(namespace, name)
    return found is not None and found["status"].get("phase") in {"Running", "Succeeded"}


def ended(site: Site, namespace: str, name: str) -> bool:
    """Whether a Job's pod ended well."""
    found = site.find_pod(namespace, name)
    return found is not None and found["status"].get("phase") == "Succeeded"


def drain(site: Site) -> None:
    """Drain the node half a minute from now.

    On the only node the product's own pods stay: their PodDisruptionBudget would keep the drain waiting for ever.
    """
    time.sleep(NOTICED)
    alone = len(list(each_node(site))) == 1
    site.shell(f"kubectl drain {site.node.name} {DRAIN} {f'--pod-selector {LABEL}' if alone else ''}")


def ours(site: Site) -> str:
    """Name the enforcer and the MPS pod of the node."""
    chosen = f"-l '{NAME} in ({ENFORCER}, {MPS})' --field-selector spec.nodeName={site.node.name}"
    return site.shell(f"kubectl -n {SYSTEM} get pods {chosen} -o name")


def driver_upgraded(site: Site, namespace: str, rng: Random) -> None:
    """Upgrade the driver of one node after the other, there (R615) or back (R580), and have other tenants come.

    It keeps memory limits by itself from R615 on.
    """
    other = DRIVER if driver(site) == NEWER else NEWER
    (simulator,) = site.cluster.get(ENFORCERS)["spec"]["template"]["spec"]["initContainers"]
    arguments = [f"--driver={other}" if each.startswith("--driver=") else each for each in simulator["args"]]
    inits = [simulator | {"args": arguments}]
    alone = {"type": "OnDelete", "rollingUpdate": None}
    site.cluster.patch(ENFORCERS, {"spec": {"updateStrategy": alone, "template": {"spec": {"initContainers": inits}}}})
    for each in each_node(site):
        one_driver_upgraded(each)
    site.shell(f"{CHART} --set simulate.driver={other} --force-conflicts")
    ready(site)
    renew(site, namespace, rng)


def one_driver_upgraded(site: Site) -> None:
    """Upgrade the node's driver with the operator's labels: it becomes another one while nothing has it open."""
    with cordon(site), labelled(site, UPGRADE, CLIENT):
        for state in BEFORE:
            label(site, {UPGRADE: state, CLIENT: "true"})
        time.sleep(NOTICED)
        label(site, {UPGRADE: "pod-deletion-required"})
        label(site, {UPGRADE: "pod-restart-required", CLIENT: PAUSED})
        site.until("NVML is closed", lambda: closed(site), 150, 1.0)
        site.shell(f"kubectl -n {SYSTEM} delete pod {site.enforcer()['metadata']['name']}")
        site.until("the enforcer is ready", site.enforcer_ready, 90)
        label(site, {CLIENT: "true"})
        for state in AFTER:
            label(site, {UPGRADE: state})


def mode_changed(site: Site, _: str, rng: Random) -> None:
    """Have GPUs without tenants shared by turns for some seconds."""
    with labelled(site, MODE):
        label(site, {MODE: "time-slicing"})
        time.sleep(rng.uniform(8, 20))


def closed(site: Site) -> bool:
    """Whether the enforcer says that it has let go of the driver."""
    return any("NVML is closed" in str(each) for each in site.status()["problems"])


def label(site: Site, labels: Mapping[str, str | None]) -> None:
    """Set labels of the node."""
    merge = "application/merge-patch+json"
    site.cluster.patch(path(CORE_V1, "nodes", site.node.name), {"metadata": {"labels": dict(labels)}}, merge)
