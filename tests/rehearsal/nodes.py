"""What steps do to the node: cordon, drain, driver upgrade as the GPU Operator does it, another sharing mode."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final

from gpushare.kube_client import CORE_V1, path
from tests.e2e.site import Site
from tests.fakes.gpu.node import DRIVER
from tests.rehearsal.releases import CHART, driver, ready
from tests.rehearsal.rules import NOTICE
from tests.rehearsal.state import LABEL
from tests.rehearsal.tenants import renew

NEWER: Final = "615.71.09"
MODE: Final = "gpu-share.io/mode"
UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
CLIENT: Final = "nvidia.com/gpu.deploy.client"
PAUSED: Final = "paused-for-driver-upgrade"
BEFORE: Final = ("upgrade-required", "cordon-required", "wait-for-jobs-required")
AFTER: Final = ("validation-required", "uncordon-required")
DRAIN: Final = f"--ignore-daemonsets --delete-emptydir-data --force --pod-selector {LABEL} --timeout=90s"
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
    """Drain the node of its tenants half a minute after it was cordoned, and have others come.

    The product's own pods stay: on one node its PodDisruptionBudget would keep a drain waiting for ever.
    """
    with cordon(site):
        time.sleep(NOTICED)
        site.shell(f"kubectl drain {site.node.name} {DRAIN}")
    renew(site, namespace, rng)


def driver_upgraded(site: Site, namespace: str, rng: Random) -> None:
    """Upgrade the driver with the operator's labels, there (R615) or back (R580), and have other tenants come.

    The simulated driver becomes another one while nothing has it open. It keeps memory limits by itself from R615 on.
    """
    other = DRIVER if driver(site) == NEWER else NEWER
    with cordon(site), labelled(site, UPGRADE, CLIENT):
        for state in BEFORE:
            label(site, {UPGRADE: state, CLIENT: "true"})
        time.sleep(NOTICED)
        label(site, {UPGRADE: "pod-deletion-required"})
        label(site, {UPGRADE: "pod-restart-required", CLIENT: PAUSED})
        site.until("NVML is closed", lambda: closed(site), 90, 1.0)
        site.shell(f"{CHART} --set simulate.driver={other}")
        ready(site)
        label(site, {CLIENT: "true"})
        for state in AFTER:
            label(site, {UPGRADE: state})
    renew(site, namespace, rng)


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
