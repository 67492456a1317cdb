"""Grace periods while kubelet and enforcer come and go: neither shortened nor stretched, and no tenant is touched."""

import time

import pytest

from enforcer.detection.types import DetectorConfig
from gpushare import contract
from tests.e2e import pods
from tests.e2e.absences import Looks, kubelet_restarts, looks, no_enforcer, poll_of, ready_since, seconds
from tests.e2e.pods import Object
from tests.e2e.site import SYSTEM, Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GRACE = 15.0
RESTARTS = 20
MAX_GAP = DetectorConfig().max_gap
"""Absences up to this count; after a longer one nobody knows what happened, and the grace period starts anew."""
ROUNDED = 0.1
WHOLE_SECOND = 1.0
"""Kubernetes says in whole seconds when a pod became ready."""
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "1s", "--over-limit")


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    name = site.namespace("grace", **{contract.GRACE_PERIOD: f"{GRACE:.0f}s"})
    site.run(name, pods.pod("steady", "hold", "512Mi", memory="1Gi"))
    warm = pods.pod("warmed", "hold", "512Mi", memory="1Gi", **{"memory.gpu-share.io/warm-up": "1Gi"})
    warm["spec"]["initContainers"] = [pods.container("hold", "512Mi", "--for", "1s", name="warm-up")]
    site.run(name, warm)
    return name


def over_for(found: Object) -> float:
    return float(found["overFor"].removesuffix("s"))


def test_a_kubelet_restart_in_mid_grace_changes_nothing_of_it(site: Site, namespace: str) -> None:
    with looks(site) as seen:
        site.run(namespace, pods.pod("watched", *GREEDY))
        warned = site.record(namespace, "watched", "WARNED")
        stopped = time.time()
        kubelet_restarts(site, 1)
        intent = site.record(namespace, "watched", "INTENT")
    assert seconds(intent["time"]) > stopped, "it was restarted in mid-grace"
    lasted = seconds(intent["time"]) - seconds(warned["time"]) + over_for(warned)
    look = seen.longest() + ROUNDED
    print(f"\ngrace {GRACE} s: {over_for(intent)} s counted, {lasted:.2f} s by the clock; looks {look:.2f} s apart")
    assert GRACE <= over_for(intent) <= GRACE + look
    assert GRACE - look <= lasted <= GRACE + 2 * look
    site.delete(namespace, "watched")


def test_an_enforcer_restarted_in_mid_grace_goes_on_where_the_old_one_was(site: Site, namespace: str) -> None:
    """Seen by the old enforcer, killed by the new one: a short absence counts, a long one restarts the grace period."""
    with looks(site) as seen:
        site.run(namespace, pods.pod("inherited", *GREEDY))
        warned = site.record(namespace, "inherited", "WARNED")
        old = site.enforcer()["metadata"]
        site.remove(SYSTEM, old["name"], grace=1)
        site.until(
            "another enforcer is ready", lambda: site.find_pod(SYSTEM, old["name"]) is None and site.enforcer_ready()
        )
        enforcer, intent = site.enforcer(), site.record(namespace, "inherited", "INTENT")
    lasted = seconds(intent["time"]) - seconds(warned["time"]) + over_for(warned)
    away, look = seen.longest(), seen.longest(1) + ROUNDED
    print(
        f"\ngrace {GRACE} s: {over_for(intent)} s counted, {lasted:.2f} s by the clock, {away:.2f} s of it between two"
    )
    print(f"enforcers; otherwise looks {look:.2f} s apart at most; {resumed(seen, enforcer)}")
    assert GRACE <= over_for(intent) <= GRACE + look, "neither shortened nor stretched"
    counted = lasted if away <= MAX_GAP else seconds(intent["time"]) - seen.gaps()[0][1]
    assert GRACE - look <= counted <= GRACE + 2 * look
    assert after_ready(seen, enforcer) <= WHOLE_SECOND + poll_of(site)
    site.delete(namespace, "inherited")


def after_ready(seen: Looks, enforcer: Object) -> float:
    """Seconds from the new enforcer's being ready to its first look, the one after the longest gap."""
    return seen.gaps()[0][1] - ready_since(enforcer)


def resumed(seen: Looks, enforcer: Object) -> str:
    return f"the new enforcer looked first {after_ready(seen, enforcer):+.2f} s after it became ready"


@pytest.fixture(scope="module")
def backing_off(site: Site, namespace: str) -> str:
    """A pod that was ended for what it took, and that the kubelet lets wait before it starts it again."""
    site.run(namespace, pods.pod("backing-off", *GREEDY))
    site.until("it backs off", lambda: waits(site, namespace, "backing-off"), 180)
    return "backing-off"


def waits(site: Site, namespace: str, name: str) -> bool:
    statuses = site.bed.pod(namespace, name)["status"].get("containerStatuses") or [{"state": {}}]
    return bool(statuses[0]["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")


def untouched(site: Site, namespace: str, backing_off: str) -> None:
    """No container was started twice but the one that was killed; its sidecar neither."""
    for name in ("steady", "warmed"):
        pod = site.running(namespace, name)
        assert set(restarts(pod).values()) == {0}, pod["status"]
    assert restarts(site.bed.pod(namespace, backing_off))[contract.SIDECAR] == 0


def test_the_kubelet_restarted_with_the_enforcer_there(site: Site, namespace: str, backing_off: str) -> None:
    with looks(site) as seen:
        kubelet_restarts(site, RESTARTS // 2)
    print(f"\n{RESTARTS // 2} restarts of the kubelet: looks {seen.longest():.2f} s apart at most")
    site.until("slices are offered again", lambda: contract.KIND_STATUS in site.devices())
    untouched(site, namespace, backing_off)
    started = restarts(site.bed.pod(namespace, backing_off))[pods.MAIN]
    kills = [each for each in site.records(namespace, backing_off) if each["kind"] == "INTENT"]
    assert 0 < started <= len(kills), "started again after a kill, and for nothing else"
    site.run(namespace, pods.pod("after-kubelet", "hold", "512Mi", memory="1Gi"))
    site.delete(namespace, "after-kubelet")


def test_the_kubelet_restarted_with_the_enforcer_away(site: Site, namespace: str, backing_off: str) -> None:
    site.run(namespace, pods.pod("leaving", "hold", "512Mi", memory="1Gi"))
    # With the enforcer goes what simulates the GPU: what is started meanwhile finds none and ends by itself.
    with looks(site) as seen:
        with no_enforcer(site):
            kubelet_restarts(site, RESTARTS // 2)
            untouched(site, namespace, backing_off)
            site.remove(namespace, "leaving")
        enforcer = site.enforcer()
        site.until("the deletion that waited is done", lambda: site.find_pod(namespace, "leaving") is None)
    print(f"\n{resumed(seen, enforcer)}")
    assert after_ready(seen, enforcer) <= WHOLE_SECOND + poll_of(site), "enforcement resumes within a poll"
    untouched(site, namespace, backing_off)


def test_afterwards_the_one_that_backed_off_is_started_again(site: Site, namespace: str, backing_off: str) -> None:
    before = restarts(site.bed.pod(namespace, backing_off))[pods.MAIN]
    site.until("it is started again", lambda: restarts(site.bed.pod(namespace, backing_off))[pods.MAIN] > before, 300)
    site.delete(namespace, backing_off)
