"""Quotas changed while containers run: who may, what it is judged by, and what its next start finds."""

import json

import pytest

from gpushare import contract
from gpushare.kube_client import path
from tests.e2e import pods
from tests.e2e.site import Site, restarts
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
WAITING = "until [ -e /tmp/go ]; do sleep 0.2; done; exec gpu-share-tenant hold 2900Mi --over-limit"
"""Takes its memory when it is told to, in a process that MPS's limit of then does not bind."""


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("resizing", **{contract.GRACE_PERIOD: "1s"})


@pytest.fixture(scope="module")
def elastic(site: Site, namespace: str) -> str:
    """A pod of 2 GiB that holds one."""
    site.run(namespace, pods.pod("elastic", "hold", "1Gi"))
    return "elastic"


def resize(site: Site, *arguments: str, tenant: bool = False) -> str:
    """What the command prints, refusals included."""
    who = f" --kubeconfig {site.bed.plane.kubeconfig(TENANT)}" if tenant else ""
    return " ".join(site.shell(f"gpu-share resize {' '.join(arguments)}{who} 2>&1; echo exit=$?", check=False).split())


def quota(site: Site, namespace: str, pod: str, container: str = pods.MAIN) -> tuple[int, int, str]:
    """Quota and use in MiB of a container, and how it stands, as the enforcer has it."""
    (found,) = [
        (each["quotaMib"], each["usedMib"], each["state"])
        for each in site.status()["containers"]
        if (each["namespace"], each["pod"], each["container"]) == (namespace, pod, container)
    ]
    return found


def limits(site: Site, namespace: str, pod: str) -> tuple[str, str]:
    """What its first process was started with."""
    env = site.environ(namespace, pod)
    return env[contract.MPS_MEMORY_LIMIT], env[contract.MEMORY_MIB]


def started_again(site: Site, namespace: str, pod: str) -> None:
    before = restarts(site.bed.pod(namespace, pod))[pods.MAIN]
    site.end_main(namespace, pod)
    site.until("its container is started again", lambda: restarts(site.bed.pod(namespace, pod))[pods.MAIN] > before)
    site.running(namespace, pod)


def test_a_tenant_without_the_right_is_refused(site: Site, namespace: str, elastic: str) -> None:
    output = resize(site, f"{namespace}/{elastic}", "main", "1536Mi", tenant=True)
    assert "a ClusterRoleBinding to the ClusterRole gpu-share-resize" in output
    assert output.endswith("exit=1")
    assert quota(site, namespace, elastic)[0] == 2048
    dry = resize(site, f"{namespace}/{elastic}", "main", "1536Mi", "--dry-run", tenant=True)
    assert "ClusterRole gpu-share-resize" in dry


def test_with_the_role_a_tenant_lowers_its_own_quota(site: Site, namespace: str, elastic: str) -> None:
    rule = {
        "apiGroups": ["gpu-share.io"],
        "resources": ["podresizes"],
        "resourceNames": [namespace],
        "verbs": ["update"],
    }
    site.cluster.create(path(RBAC_V1, "clusterroles"), {"metadata": {"name": "resize-here"}, "rules": [rule]})
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}
    for name, where in (
        ("gpu-share-resize", path(RBAC_V1, "rolebindings", namespace=namespace)),
        ("resize-here", path(RBAC_V1, "clusterrolebindings")),
    ):
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        site.cluster.create(where, {"metadata": {"name": "resize"}, "roleRef": role, "subjects": [subject]})
    where = f"{namespace}/{elastic}"
    site.until("the role works", lambda: "exit=0" in resize(site, where, "main", "1536Mi", "--dry-run", tenant=True))
    output = resize(site, "-n", namespace, elastic, "main", "1536Mi", tenant=True)
    assert f"{where} main: 2Gi -> 1536Mi (reserved 2Gi)" in output
    assert "until the container restarts" in output
    site.until("the new quota holds", lambda: quota(site, namespace, elastic)[0] == 1536, 5)
    assert limits(site, namespace, elastic) == ("0=2048M", "2048"), "a process that runs keeps what it began with"
    assert "1536Mi, no cap (2Gi reserved)" in site.shell(f"gpu-share explain {where}", check=False)
    site.until("an Event says so", lambda: "is now 1536Mi" in site.events(namespace, elastic).get("Resized", ""))
    site.until("the sidecar logs it", lambda: "is now 1536Mi" in site.logs(namespace, elastic))


def test_the_next_start_finds_the_new_limit(site: Site, namespace: str, elastic: str) -> None:
    started_again(site, namespace, elastic)
    assert limits(site, namespace, elastic) == ("0=1536M", "1536")


def test_it_is_raised_again_as_far_as_was_reserved_and_no_further(site: Site, namespace: str, elastic: str) -> None:
    where = f"{namespace}/{elastic}"
    refused = resize(site, where, "main", "3Gi")
    assert "keeps 1536Mi: 3Gi exceeds the reservation: the pod has 2Gi of the GPU" in refused
    assert refused.endswith("exit=1")
    found = json.loads(site.shell(f"gpu-share resize {where} main 2Gi -o json"))
    assert (found["done"], found["beforeMiB"], found["afterMiB"], found["effect"]) == (
        True,
        1536,
        2048,
        "at next start",
    )
    site.until("the new quota holds", lambda: quota(site, namespace, elastic)[0] == 2048, 5)
    started_again(site, namespace, elastic)
    assert limits(site, namespace, elastic) == ("0=2048M", "2048")


def test_an_enforcer_that_starts_afresh_keeps_it(site: Site, namespace: str, elastic: str) -> None:
    resize(site, f"{namespace}/{elastic}", "main", "1280Mi")
    site.remove("gpu-share-system", site.enforcer()["metadata"]["name"])
    site.until("there is no enforcer or another", lambda: not site.enforcer_ready())
    site.until("the enforcer is back", site.enforcer_ready)
    assert quota(site, namespace, elastic)[0] == 1280
    started_again(site, namespace, elastic)
    assert limits(site, namespace, elastic) == ("0=1280M", "1280")
    assert "answered" not in resize(site, f"{namespace}/{elastic}", "main", "2Gi"), "and a new request is answered"


def test_what_one_container_gives_another_may_hold(site: Site, namespace: str) -> None:
    body = pods.pod("pair", **{f"{contract.MEMORY_OF}aux": "2Gi"})
    main = {**pods.container(), "command": ["sh", "-c", WAITING]}
    body["spec"]["containers"] = [main, pods.container("hold", "512Mi", name="aux")]
    site.run(namespace, body)
    where = f"{namespace}/pair"
    assert "(others: aux 2Gi); container main can have at most 2Gi" in resize(site, where, "main", "3Gi")
    assert "aux: 2Gi -> 1Gi" in resize(site, where, "aux", "1Gi")
    assert "main: 2Gi -> 3Gi" in resize(site, where, "main", "3Gi")
    site.exec(namespace, "pair", "touch", "/tmp/go")
    site.until("it holds what it gained", lambda: quota(site, namespace, "pair")[1] == 2900)
    assert quota(site, namespace, "pair") == (3072, 2900, "Within"), "with 2 GiB it would be over"
    assert "3Gi, no cap (4Gi reserved)" in site.shell(f"gpu-share explain {where}", check=False)


def test_below_what_it_holds_it_wants_force_and_is_then_ended(site: Site, namespace: str) -> None:
    where = f"{namespace}/pair"
    refused = resize(site, where, "main", "2Gi")
    assert "container main holds 2900 MiB now: with a quota of 2Gi it would be over quota" in refused
    assert restarts(site.bed.pod(namespace, "pair"))[pods.MAIN] == 0
    assert "main: 3Gi -> 2Gi" in resize(site, where, "main", "2Gi", "--force")
    site.until("it is ended", lambda: "of its 2048 MiB" in site.events(namespace, "pair").get("Killed", ""))
    site.until("it is started again", lambda: restarts(site.bed.pod(namespace, "pair"))[pods.MAIN] == 1)
    assert restarts(site.bed.pod(namespace, "pair"))["aux"] == 0


def test_afterwards_they_go(site: Site, namespace: str) -> None:
    site.drop(namespace, wait=True)
    site.until("nothing is left", lambda: site.leftovers() == [])
