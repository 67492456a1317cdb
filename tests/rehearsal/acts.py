"""What steps do to parts of the product and of Kubernetes: delete, kill, restart, take away for a while."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.e2e.absences import no_enforcer
from tests.e2e.site import NAME, SYSTEM, Site
from tests.rehearsal import processes
from tests.rehearsal.where import each_node, real

WEBHOOK: Final = "gpu-share-webhook"
ENFORCER: Final = "gpu-share-enforcer"
CERTS: Final = "gpu-share-certs"
MPS: Final = "gpu-share-mps"
ENABLED: Final = "gpu-share.io/enabled"
NOTHING: Final = {"level": "wrong", "description": "the check", "detail": "it said nothing"}
Act = Callable[[Site, str, Random], bool | None]
"""Takes one node of the site, the tenants' namespace, and what to decide by.

Says whether the check was red meanwhile, if it asked.
"""


def deleted(name: str, *, force: bool = False) -> Act:
    """Delete the pods of a part, in good order or at once."""
    how = "--grace-period=0 --force" if force else "--wait=false"

    def act(site: Site, _: str, __: Random) -> None:
        site.shell(f"kubectl -n {SYSTEM} delete pods -l {NAME}={name} {how}")

    return act


def one_deleted(name: str) -> Act:
    """Delete one of the pods of a part."""

    def act(site: Site, _: str, rng: Random) -> None:
        found = site.shell(f"kubectl -n {SYSTEM} get pods -l {NAME}={name} -o name").split()
        site.shell(f"kubectl -n {SYSTEM} delete {rng.choice(sorted(found))} --wait=false")

    return act


def secret_lost(name: str) -> Act:
    """Delete a Secret of the certificates: another one is made."""

    def act(site: Site, _: str, __: Random) -> None:
        site.shell(f"kubectl -n {SYSTEM} delete secret {name}")

    return act


def killed(*words: bytes) -> Act:
    """Send SIGKILL to one process of any node whose command line has all these words."""

    def act(site: Site, _: str, rng: Random) -> None:
        every = [pid for each in each_node(site) for pid in processes.pids(real(each).cgroup)]
        lines = {pid: processes.read(pid, "cmdline") for pid in every}
        kill([pid for pid, line in lines.items() if all(word in line for word in words)], rng)

    return act


def daemon_killed(site: Site, _: str, rng: Random) -> None:
    """Send SIGKILL to one of the MPS daemons of any node."""
    served = [processes.serving(real(each).cgroup) for each in each_node(site)]
    kill([pid for node in served for found in node.values() for pid in found], rng)


def kill(found: Sequence[int], rng: Random) -> None:
    """Send SIGKILL to one of these processes."""
    assert found, "no such process runs on a node"
    os.kill(rng.choice(sorted(found)), signal.SIGKILL)


def restarted(*servers: str) -> Act:
    """End servers of the control plane for some seconds."""

    def act(site: Site, _: str, rng: Random) -> None:
        plane = site.bed.plane
        gone = [process for name in servers for process in plane.drop(name, 3)]
        time.sleep(rng.uniform(0, 6))
        plane.again(reversed(gone))

    return act


def kubelet_away(least: float, most: float) -> Act:
    """End a node's kubelet for so many seconds: Kubernetes counts the node's pods as not ready after 50 s."""

    def act(site: Site, _: str, rng: Random) -> None:
        site.node.stop_kubelet()
        time.sleep(rng.uniform(least, most))
        site.node.start_kubelet()

    return act


def containerd_restarted(site: Site, _: str, __: Random) -> None:
    """End containerd and start it again."""
    real(site).restart_containerd()


def namespace_out_and_in(site: Site, namespace: str, rng: Random) -> None:
    """Take a namespace's label away for some seconds."""
    site.shell(f"kubectl label namespace {namespace} {ENABLED}-")
    time.sleep(rng.uniform(1, 6))
    site.shell(f"kubectl label namespace {namespace} {ENABLED}=true")


def webhooks_away(site: Site, _: str, rng: Random) -> bool:
    """Have no webhook for some seconds, and ask the check meanwhile."""
    count = site.shell(f"kubectl -n {SYSTEM} get deployment {WEBHOOK} -o jsonpath='{{.spec.replicas}}'")
    site.shell(f"kubectl -n {SYSTEM} scale deployment {WEBHOOK} --replicas=0")
    try:
        site.shell(f"kubectl -n {SYSTEM} wait pods -l {NAME}={WEBHOOK} --for=delete --timeout=60s", check=False)
        time.sleep(rng.uniform(0, 5))
        return red(site)
    finally:
        site.shell(f"kubectl -n {SYSTEM} scale deployment {WEBHOOK} --replicas={count}")


def enforcer_away(site: Site, _: str, rng: Random) -> bool:
    """Have no enforcer for some seconds, and ask the check meanwhile."""
    with no_enforcer(site):
        time.sleep(rng.uniform(0, 5))
        return red(site)


def red(site: Site) -> bool:
    """Whether ``gpu-share check`` finds something wrong now."""
    return bool(wrong(site, ""))


def wrong(site: Site, wait: str = "--wait 10s") -> tuple[str, ...]:
    """Return what ``gpu-share check`` finds wrong."""
    said = site.shell(f"gpu-share check --cluster --output json {wait} 2>/dev/null || true", seconds=90)
    found = json.loads(said)["checks"] if said.startswith("{") else [NOTHING]
    return tuple(f"{each['description']}: {each['detail']}" for each in found if each["level"] == "wrong")
