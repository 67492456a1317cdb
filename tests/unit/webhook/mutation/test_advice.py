"""All problems are reported at once: who follows each of them to the letter needs no second attempt."""

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.errors import MAX_PROBLEMS, PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from tests.unit.webhook.mutation import adviser
from tests.unit.webhook.mutation.test_corpus import real_pods
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
STRICT: Final = Settings(root_tenants="refuse", max_memory_mib=81920, several_gpus="refuse")
POLICY: Final = NamespacePolicy(max_memory_mib=40960, max_compute=50, host_paths=("/data",))
POD: Final[Json] = yaml.safe_load(
    """
metadata:
  annotations: {gpu-share.io/memory: 4Gi, memory.gpu-share.io/warm: 1Gi}
spec:
  securityContext: {runAsUser: 1000, runAsNonRoot: true}
  volumes:
  - {name: models, hostPath: {path: /data/models}}
  - {name: scratch, emptyDir: {}}
  initContainers:
  - {name: warm, image: a, volumeMounts: [{name: models, mountPath: /models}]}
  containers:
  - name: model
    image: a
    env: [{name: A, value: b}]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: models, mountPath: /models}]
  - {name: helper, image: a}
"""
)


def annotation(key: str, value: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["metadata"]["annotations"].update({key: value})


def field(**fields: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["spec"].update(copy.deepcopy(fields))


def container(index: int, key: str, value: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["spec"]["containers"][index].update({key: copy.deepcopy(value)})


def init(key: str, value: Any) -> Callable[[Json], Any]:
    return lambda pod: pod["spec"]["initContainers"][0].update({key: copy.deepcopy(value)})


def host_path(path: str, index: int) -> Callable[[Json], Any]:
    return lambda pod: pod["spec"]["volumes"].__setitem__(
        index, {"name": pod["spec"]["volumes"][index]["name"], "hostPath": {"path": path}}
    )


def toolkit_mount(pod: Json) -> None:
    mount = {"name": "scratch", "mountPath": "/var/run/nvidia-container-devices/all"}
    pod["spec"]["containers"][0]["volumeMounts"].insert(0, mount)


def reserved_volume(pod: Json) -> None:
    pod["spec"]["volumes"].append({"name": contract.NO_TOKEN_VOLUME, "hostPath": {"path": "/data"}})
    mount = {"name": contract.NO_TOKEN_VOLUME, "mountPath": "/here"}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)


def propagating(pod: Json) -> None:
    """What a driver of a file system has: the API server takes it of privileged containers alone."""
    main = pod["spec"]["containers"][0]
    main["securityContext"] = {"privileged": True}
    main["volumeMounts"][0]["mountPropagation"] = "Bidirectional"


def changed_sidecar(pod: Json) -> None:
    """Add what another webhook may have made of a sidecar of another release."""
    context = {"privileged": True, "runAsUser": 0, "capabilities": {"add": ["ALL"]}}
    sidecar = {"name": contract.SIDECAR, "image": STRICT.image, "command": ["sh"], "securityContext": context}
    pod["spec"]["initContainers"].append(sidecar)


WHOLE: Final = {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}, "requests": {"nvidia.com/gpu": "2"}}
DEFECTS: Final[list[Callable[[Json], Any]]] = [
    field(hostPID=True),
    field(hostIPC=True),
    field(hostNetwork=True),
    field(shareProcessNamespace=True),
    field(nodeName="gpu-7"),
    field(securityContext={"runAsUser": 0, "runAsNonRoot": False}),
    field(resourceClaims=[{"name": contract.CLAIM, "resourceClaimTemplateName": "mine"}]),
    host_path("/dev", 0),
    host_path("/elsewhere", 1),
    toolkit_mount,
    propagating,
    reserved_volume,
    container(0, "securityContext", {"privileged": True, "runAsUser": 0, "capabilities": {"add": ["A", "ALL", "BPF"]}}),
    container(1, "securityContext", {"privileged": True, "runAsUser": 0}),
    container(0, "resources", WHOLE),
    container(1, "resources", {**WHOLE, "claims": [{"name": contract.CLAIM, "request": "model"}]}),
    container(0, "env", [{"name": contract.MPS_PIPE_DIRECTORY, "value": "/mine"}, {"name": 7}, {"name": "B"}]),
    container(1, "name", ""),
    init("resources", {"limits": {"nvidia.com/mig-1g.10gb": 1}}),
    init("securityContext", {"runAsNonRoot": False}),
    lambda pod: pod["spec"]["initContainers"].append({"name": contract.SIDECAR, "image": "mine"}),
    changed_sidecar,
    annotation("cdi.k8s.io/device", "all"),
    annotation(contract.MEMORY, "4GB"),
    annotation(contract.MEMORY, "100Gi"),
    annotation(contract.MEMORY_OF + "warm", "60Gi"),
    annotation(contract.MEMORY_OF + "warm", "1Mi"),
    annotation(contract.COMPUTE, "200%"),
    annotation(contract.COMPUTE, "60%"),
    annotation(contract.COMPUTE_OF + "helper", "20%"),
    annotation(contract.MEMORY_OF + "modle", "2XB"),
    annotation(contract.MEMORY_OF + "unheard", "2Gi"),
    annotation("gpu-share.io/memroy", "1Gi"),
    annotation("gpu-share.io/max-memory", "1Gi"),
    annotation("gpu-share.io/no-such-thing-at-all", "1Gi"),
    annotation(contract.RESIZE_OF + "model", "1Gi"),
    annotation(contract.GPU_MODEL, "H100,"),
    annotation(contract.SAME_GPU, "maybe"),
    annotation(contract.SAME_GPU, "true"),
    annotation(contract.GPUS, "2"),
    annotation(contract.GPUS, "many"),
    annotation(contract.MIG_PROFILE_OF + "helper", "9x.10"),
    annotation(contract.MIG_PROFILE_OF + "model", "1g.10gb"),
]


def attempts(pod: Json, settings: Settings, policy: NamespacePolicy) -> list[PolicyDenied]:
    """Return how a pod is refused, and how the pod is refused that follows all advice."""
    refusals: list[PolicyDenied] = []
    for _ in range(2):
        try:
            mutate_pod(pod, policy=policy, settings=settings)
        except PolicyDenied as error:
            refusals.append(error)
            pod = adviser.follow(pod, error.problems)
            assert (adviser.dangling(pod), adviser.propagating(pod)) == ([], [])
    return refusals


def made(defects: list[int]) -> Json:
    pod = copy.deepcopy(POD)
    for index in defects:
        DEFECTS[index](pod)
    return pod


def test_the_pod_without_defects_is_admitted() -> None:
    assert attempts(POD, STRICT, POLICY) == []


@pytest.mark.parametrize("index", range(len(DEFECTS)))
def test_one_defect_needs_one_attempt(index: int) -> None:
    refusals = attempts(made([index]), STRICT, POLICY)
    assert len(refusals) <= 1, refusals[1].message


@given(st.lists(st.integers(0, len(DEFECTS) - 1), min_size=2, max_size=8, unique=True))
def test_several_defects_need_one_attempt_as_well(defects: list[int]) -> None:
    refusals = attempts(made(defects), STRICT, POLICY)
    if refusals and refusals[0].complete:
        assert len(refusals) == 1, (refusals[0].message, refusals[1].message)


@pytest.mark.parametrize("settings", [Settings(), STRICT], ids=["default", "strict"])
@pytest.mark.parametrize("policy", [NamespacePolicy(), POLICY], ids=["no policy", "policy"])
def test_no_real_pod_needs_a_second_attempt(settings: Settings, policy: NamespacePolicy) -> None:
    """The pods keep their whole GPUs, and an annotation is added: the first thing that a new user does."""
    refused, problems = 0, 0
    for pod in real_pods():
        annotations = pod["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] = {**annotations, contract.MEMORY: "4Gi"}
        refusals = attempts(pod, settings, policy)
        assert len(refusals) <= 1, (refusals[0].message, refusals[1].message)
        refused += len(refusals)
        problems += sum(len(each.problems) for each in refusals)
    assert refused > 90
    assert problems > 1.5 * refused


def test_problems_come_in_the_order_of_their_fields_and_the_first_gives_the_reason() -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"][contract.MEMORY] = "4GB"
    pod["spec"]["hostPID"] = True
    pod["spec"]["containers"] += [{"name": f"c{index}", "securityContext": {"privileged": True}} for index in range(12)]
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(pod, policy=POLICY, settings=STRICT)
    assert error.value.reason is Reason.INVALID_QUANTITY
    fields = [each.field for each in error.value.problems]
    privileged = [f"spec.containers[{2 + index}].securityContext.privileged" for index in range(12)]
    assert fields == [f"metadata.annotations[{contract.MEMORY}]", *privileged, "spec.hostPID"]


def test_a_pod_with_as_many_problems_as_an_agent_of_a_node_needs_one_attempt() -> None:
    """Agents of networks, storage and monitoring mount up to 30 paths of their node and have containers with rights."""
    pod = copy.deepcopy(POD)
    rights = {"privileged": True, "capabilities": {"add": ["SYS_ADMIN", "SYS_PTRACE", "BPF", "PERFMON"]}}
    paths: list[Json] = [
        {"name": f"v{index}", "hostPath": {"path": f"/var/lib/kubelet/{index}"}} for index in range(30)
    ]
    mounts = [{"name": each["name"], "mountPath": each["hostPath"]["path"]} for each in paths]
    pod["spec"]["volumes"] += paths
    pod["spec"]["containers"] += [
        {"name": f"agent-{index}", "securityContext": rights, "volumeMounts": mounts} for index in range(6)
    ]
    refusals = attempts(pod, STRICT, POLICY)
    assert (len(refusals), refusals[0].complete) == (1, True)
    assert len(refusals[0].message.splitlines()) == 1 + 30 + 6 * 5


def test_of_very_many_problems_the_first_are_reported_and_the_text_says_so() -> None:
    pod = copy.deepcopy(POD)
    rights = {"privileged": True, "capabilities": {"add": ["SYS_ADMIN", "SYS_PTRACE"]}}
    pod["spec"]["containers"] += [{"name": f"c{index}", "securityContext": rights} for index in range(40)]
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(pod, policy=POLICY, settings=STRICT)
    assert (len(error.value.problems), error.value.complete) == (MAX_PROBLEMS, False)
    assert error.value.message.count("\n* spec.containers[") == MAX_PROBLEMS
    assert error.value.message.startswith(f"more than {MAX_PROBLEMS} ")


def test_a_problem_is_reported_once() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["resources"] = "none"
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(pod, policy=POLICY, settings=STRICT)
    assert [each.field for each in error.value.problems] == ["spec.containers[0].resources"]


def test_what_only_privileged_containers_may_mount_is_named_with_the_privilege() -> None:
    pod = copy.deepcopy(POD)
    propagating(pod)
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(pod, policy=POLICY, settings=STRICT)
    (problem,) = error.value.problems
    named = "remove mountPropagation: Bidirectional from spec.containers[0].volumeMounts[0]"
    assert problem.message.endswith(f"set it to false, and {named}")


def test_the_mounts_of_a_refused_volume_are_named() -> None:
    pod = copy.deepcopy(POD)
    host_path("/dev", 0)(pod)
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(pod, policy=POLICY, settings=STRICT)
    (problem,) = error.value.problems
    for mount in ("spec.initContainers[0].volumeMounts[0]", "spec.containers[0].volumeMounts[1]"):
        assert mount in problem.message
