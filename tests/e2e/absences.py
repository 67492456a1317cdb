"""The enforcer and the kubelet go away and come back; a watcher records the enforcer's samples meanwhile."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from gpushare.kube_client import path
from tests.e2e.pods import Object
from tests.e2e.site import APPS_V1, SYSTEM, Site

KUBELET_PORT: Final = 10250
ENFORCERS: Final = path(APPS_V1, "daemonsets", "gpu-share-enforcer", SYSTEM)
NOWHERE: Final = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}
SAMPLING: Final = 0.05


@contextmanager
def no_enforcer(site: Site) -> Iterator[None]:
    """Take the enforcer off the node for a while."""
    old = site.cluster.get(ENFORCERS)["spec"]["template"]["spec"].get("nodeSelector")
    name = site.enforcer()["metadata"]["name"]
    site.cluster.patch(ENFORCERS, NOWHERE)
    site.until("the enforcer is gone", lambda: site.find_pod(SYSTEM, name) is None)
    try:
        yield
    finally:
        site.cluster.patch(
            ENFORCERS, {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": None, **(old or {})}}}}}
        )
        site.until("the enforcer is ready again", site.enforcer_ready, 90)


def kubelet_restarts(site: Site, times: int) -> None:
    """End the kubelet and start it again, so many times."""
    for _ in range(times):
        site.node.stop_kubelet()
        site.node.start_kubelet()
        site.until("the kubelet answers", lambda: answers(site.node.address, KUBELET_PORT))


def answers(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as knocking:
        knocking.settimeout(1)
        return knocking.connect_ex((address, port)) == 0


def seconds(when: str) -> float:
    """An RFC 3339 time in seconds since 1970."""
    return datetime.fromisoformat(when).timestamp()


def poll_of(site: Site) -> float:
    """Seconds between two looks of the enforcer, as it was told."""
    (enforcer,) = [each for each in site.enforcer()["spec"]["containers"] if each["name"] == "enforcer"]
    (flag,) = [word for word in enforcer["args"] if word.startswith("--poll-seconds=")]
    return float(flag.partition("=")[2])


def ready_since(pod: Object) -> float:
    """When a pod became ready, in whole seconds since 1970, as Kubernetes says it."""
    (condition,) = [each for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    assert condition["status"] == "True", condition
    return seconds(condition["lastTransitionTime"])


@dataclass(slots=True)
class Looks:
    """When the enforcer looked at the node, each time, in seconds since 1970."""

    at: list[float] = field(default_factory=list)

    def gaps(self) -> list[tuple[float, float]]:
        """Every two looks that follow each other, the farthest apart first."""
        return sorted(pairwise(self.at), key=lambda gap: gap[0] - gap[1])

    def longest(self, nth: int = 0) -> float:
        """Seconds of the longest gap, or of the ``nth`` after it: how late the machine lets the enforcer be."""
        earlier, later = self.gaps()[nth]
        return later - earlier


@contextmanager
def looks(site: Site) -> Iterator[Looks]:
    """Note all looks of the enforcer, from its status file on the node; a new enforcer's among them."""
    found, ended = Looks(), threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLING):
            with suppress(OSError, ValueError, KeyError):
                when = seconds(site.status()["time"])
                if found.at[-1:] != [when]:
                    found.at.append(when)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
