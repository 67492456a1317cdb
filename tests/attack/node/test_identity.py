"""An owner of a namespace, who may write the status of its pods, on a real node: it changes no quota and no name.

What a container is called is read from the node: of an app container, of one that restarted, of an init container and a
native sidecar, also by an enforcer that starts while the API server is away.
"""

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from enforcer.attribution.cgroup import container_of
from gpushare import contract
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.e2e import pods
from tests.e2e.site import STATE, Site, restarts
from tests.integration.controlplane.bed import PODS, may
from tests.integration.controlplane.policies.world import Acting
from tests.testbed.cluster.controlplane import RBAC_V1

if TYPE_CHECKING:
    from tests.e2e.pods import Object

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
EVERY: Final = 0.25
OWNER: Final = "olga"
GREEDY: Final = ("hold", "400Mi", "--then", "9Gi", "--after", "10s", "--over-limit")
ABOUT_KILLS: Final = {"OverQuota", "Killed", "BackUnderQuota"}


@pytest.fixture(scope="module", autouse=True)
def victim(site: Site) -> str:
    name = site.namespace("neighbour")
    site.run(name, pods.pod("modest", "hold", "400Mi", memory="512Mi"))
    return name


def owner(site: Site, namespace: str) -> KubeClient:
    """Somebody with the Role ``*`` in a namespace, and nothing elsewhere."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": OWNER}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OWNER}
    for kind, body in (("roles", {"rules": rules}), ("rolebindings", {"roleRef": role, "subjects": [subject]})):
        site.cluster.create(path(RBAC_V1, kind, namespace=namespace), {"metadata": {"name": OWNER}, **body})
    acting = Acting.as_user(site.bed.plane, OWNER)
    site.until("the owner may write status", lambda: may(acting, "patch", "", "pods/status", namespace))
    return acting


@contextmanager
def writing(acting: KubeClient, namespace: str, name: str, container_id: str) -> Iterator[list[int]]:
    """Write another container id into a pod's status, four times a second; ``""``: another one each time."""
    done, written = threading.Event(), [0]
    where = path(CORE_V1, PODS, name, namespace)

    def run() -> None:
        while not done.wait(EVERY):
            statuses = acting.get(where)["status"].get("containerStatuses", [])
            forged = [
                {**each, "containerID": f"containerd://{container_id or secrets.token_hex(32)}"} for each in statuses
            ]
            acting.patch(f"{where}/status", {"status": {"containerStatuses": forged}})
            written[0] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()


def id_of(site: Site, namespace: str, name: str) -> str:
    (status,) = [s for s in site.bed.pod(namespace, name)["status"]["containerStatuses"] if s["name"] == pods.MAIN]
    return str(status["containerID"]).rpartition("/")[2]


def known(site: Site, name: str) -> dict[str, str | None]:
    """The ids that the enforcer knows of a pod's containers."""
    return {row["container"]: row["containerId"] for row in site.status()["containers"] if row["pod"] == name}


def holding(site: Site, name: str) -> list[int]:
    """The processes with which a pod holds GPU memory."""
    rows = [row for row in site.status()["containers"] if row["pod"] == name]
    return [each["pid"] for row in rows for each in row["processes"]]


def enforcers_of(pod_uid: str) -> list[int]:
    """The processes of an enforcer's pod."""
    found = []
    for folder in (each for each in Path("/proc").iterdir() if each.name.isdigit()):
        with suppress(OSError):
            owner = container_of((folder / "cgroup").read_text())
            if owner is not None and owner.pod_uid == pod_uid and b"enforcer" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("whose", ["nobody's", "a neighbour's"])
def test_an_id_in_the_status_saves_no_container_over_its_quota_and_hurts_no_neighbour(
    site: Site, victim: str, whose: str
) -> None:
    namespace = site.namespace("owned", **{contract.GRACE_PERIOD: "2s"})
    acting = owner(site, namespace)
    site.run(namespace, pods.pod("greedy", *GREEDY, memory="512Mi"))
    mine, theirs = id_of(site, namespace, "greedy"), id_of(site, victim, "modest")
    with writing(acting, namespace, "greedy", "" if whose == "nobody's" else theirs) as written:
        site.until(
            "it is killed", lambda: "OUTCOME" in {each["kind"] for each in site.records(namespace, "greedy")}, 60
        )
    assert written[0] > 4, "the status was written all the time"
    killed = site.record(namespace, "greedy", "OUTCOME")
    assert (killed["container"], killed["containerId"]) == (pods.MAIN, mine)
    assert site.records(victim, "modest") == []
    assert not ABOUT_KILLS & site.events(victim, "modest").keys()
    assert set(restarts(site.bed.pod(victim, "modest")).values()) == {0}
    site.drop(namespace, wait=True)


def test_each_kind_of_container_is_known_by_the_node(site: Site) -> None:
    namespace = site.namespace("kinds")
    body = pods.pod("kinds", "hold", "300Mi", memory="512Mi", **{contract.MEMORY_OF + "beside": "512Mi"})
    body["spec"]["initContainers"] = [pods.container("hold", "300Mi", name="beside", restartPolicy="Always")]
    site.run(namespace, body)
    statuses: list[Object] = []

    def agree() -> bool:
        status = site.bed.pod(namespace, "kinds")["status"]
        statuses[:] = [*status["initContainerStatuses"], *status["containerStatuses"]]
        by_kubelet = {each["name"]: each["containerID"].rpartition("/")[2] for each in statuses}
        found = known(site, "kinds")
        return {"beside", pods.MAIN} <= found.keys() and found.items() <= by_kubelet.items()

    site.until("both are known", agree)
    site.end_main(namespace, "kinds")
    site.until("it starts again", lambda: restarts(site.bed.pod(namespace, "kinds"))[pods.MAIN] == 1, 120)
    site.until("the new one is known", agree)
    site.drop(namespace, wait=True)


def test_an_enforcer_that_starts_without_an_api_server_knows_a_container_that_restarted(site: Site) -> None:
    namespace = site.namespace("alone", **{contract.GRACE_PERIOD: "2s"})
    site.run(namespace, pods.pod("alone", "hold", "300Mi", memory="512Mi"))
    before, enforcer = id_of(site, namespace, "alone"), site.enforcer()["metadata"]["uid"]
    site.until("it is known", lambda: known(site, "alone").get(pods.MAIN) == before)
    site.until("it holds memory", lambda: holding(site, "alone") != [])
    with site.no_api_server():
        for pid in (*holding(site, "alone"), *enforcers_of(enforcer)):
            os.kill(pid, signal.SIGKILL)
        (site.on_node(STATE) / "status.json").unlink()
        site.until("an enforcer looks again", (site.on_node(STATE) / "status.json").exists, 120)
        site.until("the new one is known", lambda: known(site, "alone").get(pods.MAIN) not in {None, before}, 120)
    site.until("the kubelet says the same", lambda: id_of(site, namespace, "alone") == known(site, "alone")[pods.MAIN])
    site.drop(namespace, wait=True)
