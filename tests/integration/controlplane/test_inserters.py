"""Another webhook inserts a container of its own before or after ours: the share stays with the tenant's container."""

from collections.abc import Callable

import pytest

from gpushare.contract import CLAIM, DEFAULT_CONTAINER, MEMORY_MIB, NO_NVIDIA_DEVICE, NVIDIA_VISIBLE_DEVICES
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed, template_name
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.second_webhook import IF_NEEDED, second_webhook

pytestmark = pytest.mark.controlplane


def _missing(pod: Object, name: str) -> bool:
    spec = pod["spec"]
    return all(each["name"] != name for each in (*spec["containers"], *spec.get("initContainers", [])))


def gcsfuse(pod: Object) -> Object:
    """GKE's Cloud Storage FUSE without native sidecars: index 0, beside a volume that it mounts."""
    if _missing(pod, "gke-gcsfuse-sidecar"):
        mounts = [{"name": "gke-gcsfuse-tmp", "mountPath": "/gcsfuse-tmp"}]
        sidecar = {"name": "gke-gcsfuse-sidecar", "image": "example.invalid/gcsfuse:1", "volumeMounts": mounts}
        pod["spec"]["containers"].insert(0, sidecar)
        pod["spec"].setdefault("volumes", []).append({"name": "gke-gcsfuse-tmp", "emptyDir": {}})
    return pod


def app_mesh(pod: Object) -> Object:
    """AWS App Mesh: Envoy before the containers, its init container after the others."""
    if _missing(pod, "envoy"):
        pod["spec"]["containers"] = [{"name": "envoy", "image": "example.invalid/envoy:1"}, *pod["spec"]["containers"]]
        init = {"name": "proxyinit", "image": "example.invalid/init:1"}
        pod["spec"].setdefault("initContainers", []).append(init)
    return pod


def linkerd(pod: Object) -> Object:
    """Linkerd with ``proxy.await`` and without native sidecars."""
    if _missing(pod, "linkerd-proxy"):
        pod["spec"]["containers"].insert(0, {"name": "linkerd-proxy", "image": "example.invalid/linkerd:1"})
        init = {"name": "linkerd-init", "image": "example.invalid/init:1"}
        pod["spec"].setdefault("initContainers", []).append(init)
    return pod


def fluid(pod: Object) -> Object:
    """Fluid without native sidecars: a container for each data set, numbered, and an init container first."""
    if _missing(pod, "fluid-fuse-0"):
        pod["spec"]["containers"].insert(0, {"name": "fluid-fuse-0", "image": "example.invalid/fuse:1"})
        pod["spec"].setdefault("initContainers", []).insert(0, {"name": "init-fluid-fuse-0", "image": "a"})
    return pod


def consul(pod: Object) -> Object:
    """Consul with a life cycle of its proxies: they come first, one for each service."""
    if _missing(pod, "consul-dataplane-web"):
        pod["spec"]["containers"].insert(0, {"name": "consul-dataplane-web", "image": "example.invalid/dataplane:1"})
    return pod


def unknown(pod: Object) -> Object:
    """A sidecar that no list knows."""
    if _missing(pod, "in-house"):
        pod["spec"]["containers"].insert(0, {"name": "in-house", "image": "example.invalid/in-house:1"})
    return pod


def shares(pod: Object) -> dict[str, str]:
    """Containers that use our claim, with the MiB that they may use."""
    found = {}
    for each in pod["spec"]["containers"]:
        if any(claim["name"] == CLAIM for claim in each["resources"].get("claims", [])):
            found[each["name"]] = next(entry["value"] for entry in each["env"] if entry["name"] == MEMORY_MIB)
    return found


def hidden(pod: Object) -> set[str]:
    """Containers that see no GPU before the driver gives them one."""
    wanted = {"name": NVIDIA_VISIBLE_DEVICES, "value": NO_NVIDIA_DEVICE}
    spec = pod["spec"]
    return {each["name"] for each in (*spec["containers"], *spec["initContainers"]) if wanted in each.get("env", [])}


def every(pod: Object) -> set[str]:
    return {each["name"] for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])}


@pytest.mark.parametrize("name", ["a-before", "z-after"])
@pytest.mark.parametrize("insert", [gcsfuse, app_mesh, linkerd, fluid, consul])
def test_a_container_inserted_first_never_takes_the_share(
    bed: Bed, insert: Callable[[Object], Object], name: str
) -> None:
    namespace = bed.namespace("mesh")
    plain = bed.create(namespace, objects.pod("plain", "1Gi"))
    with second_webhook(bed.cluster, name, insert, namespaces=[namespace], reinvocation=IF_NEEDED) as other:
        made = bed.create(namespace, objects.pod("a", "1Gi"))
    assert other.seen
    assert not other.failures
    assert made["spec"]["containers"][0]["name"] != "main", "it was inserted"
    assert shares(made) == {"main": "1024"}
    assert hidden(made) == every(made)
    assert made["metadata"]["annotations"][DEFAULT_CONTAINER] == "main"
    assert template_name(made) == template_name(plain)


@pytest.mark.parametrize("insert", [gcsfuse, unknown])
def test_several_shares_stay_where_they_are_when_a_container_is_inserted_later(
    bed: Bed, insert: Callable[[Object], Object]
) -> None:
    namespace = bed.namespace("mesh")
    body = objects.pod("a", "1Gi", **{"memory.gpu-share.io/worker": "512Mi"})
    body["spec"]["containers"].append({"name": "worker", "image": "example.invalid/app:1"})
    with second_webhook(bed.cluster, "z-after", insert, namespaces=[namespace]):
        made = bed.create(namespace, body)
    assert len(made["spec"]["containers"]) == 3
    assert shares(made) == {"main": "1024", "worker": "512"}


def test_what_a_mesh_writes_as_default_container_stays(bed: Bed) -> None:
    def istio(pod: Object) -> Object:
        if _missing(pod, "istio-proxy"):
            pod["metadata"].setdefault("annotations", {}).setdefault(DEFAULT_CONTAINER, "main")
            pod["spec"]["containers"].append({"name": "istio-proxy", "image": "example.invalid/istio:1"})
        return pod

    for name in ("a-before", "z-after"):
        namespace = bed.namespace("mesh")
        with second_webhook(bed.cluster, name, istio, namespaces=[namespace], reinvocation=IF_NEEDED):
            made = bed.create(namespace, objects.pod("a", "1Gi"))
        assert shares(made) == {"main": "1024"}
        assert made["metadata"]["annotations"][DEFAULT_CONTAINER] == "main"
