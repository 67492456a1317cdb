"""Every kind of container, with every form of environment, in every form of asking for a GPU: 96 cases.

The patch is applied by two libraries that share no code (one of them is below), and both must agree to the byte.
"""

import copy
import json
from itertools import product
from typing import Any

import jsonpatch
import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from tests.unit.webhook import oracle
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
KINDS = ("containers", "initContainers", "nativeSidecars", "ephemeralContainers")
ENVIRONMENTS: dict[str, Json] = {
    "none": {},
    "null": {"env": None},
    "empty": {"env": []},
    "override": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    "duplicates": {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": str(index)} for index in range(3)]},
    "valueFrom": {
        "env": [{"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}}]
    },
    "envFrom": {"envFrom": [{"secretRef": {"name": "gpus"}}]},
    "thousand": {"env": [{"name": f"V{index}", "value": "x"} for index in range(1000)]},
}
FORMS = ("request", "limit", "annotation")
CASES = list(product(KINDS, ENVIRONMENTS, FORMS))


def test_there_are_96_cases() -> None:
    assert len(CASES) == 96


@pytest.mark.parametrize(("kind", "environment", "form"), CASES)
def test_a_container_gets_its_share_or_nothing(kind: str, environment: str, form: str) -> None:
    pod = a_pod(kind, environment, form, amount="1")
    if form != "annotation":
        with pytest.raises(PolicyDenied, match="whole GPU") as error:
            answered(pod, kind)
        assert error.value.reason is Reason.CONFLICTS_WITH_SHARE
        pod = a_pod(kind, environment, form, amount="0")
    decision = answered(pod, kind)
    after = applied(pod, decision.patch)
    as_others = jsonpatch.apply_patch(pod, copy.deepcopy(decision.patch))
    assert json.dumps(after, sort_keys=True) == json.dumps(as_others, sort_keys=True)
    assert after == decision.pod
    assert answered(after, kind).patch == []
    if kind == "ephemeralContainers":
        assert oracle.problems({"spec": {"containers": [], "ephemeralContainers": debug(after)}}, {}) == []
    else:
        wanted = {"main": (4096, None)} | ({"subject": (1024, 10)} if form == "annotation" else {})
        assert oracle.problems(after, wanted) == []


def a_pod(kind: str, environment: str, form: str, amount: str) -> Json:
    subject: Json = {"name": "subject", "image": "example/x:1", **copy.deepcopy(ENVIRONMENTS[environment])}
    main: Json = {"name": "main", "image": "example/y:1"}
    annotations = {"gpu-share.io/memory": "4Gi"}
    if kind == "nativeSidecars":
        subject["restartPolicy"] = "Always"
    if form == "annotation" and kind != "ephemeralContainers":
        annotations |= {"memory.gpu-share.io/subject": "1Gi", "compute.gpu-share.io/subject": "10%"}
    elif form != "annotation":
        subject["resources"] = {f"{form}s": {"nvidia.com/gpu": amount}}
    section = "initContainers" if kind == "nativeSidecars" else kind
    spec: Json = {"containers": [main]}
    spec[section] = [*spec.get(section, []), subject]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def answered(pod: Json, kind: str) -> Mutation:
    policy, settings = NamespacePolicy(), Settings()
    if kind != "ephemeralContainers":
        return mutate_pod(pod, policy=policy, settings=settings)
    old = {**pod, "spec": {**pod["spec"], "ephemeralContainers": []}}
    return mutate_pod(
        pod, policy=policy, settings=settings, operation="UPDATE", subresource="ephemeralcontainers", old=old
    )  # fmt: skip


def debug(pod: Json) -> list[Json]:
    found: list[Json] = pod["spec"]["ephemeralContainers"]
    return found


def applied(document: Json, patch: list[Json]) -> Json:
    """JSON Patch in a few lines, for ``add`` and ``replace``, as RFC 6902 has them."""
    document = copy.deepcopy(document)
    for operation in patch:
        *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        target: Any = document
        for step in steps:
            target = target[int(step)] if isinstance(target, list) else target[step]
        put(target, last, operation)
    return document


def put(target: Any, last: str, operation: Json) -> None:
    value = copy.deepcopy(operation["value"])
    if isinstance(target, dict):
        assert operation["op"] == "add" or last in target
        target[last] = value
    elif operation["op"] == "add":
        target.insert(len(target) if last == "-" else int(last), value)
    else:
        target[int(last)] = value


def test_the_largest_pod_allowed_is_still_allowed_on_a_second_pass() -> None:
    containers = [{"name": f"c{index}", "image": "x", **ENVIRONMENTS["thousand"]} for index in range(64)]
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    decision = mutate_pod(
        {"metadata": metadata, "spec": {"containers": containers}}, policy=NamespacePolicy(), settings=Settings()
    )
    assert answered(dict(decision.pod), "containers").patch == []
    containers.append({"name": "gpu-share", "image": "x"})
    with pytest.raises(PolicyDenied):
        answered({"metadata": metadata, "spec": {"containers": [*containers, *containers[-1:]]}}, "containers")
