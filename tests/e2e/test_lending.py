"""Two borrowers and a late third share: its memory comes back in time, from the right one, and on record."""

import time
from collections.abc import Iterator

import pytest

from enforcer.detection.types import DetectorConfig
from gpushare import contract
from gpushare.quantity import parse_memory
from tests.e2e import pinned, pods
from tests.e2e.absences import ready_since, seconds
from tests.e2e.site import Site

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
FREE_MIB = 5120
"""What borrowers leave of the GPU beyond what is reserved: more than the 4 GiB that have to stay, and as much as the
late share reserves."""
RESERVED_MIB, LATE_MIB = 512, FREE_MIB
"""Of each borrower, and of the late share."""
MARGIN = 3.0
WHOLE_SECOND = 1.0
"""Kubernetes says in whole seconds when a pod became ready."""


def borrower(name: str, memory_mib: int, limit_mib: int) -> pods.Object:
    """A pod that starts within its reservation, takes its limit a second later, and is not started again."""
    grows = ("hold", f"{memory_mib}Mi", "--then", f"{limit_mib}Mi", "--after", "1s")
    made = pods.pod(name, *grows, memory=f"{memory_mib}Mi", **{contract.MEMORY_LIMIT: f"{limit_mib}Mi"})
    made["spec"]["restartPolicy"] = "Never"
    return made


def unreserved(site: Site) -> dict[str, int]:
    """MiB of each GPU, by UUID, that no share has reserved."""
    gpus = [each for each in site.devices().values() if "memory" in each.get("capacity", {})]
    left = {gpu["attributes"]["uuid"]["string"]: parse_memory(gpu["capacity"]["memory"]["value"]) for gpu in gpus}
    for each in site.status()["containers"]:
        left[each["gpu"]] -= each["reservedMib"]
    return left


def borrowed(site: Site, namespace: str) -> dict[str, int]:
    """MiB that each pod of a namespace has borrowed, as the enforcer has it."""
    return {each["pod"]: each["borrowedMib"] for each in site.status()["containers"] if each["namespace"] == namespace}


@pytest.fixture(name="team")
def _team(site: Site) -> Iterator[str]:
    """A namespace that may borrow. Only one GPU has room for its pods, so that all of them are there."""
    name = site.namespace("lending", **{contract.MAX_MEMORY_LIMIT: "80Gi"})
    _, *others = sorted(unreserved(site).items(), key=lambda each: -each[1])
    for number, (gpu, mib) in enumerate(others):
        pinned.tenant(site, name, f"full-{number}", gpu, "hold", "128Mi", memory=f"{mib - RESERVED_MIB // 2}Mi")
    yield name
    site.drop(name, wait=True)


def test_a_late_share_has_its_memory_after_the_notice_and_the_right_borrower_pays(site: Site, team: str) -> None:
    left = unreserved(site)
    gpu = site.uuid_of(site.run(team, borrower("small", RESERVED_MIB, 2 * RESERVED_MIB)))
    large_mib = left[gpu] - 2 * RESERVED_MIB - FREE_MIB
    site.run(team, borrower("large", RESERVED_MIB, large_mib))
    loans = {"small": RESERVED_MIB, "large": large_mib - RESERVED_MIB}
    site.until("both borrow", lambda: loans.items() <= borrowed(site, team).items())
    assert f"{loans['large']} MiB borrowed" in site.shell(f"gpu-share explain {team}/large", check=False)
    began = time.time()
    site.run(team, pods.pod("late", "hold", f"{LATE_MIB}Mi", memory=f"{LATE_MIB}Mi"))
    notice, outcome = (site.record(team, "large", kind) for kind in ("RECLAIM_NOTICE", "OUTCOME"))
    ready = ready_since(site.bed.pod(team, "late"))
    noticed = seconds(notice["time"])
    print(f"\nnotice {noticed - began:.1f} s after the late pod was made, {ready - noticed:.1f} s before it was ready")
    assert ready - noticed <= DetectorConfig().notice + MARGIN + WHOLE_SECOND
    assert outcome["result"] == "Killed"
    assert site.record(team, "large", "INTENT")["cause"] == "Reclaimed"
    assert site.record(team, "large", "LENT")["borrowedMiB"] > 0
    kept = {each["kind"] for each in site.records(team, "small")}
    assert kept == {"LENT"}, "the one that borrowed less for its reservation keeps it"
    assert borrowed(site, team)["small"] == RESERVED_MIB
    site.until("an Event warned", lambda: "Reclaimed" in site.events(team, "large"))
    assert "ok:" in site.in_enforcer("gpu-share audit verify")
