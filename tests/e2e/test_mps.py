"""MPS daemons that die, stop, meet a fault or are tampered with: found, healed or told, and felt by no other GPU."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import pinned, pods, readme
from tests.e2e.site import OPTIONS, RUN, Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
FAST = f"--set mps.checkSeconds={pinned.LOOKS}"
TWO_LOOKS = 2 * pinned.LOOKS + 10
"""Seconds for two looks, and for what is between them and the test."""


@pytest.fixture(scope="module", name="gpus")
def _gpus(site: Site) -> list[str]:
    return pinned.uuids(site)


@pytest.fixture(scope="module", name="namespace")
def _namespace(site: Site, gpus: list[str]) -> Iterator[str]:
    """A neighbour on each of the other GPUs; at the end none of them may have noticed anything."""
    name = site.namespace("mps")
    for index, gpu in enumerate(gpus[1:]):
        pinned.tenant(site, name, f"neighbour-{index}", gpu, "hold", "512Mi", "--dies-with-server")
    before, daemons = pinned.mps_pods(site), [pinned.daemon(site, gpu) for gpu in gpus]
    upgrade(site, FAST)
    assert [pinned.daemon(site, gpu) for gpu in gpus] == daemons, "an upgrade of the enforcer touches no daemon"
    yield name
    upgrade(site, "")
    assert (pinned.mps_pods(site), [pinned.daemon(site, gpu) for gpu in gpus][1:]) == (before, daemons[1:])
    for index in range(len(gpus[1:])):
        assert set(restarts(site.running(name, f"neighbour-{index}")).values()) == {0}


def upgrade(site: Site, more: str) -> None:
    site.run_block("upgrade", readme.UPGRADES, OPTIONS=f"{OPTIONS} {more}")
    site.until("the enforcer is ready", site.enforcer_ready, 120)


def timed(site: Site, what: str, check: Callable[[], object]) -> None:
    """Wait for it no longer than two looks take, and print how long it took."""
    begun = time.monotonic()
    site.until(what, check, TWO_LOOKS)
    print(f"{what}: {time.monotonic() - begun:.1f} s, looks every {pinned.LOOKS} s")


def test_a_daemon_that_is_killed_is_started_again_over_its_stale_sockets(
    site: Site, namespace: str, gpus: list[str]
) -> None:
    pinned.tenant(site, namespace, "victim", gpus[0], "hold", "512Mi")
    old = pinned.daemon(site, gpus[0])
    pinned.signal(site, "KILL", old)
    timed(site, "another daemon serves", lambda: pinned.daemon(site, gpus[0]) not in {0, old})
    site.until("its tenant holds memory again", lambda: "holding-again" in site.logs(namespace, "victim", pods.MAIN))
    assert list((site.on_node(RUN) / "mps").glob("*/pipe/control")) != []


def test_a_daemon_that_is_stopped_is_set_going_again(site: Site, namespace: str, gpus: list[str]) -> None:
    pid = pinned.daemon(site, gpus[0])
    pinned.signal(site, "STOP", pid)
    timed(site, "the node has an Event", lambda: pinned.node_events(site, "MpsHung", gpus[0]))
    assert pinned.say(site, namespace, "victim", "get_default_active_thread_percentage") == ["100.0"]
    assert pinned.daemon(site, gpus[0]) == pid


def test_a_tenant_changes_nothing_in_its_daemon(site: Site, namespace: str, gpus: list[str]) -> None:
    """A daemon of driver 580 refuses it; tests of processes cover older ones, where the enforcer puts it right."""
    ask = ("get_default_device_pinned_mem_limit 0", "get_default_active_thread_percentage")
    before = pinned.say(site, namespace, "victim", *ask)
    changes = ("set_default_device_pinned_mem_limit 0 700M", "set_default_active_thread_percentage 7")
    pinned.say(site, namespace, "victim", *changes)
    assert pinned.say(site, namespace, "victim", *ask) == before
    assert not pinned.node_events(site, "MpsTampered", gpus[0])


def tainted(site: Site, gpu: str) -> bool:
    ours = [each for each in site.devices().values() if each["attributes"].get("uuid") == {"string": gpu}]
    return any(each.get("taints") for each in ours)


def test_a_fault_keeps_new_shares_away_until_the_clients_it_met_are_gone(
    site: Site, namespace: str, gpus: list[str]
) -> None:
    names = [f"lingering-{index}" for index in range(3)]
    for name in names:
        pinned.tenant(site, namespace, name, gpus[0], "hold", "512Mi", "--ignore-term")
    site.delete(namespace, "victim")
    site.simulator("fault", gpus[0], "mps-fault")
    timed(site, "the node has an Event", lambda: pinned.node_events(site, "MpsFault", gpus[0]))
    site.until("the GPU gets no new shares", lambda: tainted(site, gpus[0]))
    for name in names:
        site.until(f"{name} is let go of", lambda name=name: "terminated" in site.logs(namespace, name, pods.MAIN))  # type: ignore[misc] # bound now
        assert set(restarts(site.bed.pod(namespace, name)).values()) == {0}, "and not ended"
    assert tainted(site, gpus[0])
    for name in names:
        site.delete(namespace, name)
    site.until("the GPU is well", lambda: not tainted(site, gpus[0]), 120)
    pinned.tenant(site, namespace, "after", gpus[0], "hold", "512Mi")
