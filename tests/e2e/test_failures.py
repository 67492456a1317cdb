"""Containers that are refused GPU memory and fail: told why, likely, and operators are told who."""

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import SERVER_MIB, STATE, Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
HOARD, SMALL = 15100, 600
"""MiB: together they leave less than 5 % of a simulated card of 16 GiB."""


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("failures", **{contract.ON_EXCEED: "warn"})


def failed(site: Site, namespace: str, body: Object) -> str:
    """Run a pod until its container has ended once; its name."""
    name = site.create(namespace, body)["metadata"]["name"]
    site.until(f"{name} has failed", lambda: restarts(site.bed.pod(namespace, name)).get(pods.MAIN, 0) > 0, 120)
    return str(name)


def explained(site: Site, namespace: str, name: str) -> str:
    return site.shell(f"gpu-share explain {namespace}/{name}", check=False)


def on_the_node(site: Site, namespace: str, name: str) -> str:
    # The exit code is 1 while a container is not as it should be; the text is what is compared.
    return site.in_enforcer(f"sh -c 'gpu-share explain --state {STATE} {namespace}/{name} || true'")


def test_a_container_that_filled_its_own_quota_is_notified(site: Site, namespace: str) -> None:
    greedy = pods.pod("greedy", "hold", "1980Mi", "--then", "3Gi", "--after", "5s", memory="2Gi")
    name = failed(site, namespace, greedy)
    site.until("an Event says so", lambda: "QuotaReached" in site.events(namespace, name))
    note = site.events(namespace, name)["QuotaReached"]
    assert "failed with exit code 1, likely because it reached its quota" in note
    assert "1980 MiB of its 2048 MiB" in note
    site.until("its sidecar says so", lambda: "QuotaReached: container main failed" in site.logs(namespace, name))
    assert "QuotaReached" in explained(site, namespace, name)
    site.delete(namespace, name)


def test_a_pod_that_is_not_restarted_has_its_event_and_most_often_its_sidecars_last_word(
    site: Site, namespace: str
) -> None:
    # It fails only once: by then a busy node's enforcer has to know the container.
    once = pods.pod("once", "hold", "1980Mi", "--then", "3Gi", "--after", "20s", memory="2Gi")
    once["spec"]["restartPolicy"] = "Never"
    site.create(namespace, once)
    site.until("an Event says so", lambda: "QuotaReached" in site.events(namespace, "once"), 120)
    site.until("it is over", lambda: site.bed.pod(namespace, "once")["status"]["phase"] == "Failed")
    print("\nits sidecar logged it too:", "QuotaReached" in site.logs(namespace, "once"))
    assert "QuotaReached" in explained(site, namespace, "once")
    site.delete(namespace, "once")


def test_a_container_that_found_the_card_full_is_notified_how_much_others_hold_and_not_who(
    site: Site, namespace: str
) -> None:
    """The other GPU has no room for their shares, so both are on the same one."""
    site.run(namespace, pods.pod("filler", "hold", "256Mi", memory="14Gi"))
    hoarder = pods.pod("hoarder", "hold", "1Gi", "--then", f"{HOARD}Mi", "--after", "2s", "--over-limit", memory="2Gi")
    site.run(namespace, hoarder)
    site.until("it holds too much", lambda: HOARD + SERVER_MIB in [gpu["usedMib"] for gpu in site.status()["gpus"]])
    victim = pods.pod("victim", "hold", f"{SMALL}Mi", "--then", "3Gi", "--after", "5s", memory="4Gi")
    name = failed(site, namespace, victim)
    site.until("an Event says so", lambda: "GpuFull" in site.events(namespace, name))
    note = site.events(namespace, name)["GpuFull"]
    others = HOARD + SERVER_MIB
    assert f"was full: other processes used {others} MiB, the container used {SMALL} MiB of its 4096 MiB" in note
    site.until("its sidecar says so", lambda: "GpuFull: container main failed" in site.logs(namespace, name))
    shown = note + site.logs(namespace, name) + explained(site, namespace, name)
    assert "hoarder" not in shown
    assert f"{namespace}/hoarder/main: {HOARD} MiB" in on_the_node(site, namespace, name)
    log = "\n".join(site.enforcer_log())
    assert any("GpuFull" in line and "hoarder" in line for line in log.splitlines())
    assert not {"GpuFull", "QuotaReached"} & site.events(namespace, "filler").keys()
    for each in ("victim", "hoarder", "filler"):
        site.delete(namespace, each)


def test_a_container_that_fails_with_room_left_is_notified_nothing(site: Site, namespace: str) -> None:
    body = pods.pod("clumsy", memory="2Gi")
    body["spec"]["containers"][0]["command"] = ["sh", "-c", "gpu-share-tenant hold 256Mi --for 4s; exit 3"]
    name = failed(site, namespace, body)
    marker = pods.pod("marker", "hold", "1980Mi", "--then", "3Gi", "--after", "5s", memory="2Gi")
    failed(site, namespace, marker)
    site.until("a later failure has an Event", lambda: "QuotaReached" in site.events(namespace, "marker"))
    assert not {"GpuFull", "QuotaReached"} & site.events(namespace, name).keys()
