"""What the last word refuses by itself: with the webhook stopped, set to Ignore, or followed by another one."""

from collections.abc import Callable

import pytest

from gpushare.contract import COMPUTE, GPUS, MANAGED_LABEL, MEMORY_LIMIT, MIRROR
from gpushare.kube_client import ADMISSION_V1, path
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import (
    Acting,
    World,
    rewritten,
    share,
    two_containers,
    until,
)

pytestmark = pytest.mark.controlplane

# The manifests themselves


def test_every_shipped_document_is_accepted_to_the_letter(world: World) -> None:
    for item in manifests.load():
        manifests.apply(world.cluster, [item], dryRun="All", fieldValidation="Strict")


def test_no_policy_has_a_type_warning(world: World) -> None:
    where = path(ADMISSION_V1, "validatingadmissionpolicies")
    shipped = [each for each in manifests.load() if each["kind"] == "ValidatingAdmissionPolicy"]

    def checked() -> list[Object]:
        return [p for p in world.cluster.get(where)["items"] if p.get("status", {}).get("observedGeneration")]

    until("the policies are type-checked", lambda: len(checked()) == len(shipped))
    assert [p["metadata"]["name"] for p in checked() if p["status"]["typeChecking"] != {}] == []


# The last word on a sharing pod


def borrowing(**more: str) -> Object:
    """Of a container that may hold more than it reserves."""
    pod = share()
    pod["metadata"]["annotations"] |= {MEMORY_LIMIT: "12Gi", **more}
    return pod


def several(count: str) -> Object:
    """Of so many GPUs."""
    pod = share()
    pod["metadata"]["annotations"] |= {GPUS: count, COMPUTE: "25%"}
    return pod


SHAPES: dict[str, Callable[[], Object]] = {
    "one container": share,
    "idle and init containers": two_containers,
    "a native sidecar of its own": lambda: share(
        initContainers=[{"name": "proxy", "image": "p", "restartPolicy": "Always"}]
    ),
    "its own lower thread percentage": lambda: share(
        containers=[
            {"name": "main", "image": "a", "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "5"}]}
        ]
    ),
    "variables from elsewhere": lambda: share(
        containers=[{"name": "main", "image": "a", "envFrom": [{"configMapRef": {"name": "c"}}]}]
    ),
    "a share of each of three GPUs": lambda: several("3"),
    "a limit above the reservation": borrowing,
    "such a limit on each of two GPUs": lambda: borrowing(**{GPUS: "2"}),
    "another claim beside": lambda: share(resourceClaims=[{"name": "net", "resourceClaimName": "net"}]),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_rewritten_pod_passes(world: World, shape: Callable[[], Object]) -> None:
    assert world.refused(rewritten(shape())) == ""


@pytest.mark.parametrize(
    "shape",
    [shape for name, shape in SHAPES.items() if name != "another claim beside"],
    ids=[name for name in SHAPES if name != "another claim beside"],
)
def test_a_pod_that_was_not_rewritten_is_refused(world: World, shape: Callable[[], Object]) -> None:
    assert "was not rewritten by the gpu-share webhook" in world.refused(shape(), world.tenant)


def test_another_s_sidecar_in_front_of_ours_passes(world: World) -> None:
    pod = rewritten(share())
    mesh = {"name": "mesh", "image": "m", "restartPolicy": "Always", "env": pod["spec"]["initContainers"][0]["env"]}
    pod["spec"]["initContainers"].insert(0, mesh)
    assert world.refused(pod) == ""


def env(pod: Object, container: int = 0, section: str = "containers") -> list[dict[str, object]]:
    found: list[dict[str, object]] = pod["spec"][section][container]["env"]
    return found


def setting(name: str, value: str, container: int = 0, section: str = "containers") -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        entry = next(e for e in env(pod, container, section) if e["name"] == name)
        entry["value"] = value

    return change


def adding(name: str, value: str, container: int = 0) -> Callable[[Object], None]:
    return lambda pod: env(pod, container).append({"name": name, "value": value})


def from_elsewhere(name: str) -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        entry = next(e for e in env(pod) if e["name"] == name)
        del entry["value"]
        entry["valueFrom"] = {"fieldRef": {"fieldPath": "metadata.name"}}

    return change


def dropping(name: str, container: int = 0) -> Callable[[Object], None]:
    return lambda pod: env(pod, container).remove(next(e for e in env(pod, container) if e["name"] == name))


def on_spec(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"].update(fields)


def on_sidecar(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["initContainers"][0].update(fields)


def on_sidecars_security(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["initContainers"][0]["securityContext"].update(fields)


def host_path(where: str) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "d", "hostPath": {"path": where}})


def without_label(pod: Object) -> None:
    del pod["metadata"]["labels"][MANAGED_LABEL]


def another_template(pod: Object) -> None:
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpu-share-mine"


def without_sidecar(pod: Object) -> None:
    pod["spec"]["initContainers"] = [c for c in pod["spec"]["initContainers"] if c["name"] != "gpu-share"]


HIDDEN = "every container has CUDA_VISIBLE_DEVICES empty"
LIMITS = "limits of a sharing container"
SIDE = "the sidecar gpu-share is missing"
ROADS = "each bypasses its limit"
REWRITE = "was not rewritten"
UNDONE: dict[str, tuple[Callable[[Object], None], str]] = {
    "sees all GPUs": (setting("NVIDIA_VISIBLE_DEVICES", "all"), HIDDEN),
    "sees a GPU": (setting("CUDA_VISIBLE_DEVICES", "0"), HIDDEN),
    "sees a GPU in the idle container": (setting("NVIDIA_VISIBLE_DEVICES", "all", 1), HIDDEN),
    "sees a GPU in the init container": (setting("CUDA_VISIBLE_DEVICES", "0", 1, "initContainers"), HIDDEN),
    "sees a GPU in the sidecar": (setting("NVIDIA_VISIBLE_DEVICES", "all", 0, "initContainers"), HIDDEN),
    "hidden twice": (adding("CUDA_VISIBLE_DEVICES", ""), HIDDEN),
    "hidden from elsewhere": (from_elsewhere("CUDA_VISIBLE_DEVICES"), HIDDEN),
    "not hidden": (dropping("NVIDIA_VISIBLE_DEVICES", 1), HIDDEN),
    "a higher limit": (setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8192M"), LIMITS),
    "a limit for a GPU it does not see": (setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M,1=4G"), LIMITS),
    "a second limit": (adding("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8192M"), LIMITS),
    "no limit": (dropping("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), LIMITS),
    "a limit from elsewhere": (from_elsewhere("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), LIMITS),
    "another daemon": (setting("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), LIMITS),
    "another log": (setting("CUDA_MPS_LOG_DIRECTORY", "/tmp"), LIMITS),
    "memory that is not a number": (setting("GPU_SHARE_MEMORY_MIB", "4Gi"), LIMITS),
    "more GPUs than limits": (adding("GPU_SHARE_GPUS", "2"), LIMITS),
    "a template that is not ours": (another_template, REWRITE),
    "no claim": (on_spec(resourceClaims=[], initContainers=[], containers=[{"name": "main", "image": "a"}]), REWRITE),
    "no label": (without_label, REWRITE),
    "no sidecar": (without_sidecar, SIDE),
    "a privileged sidecar": (on_sidecars_security(privileged=True, allowPrivilegeEscalation=True), SIDE),
    "a sidecar as root": (on_sidecars_security(runAsNonRoot=False), SIDE),
    "a sidecar of user 0": (on_sidecars_security(runAsUser=0), SIDE),
    "a sidecar without a user": (on_sidecars_security(runAsUser=None), SIDE),
    "a sidecar with a writable root": (on_sidecars_security(readOnlyRootFilesystem=False), SIDE),
    "a sidecar with a share": (on_sidecar(resources={"claims": [{"name": "gpu-share", "request": "main"}]}), SIDE),
    "a sidecar with all requests": (on_sidecar(resources={"claims": [{"name": "gpu-share"}]}), SIDE),
    "a sidecar with capabilities": (on_sidecars_security(capabilities={"drop": ["ALL"], "add": ["KILL"]}), SIDE),
    "a sidecar that drops nothing": (on_sidecars_security(capabilities={}), SIDE),
    "hostPID": (on_spec(hostPID=True), ROADS),
    "hostIPC": (on_spec(hostIPC=True), ROADS),
    "shareProcessNamespace": (on_spec(shareProcessNamespace=True), ROADS),
    "a device": (host_path("/dev/nvidia0"), ROADS),
    "a device, oddly written": (host_path("//dev/.//nvidiactl"), ROADS),
    "all devices": (host_path("/dev/"), ROADS),
    "privileged": (lambda pod: pod["spec"]["containers"][1].update(securityContext={"privileged": True}), ROADS),
}


@pytest.mark.parametrize(("change", "why"), UNDONE.values(), ids=UNDONE.keys())
def test_what_a_later_webhook_undoes_is_refused(world: World, change: Callable[[Object], None], why: str) -> None:
    pod = rewritten(two_containers())
    change(pod)
    assert why in world.refused(pod)


UNDONE_OF_TWO: dict[str, Callable[[Object], None]] = {
    "the limit of one": setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M"),
    "a higher limit": setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8192M,1=8192M"),
    "a second limit": adding("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M,1=4096M"),
    "one GPU": setting("GPU_SHARE_GPUS", "1"),
    "a number written oddly": setting("GPU_SHARE_GPUS", "02"),
    "more than a node has": setting("GPU_SHARE_GPUS", "17"),
    "a second number": adding("GPU_SHARE_GPUS", "2"),
    "no number": dropping("GPU_SHARE_GPUS"),
    "a number from elsewhere": from_elsewhere("GPU_SHARE_GPUS"),
}


@pytest.mark.parametrize("change", UNDONE_OF_TWO.values(), ids=UNDONE_OF_TWO.keys())
def test_the_limit_of_two_gpus_is_not_undone_either(world: World, change: Callable[[Object], None]) -> None:
    pod = rewritten(several("2"))
    assert world.refused(pod) == ""
    change(pod)
    assert LIMITS in world.refused(pod)


@pytest.mark.parametrize("where", ["/dev/shm", "/devices", "/data/dev/nvidia", "/var/lib/nvidia"])
def test_other_directories_of_the_node_are_not_ours_to_refuse(world: World, where: str) -> None:
    pod = rewritten(share())
    host_path(where)(pod)
    assert world.refused(pod) == ""


def test_pods_that_ask_for_nothing_and_other_namespaces_are_left_alone(world: World) -> None:
    plain = objects.pod("plain")
    plain["spec"]["hostPID"] = True
    assert world.refused(plain) == ""
    elsewhere = world.make_namespace()
    world.cluster.create(world.pods(namespace=elsewhere), share(), dryRun="All")


def test_the_managed_label_cannot_be_forged(world: World) -> None:
    forged = objects.pod("forged")
    forged["metadata"]["labels"] = {MANAGED_LABEL: "true"}
    assert "only gpu-share sets gpu-share.io/managed" in world.refused(forged, world.tenant)


def test_a_pod_with_a_claim_of_its_own_is_left_as_it_is(world: World) -> None:
    own = share(resourceClaims=[{"name": "mine", "resourceClaimName": "mine"}])
    assert world.refused(own) == ""


def test_only_the_kubelet_of_its_node_may_say_that_a_pod_is_a_mirror(world: World) -> None:
    mirror = share(nodeName="node-a")
    mirror["metadata"]["annotations"][MIRROR] = "x"
    assert REWRITE in world.refused(mirror, world.tenant)
    assert REWRITE in world.refused(mirror, Acting.as_user(world.plane, "system:node:node-b", group="system:masters"))
    assert world.refused(mirror, Acting.as_user(world.plane, "system:node:node-a", group="system:masters")) == ""


def test_the_largest_pods_do_not_exhaust_the_policies_budget(world: World) -> None:
    many = [{"name": f"V{n}", "value": "x"} for n in range(1000)]
    pod = share(containers=[{"name": f"c{n}", "image": "a", "env": many} for n in range(31)])
    assert world.refused(rewritten(pod)) == ""
    annotations = {f"memory.gpu-share.io/c{n}": "1Gi" for n in range(31)}
    pod["metadata"]["annotations"] = annotations
    assert world.refused(rewritten(pod)) == ""
