"""12 GiB behind a descriptor, under a limit of 8, on a real node: seen, withheld, reported, and ended with consent."""

import time
from collections.abc import Iterator

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import Site, restarts
from tests.e2e.test_limits import BEFORE, LATE, ROLLOUT, UPGRADE, conditions
from tests.e2e.test_modes import tenants_away

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GRACE = 20.0
HIDDEN = 12_288


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    """One whose tenants have the node to themselves, with an enforcer that may kill for what is hidden."""
    name = site.namespace("hidden", **{contract.GRACE_PERIOD: f"{GRACE:.0f}s"})
    values = ("enforcer.unaccounted=kill", "enforcer.limitVerificationSeconds=5")
    with tenants_away(site):
        site.shell(f"{UPGRADE} --set {','.join(values)} && {ROLLOUT}")
        site.until("the enforcer is ready", site.enforcer_ready, LATE)
        yield name
    site.shell(f"{UPGRADE} --set {','.join((*BEFORE, 'enforcer.unaccounted=report'))} && {ROLLOUT}")
    site.until("the enforcer is ready", site.enforcer_ready, LATE)
    site.drop(name, wait=True)
    site.run_block("verify")  # what uninstalling takes away again


def capacity(site: Site, uuid: str) -> str:
    """Memory that the node offers of a GPU; empty where it offers none."""
    found = [each for each in site.devices().values() if each["attributes"].get("uuid", {}).get("string") == uuid]
    return str(found[0]["capacity"]["memory"]["value"]) if found else ""


def test_hidden_memory_is_withheld_and_reported_its_holder_is_ended_and_its_neighbour_lives(
    site: Site, namespace: str
) -> None:
    neighbour = site.run(namespace, pods.pod("neighbour", "hold", "1Gi", memory="2Gi"))
    uuid = site.uuid_of(neighbour)
    whole = capacity(site, uuid)
    site.until("its limit is in force", lambda: conditions(site, namespace, "neighbour") == [("True", "InForce")], LATE)
    holder = site.run(namespace, pods.pod("holder", "hide", "12Gi", memory="8Gi"))
    assert site.uuid_of(holder) == uuid
    began = time.monotonic()

    def unaccounted() -> int:
        return int(next(each["unaccountedMib"] or 0 for each in site.status()["gpus"] if each["uuid"] == uuid))

    site.until("the enforcer sees it", lambda: unaccounted() >= HIDDEN - 64)
    print(f"seen {time.monotonic() - began:.1f} s after the pod was ready")
    site.until("less of the GPU is on offer", lambda: capacity(site, uuid) != whole)
    later = site.run(namespace, pods.pod("later", "hold", "1Gi", memory="4Gi"))
    assert site.uuid_of(later) != uuid, "it had had room there"
    site.until("the holder has an Event", lambda: "UnaccountedMemory" in site.events(namespace, "holder"))
    site.until("its sidecar says so", lambda: "UnaccountedMemory" in site.logs(namespace, "holder"))
    site.until("it is ended", lambda: restarts(site.bed.pod(namespace, "holder")).get(pods.MAIN, 0) > 0)
    intent = site.record(namespace, "holder", "INTENT")
    assert intent["cause"] == "UnaccountedMemory"
    assert GRACE <= float(intent["overFor"].removesuffix("s")) <= GRACE + 1
    assert site.record(namespace, "holder", "OUTCOME")["result"] == "Killed"
    assert site.records(namespace, "neighbour") == []
    assert restarts(site.bed.pod(namespace, "neighbour"))[pods.MAIN] == 0
    assert "UnaccountedMemory" not in site.events(namespace, "neighbour")
    assert "ok:" in site.in_enforcer("gpu-share audit verify")
