"""A pod with any one field of any wrong type is answered or refused with that field: never an error of ours."""

import copy
from collections.abc import Iterator
from typing import Any

import jsonpatch
import pytest
import yaml

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

Json = dict[str, Any]
WRONG: list[Any] = [None, True, 0, 7, 1.5, "", "x", [], ["x"], [None], [[]], [{}], {}, {"a": 1}, {"name": None}]
STRICT = Settings(root_tenants="refuse", runtime_class="nvidia", max_memory_mib=81920, across_nodes="binpack")
LISTED = NamespacePolicy(host_paths=("/data",))
POD: Json = yaml.safe_load(
    """
apiVersion: v1
kind: Pod
metadata:
  name: tts
  labels: {app: tts}
  annotations:
    gpu-share.io/memory: 4Gi
    gpu-share.io/compute: 25%
    gpu-share.io/priority: low
    gpu-share.io/gpu-model: H100
    gpu-share.io/same-gpu: "true"
    memory.gpu-share.io/warm-up: 1Gi
    kubectl.kubernetes.io/default-container: model
spec:
  nodeName: ""
  hostPID: false
  runtimeClassName: nvidia
  affinity:
    podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 5, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {app: cache}}}}
    podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, labelSelector: {}}]}
  securityContext: {runAsUser: 1000, runAsNonRoot: true}
  tolerations: [{key: a, operator: Exists, effect: NoSchedule}]
  volumes: [{name: a, hostPath: {path: /data}}, {name: b, emptyDir: {}}]
  resourceClaims: [{name: nic, resourceClaimTemplateName: nic, resourceClaimName: x}]
  initContainers:
    - {name: warm-up, image: a, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}
    - {name: mesh, image: a, restartPolicy: Always}
  containers:
    - name: model
      image: a
      env: [{name: A, value: b}, {name: CUDA_VISIBLE_DEVICES, valueFrom: {fieldRef: {fieldPath: x}}}]
      securityContext: {privileged: false, runAsUser: 1000, runAsNonRoot: true}
      volumeMounts: [{name: a, mountPath: /data}]
      resources: {limits: {cpu: 1, nvidia.com/gpu: "0"}, requests: {cpu: 1}, claims: [{name: nic, request: a}]}
    - {name: other, image: a}
  ephemeralContainers:
    - {name: debug, image: a, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}
"""
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from paths(inner, (*path, key))


def with_value(pod: Json, path: tuple[Any, ...], value: Any) -> Json:
    pod = copy.deepcopy(pod)
    target: Any = pod
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return pod


def rewritten() -> Json:
    return dict(mutate_pod(POD, policy=LISTED, settings=STRICT).pod)


PATHS = [path for path in paths(POD) if path]


def check(pod: Json, **review: Any) -> None:
    before = copy.deepcopy(pod)
    try:
        decision: Mutation = mutate_pod(pod, policy=LISTED, settings=STRICT, **review)
    except PolicyDenied as error:
        assert error.field
        assert pod == before
        return
    assert jsonpatch.apply_patch(pod, copy.deepcopy(decision.patch)) == decision.pod
    assert all(len(each) < 120 for each in decision.warnings)


def test_the_pod_itself_is_fine() -> None:
    assert rewritten() != POD


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_one_wrong_value_in_a_pod_that_asks(path: tuple[Any, ...]) -> None:
    for value in WRONG:
        check(with_value(POD, path, value))


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_one_wrong_value_in_a_pod_that_is_debugged(path: tuple[Any, ...]) -> None:
    review: Json = {"operation": "UPDATE", "subresource": "ephemeralcontainers"}
    for value in WRONG:
        wrong = with_value(POD, path, value)
        check(wrong, old=POD, **review)
        check(POD, old=wrong, **review)


def test_one_wrong_value_in_a_rewritten_pod() -> None:
    """The second pass reads what the first wrote, and the template is rebuilt from it, whatever became of it."""
    pod = rewritten()
    for path in paths(pod):
        for value in WRONG if path else ():
            wrong = with_value(pod, path, value)
            check(wrong)
            template_for(wrong)


@pytest.mark.parametrize(
    "pod", [{}, {"metadata": 1}, {"metadata": {"annotations": []}}, {"metadata": {"annotations": {1: "x"}}}]
)
def test_a_pod_that_is_hardly_one(pod: Json) -> None:
    check(pod)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("spec", "containers", 1, "name"), "", "spec.containers[1].name: is empty; give the container a name"),
        (("spec", "containers", 1, "name"), None, "spec.containers[1].name: must be a string, not null"),
        (("spec", "containers", 1, "name"), 7, "spec.containers[1].name: must be a string, not a number"),
        (
            ("spec", "containers", 1, "name"),
            "mesh",
            "spec.containers[1].name: 'mesh' is also the name of spec.initContainers[1]; rename one of the two",
        ),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_what_it_is(path: tuple[Any, ...], value: object, says: str) -> None:
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(with_value(POD, path, value), policy=LISTED, settings=STRICT)
    assert error.value.message.startswith(says)


BOTH = (
    'write "true" (the default: all containers of the pod use one GPU) or "false" (each container may get another GPU)'
)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("same-gpu", "no", 'is not "true" or "false"; write "false"'),
        ("same-gpu", " OFF", 'write "false"'),
        ("same-gpu", "0", 'write "false"'),
        ("same-gpu", "yes", 'write "true"'),
        ("same-gpu", "perhaps", BOTH),
        ("managed", "true", "is a label of pods; remove it, and request a share with"),
    ],
)
def test_a_word_that_means_nothing_is_answered_with_those_that_do(key: str, value: str, says: str) -> None:
    asked = with_value(POD, ("metadata", "annotations", f"gpu-share.io/{key}"), value)
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(asked, policy=LISTED, settings=STRICT)
    assert says in error.value.message
    assert "GPU" in says or error.value.message.endswith(says) or key == "managed"


def test_the_refusal_names_the_field() -> None:
    with pytest.raises(PolicyDenied) as error:
        mutate_pod(with_value(POD, ("spec", "containers", 1), "x"), policy=LISTED, settings=STRICT)
    assert (error.value.field, error.value.reason) == ("spec.containers[1]", Reason.INVALID_POD)
