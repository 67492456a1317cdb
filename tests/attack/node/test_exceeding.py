"""Tenants that exceed their quota again and again on a real node, beside a share of another namespace (F7).

Each holds little more than its quota on average, the neighbour is enforced, and no command is needed afterwards.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import pytest

from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import Site, restarts
from tests.integration.controlplane.bed import PODS
from tests.integration.controlplane.policies.test_rules import STRATEGIC
from tests.support import extent

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1800)]
GIB: Final = 1024
SHORT: Final = 120.0
LONG: Final = 600.0
LONG_MIB: Final = 1536
EVERY: Final = 4.0
BURSTS: Final = "while true; do gpu-share-tenant hold 13Gi --for 3.8s --over-limit; sleep 0.6; done"
RESPAWN: Final = "trap '' TERM; while true; do gpu-share-tenant hold 12Gi --over-limit --ignore-term; done"
BORROWED: Final = """\
import signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.connect("/proc/1/root" "/run/gpu-share/mps/pipe/tenants")
door.send(b'{"hold": 6144, "limit": null, "over": true}')
door.recv(65536)
signal.pause()
"""
"""A program in another container's pid namespace that uses that one's way to the GPU, and ignores SIGTERM."""
OVER: Final = ("hold", "400Mi", "--then", "2Gi", "--after", "10s", "--over-limit")


def script(name: str, line: str) -> Object:
    body = pods.pod(name, memory="512Mi")
    body["spec"]["containers"][0]["command"] = ["sh", "-c", line]
    return body


def fresh(name: str) -> Object:
    body = pods.pod(name, "hold", "12Gi", "--over-limit", memory="512Mi")
    body["spec"]["restartPolicy"] = "Never"
    return body


@pytest.fixture(scope="module", autouse=True)
def victim(site: Site) -> str:
    """A namespace with a share that stays within its quota."""
    name = site.namespace("victim")
    site.run(name, pods.pod("modest", "hold", "400Mi", memory="512Mi"))
    return name


NAMES: Final = (f"attack-{number}" for number in count())


@pytest.fixture
def attacker(site: Site) -> Iterator[str]:
    name = site.namespace(next(NAMES))
    yield name
    site.drop(name, wait=True)


@contextmanager
def created(create: Callable[[int], object]) -> Iterator[None]:
    """Create a pod every few seconds meanwhile."""
    done = threading.Event()

    def run() -> None:
        for number in count():
            if done.wait(EVERY):
                return
            create(number)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def mean(site: Site, namespace: str, seconds: float) -> float:
    """Watch a namespace for so long; return the MiB that it held on average."""
    start = last = time.monotonic()
    total = 0.0
    while last - start < seconds:
        time.sleep(0.3)
        now = time.monotonic()
        rows = [row for row in site.status()["containers"] if row["namespace"] == namespace]
        total += (now - last) * sum(row["usedMib"] or 0 for row in rows)
        last = now
    return total / (last - start)


def is_little(site: Site, namespace: str, most: int) -> None:
    """Compare what an attack that has just begun holds with its bound, in full also over ten minutes."""
    found = mean(site, namespace, SHORT)
    extent.figure("F7", f"{namespace}: mean MiB used in {SHORT:.0f} s on a node", f"{found:.0f}")
    assert found <= most
    if extent.full():
        whole = (found * SHORT + mean(site, namespace, LONG - SHORT) * (LONG - SHORT)) / LONG
        extent.figure("F7", f"{namespace}: mean MiB used in {LONG:.0f} s on a node", f"{whole:.0f}")
        assert whole <= LONG_MIB


def is_enforced(site: Site, victim: str) -> None:
    """Have a container of the neighbour's namespace go over its quota, and wait until it is killed."""
    site.run(victim, pods.pod("other", *OVER, memory="512Mi"))
    site.until("the neighbour is killed", lambda: sum(restarts(site.bed.pod(victim, "other")).values()) > 0, 90)
    assert not site.status()["kills"]["breakerOpen"]
    site.delete(victim, "other")
    assert set(restarts(site.bed.pod(victim, "modest")).values()) == {0}


@pytest.mark.parametrize("line", [BURSTS, RESPAWN], ids=["bursts", "restarts"])
def test_one_container_holds_little_on_average_and_its_neighbour_is_enforced_meanwhile(
    site: Site, victim: str, attacker: str, line: str
) -> None:
    site.create(attacker, script("greedy", line))
    is_little(site, attacker, 2 * GIB)
    is_enforced(site, victim)
    assert set(site.events(attacker, "greedy")) & {"Killed", "LimitExceeded"}


def test_six_pods_hold_little_on_average_and_the_node_enforces_once_they_are_gone(
    site: Site, victim: str, attacker: str
) -> None:
    for number in range(6):
        site.create(attacker, pods.pod(f"six-{number}", "hold", "2560Mi", "--over-limit", memory="512Mi"))
    is_little(site, attacker, 2 * GIB)
    for number in range(6):
        site.delete(attacker, f"six-{number}")
    is_enforced(site, victim)


def test_fresh_pods_hold_little_on_average_and_wait_with_an_event_that_says_why(
    site: Site, victim: str, attacker: str
) -> None:
    with created(lambda number: site.create(attacker, fresh(f"fresh-{number}"))):
        is_little(site, attacker, 2 * GIB)
    notes = [site.events(attacker, each["metadata"]["name"]) for each in site.pods(attacker)]
    assert "this pod waits until" in str(notes)
    site.shell(f"kubectl -n {attacker} delete pods --all --wait", seconds=180)
    is_enforced(site, victim)


def test_a_debugger_that_takes_its_targets_way_to_the_gpu_is_ended_whole_and_alone(
    site: Site, victim: str, attacker: str
) -> None:
    """It starts its program again as often as that is killed, and has no first process that could be killed instead."""
    before = site.run(attacker, pods.pod("target", "hold", "400Mi", memory="512Mi"))
    again = ["sh", "-c", "trap '' TERM; while true; do python3 -c \"$PROGRAM\"; done"]
    more: Object = {"targetContainerName": pods.MAIN, "env": [{"name": "PROGRAM", "value": BORROWED}]}
    debugger = {**pods.container(name="debugger", **more), "command": again}
    where = path(CORE_V1, PODS, "target", attacker)
    site.cluster.patch(f"{where}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}}, STRATEGIC)

    def ended() -> bool:
        found = site.cluster.get(where)["status"].get("ephemeralContainerStatuses", [])
        return any("terminated" in each["state"] for each in found)

    site.until("all of it is ended", ended, 90)
    assert site.record(attacker, "target", "OUTCOME")["result"] == "Killed"
    assert restarts(site.bed.pod(attacker, "target")) == restarts(before)
    assert set(restarts(site.bed.pod(victim, "modest")).values()) == {0}
