"""Last of all: ways back from trouble, another version of the images, and the end of the product on this cluster."""

import re
import time

import pytest

from gpushare.kube_client import RESOURCE_V1, path
from tests.e2e import pods, readme
from tests.e2e.site import KUBELET, OPTIONS, SYSTEM, TEAM, Site, restarts
from tests.support.patience import patient
from tests.testbed.cluster import images

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]

KINDS = (
    "all,configmaps,secrets,serviceaccounts,clusterroles,clusterrolebindings,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,mutatingwebhookconfigurations"
)
RESCUED = 30.0
REFUSED = 10.0
UPGRADED = f"--set image.tag={images.UPGRADED} --set simulate.image.tag={images.UPGRADED}"
HELM_TEST = f"helm test gpu-share --namespace {SYSTEM} --timeout=5m"
CHECK = "gpu-share check --cluster --wait 1m"
SERVICE = f"kubectl -n {SYSTEM} patch service gpu-share-webhook --type=json -p"
PORT = '[{"op": "replace", "path": "/spec/ports/0/targetPort", "value": "%s"}]'


def test_the_check_is_green_and_finds_a_service_with_a_wrong_port(site: Site) -> None:
    """The same job ended the installation of this site."""
    site.namespace("checked")
    print(site.shell(CHECK))
    print(site.in_enforcer("gpu-share check --node"))
    site.shell(HELM_TEST)
    site.shell(f"{SERVICE} '{PORT % 'admin'}'")
    try:
        output = site.shell("gpu-share check --cluster && echo green", check=False)
    finally:
        site.shell(f"{SERVICE} '{PORT % 'https'}'")
    assert "ports[0].targetPort is 'admin', but the chart has 'https'" in output, output
    assert "sharing pod: refused" in output, output
    assert "green" not in output
    print(site.shell(CHECK))


def test_a_deleted_webhook_configuration_admits_sharing_pods_half_a_minute_after_the_upgrade(site: Site) -> None:
    namespace = site.namespace("rescued")

    def admitted() -> bool:
        return bool(site.bed.create(namespace, pods.pod("tried", "hold", "1Gi"), dryRun="All"))

    for _ in range(5):
        site.run_block("rescue", readme.NIGHT)
        began = time.monotonic()
        site.until("a sharing pod is admitted", admitted, RESCUED)
        print(f"admitted {time.monotonic() - began:.1f} s after the upgrade")
    site.drop(namespace, wait=True)


def test_an_uninstallation_with_shares_is_refused_at_once_and_the_release_goes_on(site: Site) -> None:
    namespace = site.namespace("staying")
    site.run(namespace, pods.pod("stays", "hold", "1Gi"))
    began = time.monotonic()
    output = site.shell("helm uninstall gpu-share --namespace gpu-share-system", check=False)
    seconds = time.monotonic() - began
    print(f"refused after {seconds:.1f} s:\n{output}")
    assert "nothing was changed" in output
    assert f"{namespace}/stays" in output
    assert seconds < patient(REFUSED)
    revision = re.search(r"helm rollback gpu-share (\d+) ", output)
    assert revision
    assert "STATUS: deployed" in site.run_block("refused", readme.NIGHT, REVISION=revision[1])
    site.shell("helm upgrade gpu-share deploy/helm/gpu-share --namespace gpu-share-system --reuse-values")
    site.run(namespace, pods.pod("next", "hold", "1Gi"))
    site.drop(namespace, wait=True)


def test_the_commands_of_the_documents_work(site: Site) -> None:
    namespace = site.namespace("night")
    site.run(namespace, pods.pod("awake", "hold", "1Gi"))
    for document, block in readme.everywhere():
        if block not in readme.ELSEWHERE:
            print(site.run_block(block, document, TEAM=namespace, POD="awake"))
            site.until("the enforcer is ready", site.enforcer_ready, 120)
    assert set(restarts(site.running(namespace, "awake")).values()) == {0}
    site.drop(namespace, wait=True)


def test_an_upgrade_to_another_image_restarts_no_tenant(site: Site) -> None:
    namespace = site.namespace("upgraded")
    site.run(namespace, pods.pod("tenant", "hold", "1Gi"))
    old = site.enforcer()["metadata"]["uid"]
    for target in images.targets():
        site.node.load_image(images.image(target, images.UPGRADED))
    site.shell(
        f"kubectl -n {SYSTEM} set image deployment/gpu-share-webhook webhook=gpu-share:{images.UPGRADED} &&"
        f" kubectl -n {SYSTEM} rollout status deployment/gpu-share-webhook --timeout=3m"
    )
    site.run(namespace, pods.pod("between", "hold", "1Gi"))  # a newer webhook beside this enforcer
    assert site.enforcer()["metadata"]["uid"] == old
    print(site.shell(CHECK))
    print(site.run_block("upgrade", readme.UPGRADES, OPTIONS=f"{OPTIONS} {UPGRADED}"))
    site.until(
        "the new enforcer is ready", lambda: site.enforcer_ready() and site.enforcer()["metadata"]["uid"] != old, 120
    )
    assert site.enforcer()["spec"]["containers"][0]["image"].endswith(":upgraded")
    assert set(restarts(site.running(namespace, "tenant")).values()) == {0}
    site.run(namespace, pods.pod("newer", "hold", "1Gi"))
    site.drop(namespace, wait=True)


def test_after_uninstalling_nothing_is_left_and_namespaces_create_pods(site: Site) -> None:
    namespace = site.namespace("goodbye")
    site.run(namespace, pods.pod("last", "hold", "1Gi"))
    site.delete(namespace, "last")
    if site.find_pod(TEAM, "share") is None:  # an earlier test has drained the node of it
        site.shell(f"kubectl delete namespace {TEAM} --ignore-not-found --wait")
        site.run_block("verify")
    print(site.run_block("uninstall"))
    assert site.devices() == {}
    for kind in ("deviceclasses", "resourceslices"):
        found = site.cluster.list(path(RESOURCE_V1, kind))[0]
        assert [each["metadata"]["name"] for each in found if "gpu-share" in str(each)] == []
    templates = site.cluster.list(path(RESOURCE_V1, "resourceclaimtemplates"))[0]
    assert [each["metadata"]["name"] for each in templates] == []
    assert site.leftovers() == []
    assert not list((site.on_node(KUBELET) / "plugins_registry").glob("gpu-share*"))
    everything = site.shell(f"kubectl get {KINDS} --all-namespaces --output name")
    assert [line for line in everything.splitlines() if "gpu-share" in line and SYSTEM not in line] == []
    body = pods.pod("plain", memory="1Gi")
    body["spec"]["containers"] = [pods.idle("main")]
    site.create(namespace, body)  # nobody is left to rewrite it, and nothing stands in its way
    site.running(namespace, "plain")
