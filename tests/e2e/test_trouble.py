"""GPUs that fail, processes that will not die, and others who offer the same GPUs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.reasons import Reason
from tests.e2e import pods
from tests.e2e.site import TEAM, Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("trouble")


def taints(site: Site) -> dict[str, list[str]]:
    """Device → its taints, as ``reason:effect``."""
    return {
        name: [f"{taint.get('value', '')}:{taint['effect']}" for taint in device.get("taints") or []]
        for name, device in site.devices().items()
    }


def health(site: Site, namespace: str, name: str) -> tuple[str, str]:
    """Health of the GPU in the status of a pod's main container, and the reason beside it."""
    statuses = site.bed.pod(namespace, name)["status"]["containerStatuses"]
    (main,) = (each for each in statuses if each["name"] == pods.MAIN)
    (claim,) = main.get("allocatedResourcesStatus") or [{"resources": [{}]}]
    (device,) = claim["resources"]
    return device.get("health", ""), device.get("message", "")


def test_new_shares_avoid_a_gpu_that_fails_and_its_tenants_stay(site: Site, namespace: str) -> None:
    first = site.run(namespace, pods.pod("first", "hold", "1Gi"))
    failing = site.bed.gpus_of(first)[pods.MAIN]
    uuid = site.uuid_of(first)
    site.simulator("fault", uuid, "lost")
    try:
        site.until("it is tainted", lambda: taints(site)[failing])
        site.until("its tenant's status says why", lambda: health(site, namespace, "first")[0] == "Unhealthy")
        assert "GpuLost" in health(site, namespace, "first")[1]
        site.until("its Event says why", lambda: "GpuLost" in site.events(namespace, "first"))
        second = site.run(namespace, pods.pod("second", "hold", "1Gi"))
        assert site.bed.gpus_of(second)[pods.MAIN] != failing
        assert set(restarts(site.running(namespace, "first")).values()) == {0}, "no eviction by default"
    finally:
        site.simulator("fault", uuid, "well")
    site.until("the taint is taken off", lambda: not taints(site)[failing])
    site.until("its tenant's status says so", lambda: health(site, namespace, "first") == ("Healthy", ""))
    for name in ("first", "second"):
        site.delete(namespace, name)


def test_memory_of_a_process_that_outlives_its_forced_deletion_is_not_promised_twice(
    site: Site, namespace: str
) -> None:
    """Both GPUs are full; one tenant is stuck in the driver, deaf to SIGTERM and MPS alike, and deleted by force."""
    site.until("earlier tenants are gone", lambda: alone(site, namespace), 120)
    stuck = site.uuid_of(site.run(namespace, pods.pod("full-0", "hold", "13Gi", "--ignore-term", memory="14Gi")))
    site.simulator("fault", stuck, "no-terminate")
    site.run(namespace, pods.pod("full-1", "hold", "9Gi", memory="10Gi"))
    site.create(namespace, pods.pod("next", "hold", "13Gi", memory="14Gi"))
    with site.stuck(namespace, "full-0"):
        site.remove(namespace, "full-0", grace=0)
        site.until("the kubelet says why it waits", lambda: has_prepare_event(site, namespace, "next"), 90)
        assert pods.MAIN not in started(site, namespace, "next")
    site.simulator("fault", stuck, "well")
    site.running(namespace, "next", 120)
    for name in ("next", "full-1"):
        site.delete(namespace, name)


def test_by_policy_the_tenants_of_a_gpu_that_fails_are_evicted_with_a_reason(site: Site, namespace: str) -> None:
    with health_taint(site, "NoExecute"):
        # As large as that: beside the pod of the README, which stays, there is no room for it.
        evicted = site.run(namespace, pods.pod("evicted", "hold", "1Gi", memory="12Gi"))
        failing = site.bed.gpus_of(evicted)[pods.MAIN]
        uuid = site.uuid_of(evicted)
        site.simulator("fault", uuid, "lost")
        try:
            site.until("it is evicted", lambda: site.find_pod(namespace, "evicted") is None, 90)
            events = site.events(namespace, "evicted")
            assert "DeviceTaintManagerEviction" in events, events
        finally:
            site.simulator("fault", uuid, "well")
        site.until("the taint is taken off", lambda: not taints(site)[failing])


@contextmanager
def health_taint(site: Site, effect: str) -> Iterator[None]:
    """Have the chart set another effect for a while."""
    upgrade = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --wait --set"
    site.shell(f"{upgrade} enforcer.healthTaint={effect}")
    try:
        yield
    finally:
        site.shell(f"{upgrade} enforcer.healthTaint=NoSchedule")


def alone(site: Site, namespace: str) -> bool:
    """Whether no pod but this namespace's and the README's holds a share."""
    return {row["namespace"] for row in site.status()["containers"]} <= {namespace, TEAM}


def has_prepare_event(site: Site, namespace: str, name: str) -> bool:
    return any(Reason.GPU_MEMORY_IN_USE in note for note in site.events(namespace, name).values())


def started(site: Site, namespace: str, name: str) -> list[str]:
    statuses = site.bed.pod(namespace, name)["status"].get("containerStatuses") or []
    return [each["name"] for each in statuses if each.get("started")]


def test_a_second_device_plugin_makes_its_gpus_contested(site: Site, namespace: str) -> None:
    tenant = site.run(namespace, pods.pod("before", "hold", "1Gi"))
    uuids = [each["attributes"]["uuid"]["string"] for each in site.devices().values() if "uuid" in each["attributes"]]
    with site.device_plugin(uuids):
        site.until(
            "nothing is shared any more", lambda: not [name for name in site.devices() if name.startswith("gpu-")]
        )
        assert set(restarts(site.running(namespace, "before")).values()) == {0}
        assert "Contended" in site.shell("kubectl get events -A --field-selector involvedObject.kind=Node")
        site.create(namespace, pods.pod("meanwhile", "hold", "1Gi"))
        time.sleep(3)
        assert not site.bed.pod(namespace, "meanwhile")["spec"].get("nodeName")
    site.until("the GPUs are shared again", lambda: len(site.devices()) == len(uuids) + 1, 120)
    site.running(namespace, "meanwhile", 90)
    assert set(restarts(site.bed.pod(namespace, "before")).values()) == {0}
    assert tenant["metadata"]["uid"] == site.bed.pod(namespace, "before")["metadata"]["uid"]
    for name in ("before", "meanwhile"):
        site.delete(namespace, name)
