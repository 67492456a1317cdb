"""Disk, clock, API server and a second writer fail a whole node: each kill is on record, no innocent ends, it heals."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import contract
from gpushare.reasons import Reason
from tests.e2e import pinned, pods
from tests.e2e.site import STATE, SYSTEM, TEAM, Site, restarts
from tests.e2e.vm.test_reboot import SIZES, coming_back
from tests.support.extent import trials
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(3600)]
AWAY = trials(60, 600)
"""Seconds without the API server."""
HOUR = 3600
FILLER = f"{STATE}/filler"
FILL = f"for size in 1M 4k; do dd if=/dev/zero bs=$size 2>/dev/null >>{FILLER} || :; done; sync"
SIMULATED = f"{STATE}/simulator"
APART = f"""
mkdir -p /var/lib/simulated
cp -a {SIMULATED}/. /var/lib/simulated
mount --bind /var/lib/simulated {SIMULATED}
"""
"""The simulated GPUs are files below the enforcer's folder; a fault of its disk is none of theirs. Until a reboot."""
EXCEED = "setsid gpu-share-tenant hold 6Gi --over-limit >/dev/null 2>&1 &"
NEVER = 30
"""Seconds in which a container over its quota would long have been killed: a grace period of 2 s, samples 5 s apart."""


@pytest.fixture(scope="module")
def gpu(site: Site, vm: VmNode) -> str:
    site.delete(TEAM, "share", 150)
    vm.run("sh", "-ec", APART)
    site.shell(f"kubectl -n {SYSTEM} delete pod -l 'app.kubernetes.io/name in (gpu-share-enforcer, gpu-share-mps)'")
    site.until(
        "the enforcer is ready again, and offers the GPUs", lambda: site.enforcer_ready() and site.devices(), 150
    )
    site.until("which are known by their UUIDs", lambda: pinned.uuids(site), 150)
    return pinned.uuids(site)[0]


@pytest.fixture(scope="module")
def namespace(site: Site, gpu: str) -> str:
    """With a neighbour on the same GPU that nothing of all this may end."""
    name = site.namespace("faults", **{contract.GRACE_PERIOD: "2s"})
    pinned.tenant(site, name, "steady-0", gpu, "hold", f"{SIZES[0]}Mi")
    return name


@pytest.fixture(autouse=True)
def _innocent(site: Site, namespace: str) -> Iterator[None]:
    yield
    assert site.records(namespace, "steady-0") == []
    assert "ok:" in site.in_enforcer("gpu-share audit verify")


def exceed(site: Site, namespace: str, name: str, gpu: str) -> None:
    """Start a pod on the neighbour's GPU, and have a second process of it take more than its share."""
    pinned.tenant(site, namespace, name, gpu, "hold", "128Mi")
    surpass(site, namespace, name)


def surpass(site: Site, namespace: str, name: str) -> None:
    site.exec(namespace, name, "sh", "-c", EXCEED)


def kinds(site: Site, namespace: str, name: str) -> list[str]:
    return [each["kind"] for each in site.records(namespace, name)]


def killed_once(site: Site, namespace: str, name: str) -> None:
    assert site.record(namespace, name, "OUTCOME")["result"] == "Killed"
    assert kinds(site, namespace, name).count("OUTCOME") == 1  # an attempt before it may have been ABORTED
    assert set(restarts(site.running(namespace, "steady-0")).values()) == {0}


def logged(site: Site, reason: Reason) -> bool:
    return any(f'"{reason}"' in line for line in site.enforcer_log())


@contextmanager
def full_disk(vm: VmNode) -> Iterator[None]:
    vm.run("sh", "-c", FILL)
    try:
        yield
    finally:
        vm.run("rm", "-f", FILLER)


def test_on_a_full_disk_a_kill_is_on_record_and_a_new_share_waits(
    site: Site, vm: VmNode, namespace: str, gpu: str
) -> None:
    pinned.tenant(site, namespace, "filling", gpu, "hold", "128Mi")
    with full_disk(vm):
        surpass(site, namespace, "filling")
        killed_once(site, namespace, "filling")
        site.create(namespace, pods.pod("waiting", "hold", "128Mi"))
        site.until("an Event says why", lambda: "No space left" in " ".join(site.events(namespace, "waiting").values()))
        assert logged(site, Reason.AUDIT_UNWRITABLE)
    site.running(namespace, "waiting", 150)
    site.until("nothing is wrong any more", lambda: "full" not in str(site.status()["problems"]))
    site.delete(namespace, "waiting")
    site.delete(namespace, "filling")


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_by_an_hour_changes_no_decision(
    site: Site, vm: VmNode, namespace: str, gpu: str, hours: int
) -> None:
    name = f"jumping-{hours}".replace("--", "-back-")
    vm.run("date", "--set", f"@{int(time.time()) + hours * HOUR}")
    try:
        exceed(site, namespace, name, gpu)
        killed_once(site, namespace, name)
    finally:
        vm.run("date", "--set", f"@{int(time.time())}")
    killed_once(site, namespace, name)
    site.delete(namespace, name)


def test_two_enforcers_write_one_log_one_after_the_other(site: Site, vm: VmNode, namespace: str, gpu: str) -> None:
    (running,) = [each for each in site.enforcer()["spec"]["containers"] if each["name"] == "enforcer"]
    again = f"timeout 40 gpu-share {shlex.join(running['args'])} 2>&1; true"
    second = site.in_enforcer(f"sh -c {shlex.quote(again)}")
    assert str(Reason.CONFLICT) in second
    exceed(site, namespace, "twice", gpu)
    killed_once(site, namespace, "twice")
    before = restarts(site.enforcer())["enforcer"]
    vm.run("rm", f"{STATE}/lock")  # an enforcer that looks at the file alone could start now
    site.until("the first one ended", lambda: restarts(site.enforcer())["enforcer"] == before + 1, 120)
    site.until("and is back", site.enforcer_ready, 120)
    killed_once(site, namespace, "twice")
    site.delete(namespace, "twice")


def test_without_the_api_server_quotas_of_known_containers_hold(
    site: Site, vm: VmNode, namespace: str, gpu: str
) -> None:
    late = ("hold", "128Mi", "--then", "6Gi", "--after", f"{AWAY // 2}s", "--over-limit")
    pinned.tenant(site, namespace, "known", gpu, *late)
    site.until(
        "it is seen", lambda: any(row["pod"] == "known" and row["usedMib"] for row in site.status()["containers"])
    )
    with site.no_api_server():
        gone = time.monotonic()
        while time.monotonic() - gone < AWAY:
            time.sleep(1)
        assert "OUTCOME" in kinds(site, namespace, "known")
    site.until("the node is ready", site.node.ready, 90)
    killed_once(site, namespace, "known")
    site.until("an Event tells of it", lambda: "Killed" in " ".join(site.events(namespace, "known")), 150)
    site.until("the enforcer is ready", site.enforcer_ready, 120)
    site.delete(namespace, "known", 150)
    site.run(namespace, pods.pod("after", "hold", "128Mi"), 150)
    site.delete(namespace, "after")


def test_on_a_disk_that_takes_no_writes_nobody_is_killed_until_a_reboot_mends_it(
    site: Site, vm: VmNode, gpu: str, namespace: str
) -> None:
    pinned.tenant(site, namespace, "over", gpu, "hold", "128Mi")
    with coming_back(site, vm, namespace, {0: gpu}):
        vm.run("mount", "-o", "remount,abort", STATE)
        surpass(site, namespace, "over")
        site.until("the enforcer says so", lambda: logged(site, Reason.AUDIT_UNWRITABLE))
        time.sleep(NEVER)
        running = site.exec(namespace, "over", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "6Gi" in running, "the process over its quota lives: there is no kill without a record"
        vm.reset()
    assert "INTENT" not in kinds(site, namespace, "over")
    site.delete(namespace, "over", 150)
    exceed(site, namespace, "recorded", gpu)
    assert site.record(namespace, "recorded", "OUTCOME")["result"] == "Killed"
    site.delete(namespace, "recorded")
