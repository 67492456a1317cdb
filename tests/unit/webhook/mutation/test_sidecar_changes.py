"""What another webhook may do to the sidecar and what it may not, change by change, without an API server."""

import copy
from typing import Any

import jsonpatch
import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.support.sidecar_changes import ADMITTED, BY_NAME, REFUSED, TABLE, VOLUMES, Change, sidecar
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]


def rewritten(pod: Json) -> Mutation:
    return mutate_pod(pod, policy=NamespacePolicy(), settings=Settings())


def a_pod() -> Json:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "x"}], "volumes": [*VOLUMES]}}
    return dict(rewritten(pod).pod)


def changed(change: Change) -> Json:
    return change.apply(copy.deepcopy(a_pod()))


def test_the_table_has_forty_changes_of_different_names() -> None:
    assert len(TABLE) >= 40
    assert len(BY_NAME) == len(TABLE)


@pytest.mark.parametrize("change", ADMITTED, ids=lambda each: each.name)
def test_harmless_changes_stay_and_what_is_ours_is_renewed(change: Change) -> None:
    pod = changed(change)
    first = rewritten(pod)
    after = jsonpatch.apply_patch(pod, copy.deepcopy(first.patch))
    assert after == first.pod
    assert change.stands(after)
    assert rewritten(after).patch == []


@pytest.mark.parametrize("change", REFUSED, ids=lambda each: each.name)
def test_a_change_that_could_harm_is_refused_by_its_field(change: Change) -> None:
    with pytest.raises(PolicyDenied) as refused:
        rewritten(changed(change))
    field = change.refused if change.at[0] == "/" else f"spec.initContainers[0].{change.refused}"
    assert refused.value.field.startswith(field)
    assert "another webhook" in refused.value.message
    assert "container 'gpu-share'" in refused.value.message


@pytest.mark.parametrize("change", REFUSED, ids=lambda each: each.name)
def test_other_problems_of_the_pod_are_reported_at_once_and_those_of_the_sidecar_blame_nobody_else(
    change: Change,
) -> None:
    pod = changed(change)
    pod["spec"]["hostPID"] = True
    pod["metadata"]["annotations"]["gpu-share.io/compute"] = "200%"
    with pytest.raises(PolicyDenied) as refused:
        rewritten(pod)
    others = {"metadata.annotations[gpu-share.io/compute]", "spec.hostPID"}
    problems = [each for each in refused.value.problems if each.field not in others]
    assert others < {each.field for each in refused.value.problems}
    assert problems
    assert all("another webhook" in each.message for each in problems)
    assert len({each.field for each in problems}) == len(problems)


def test_all_changes_of_one_sidecar_are_reported_once_each() -> None:
    pod = a_pod()
    sidecar(pod)["securityContext"] |= {"privileged": True, "runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}}
    sidecar(pod)["restartPolicy"] = "OnFailure"
    with pytest.raises(PolicyDenied) as refused:
        rewritten(pod)
    fields = [each.field.removeprefix("spec.initContainers[0].") for each in refused.value.problems]
    context = [f"securityContext.{each}" for each in ("capabilities.add", "privileged", "runAsUser")]
    assert fields == ["restartPolicy", *context]


@pytest.mark.parametrize("prefix", ["", None, "P", "PATH", "PY", "PYTHONX", "L", "LD_", "GPU_SHARE_A", "CU", "NVIDIA"])
def test_variables_of_a_config_map_need_a_prefix_that_leads_to_no_name_of_ours(prefix: str | None) -> None:
    pod = a_pod()
    sidecar(pod)["envFrom"] = [{"prefix": prefix, "configMapRef": {"name": "x"}}]
    with pytest.raises(PolicyDenied, match="envFrom"):
        rewritten(pod)


@pytest.mark.parametrize("prefix", ["APP_", "X", "PX", "LDX", "path", "GPU_SHARED_", "python"])
def test_any_other_prefix_does(prefix: str) -> None:
    pod = a_pod()
    sidecar(pod)["envFrom"] = [{"prefix": prefix, "configMapRef": {"name": "x"}}]
    assert rewritten(pod).patch == []


def test_a_pod_that_turns_profiles_off_does_not_turn_off_the_sidecars() -> None:
    off = {"runAsUser": 0, "runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}}
    pod = {**a_pod(), "spec": {"containers": [{"name": "main", "image": "x"}]}}
    pod["spec"]["securityContext"] = {**off, "appArmorProfile": {"type": "Unconfined"}}
    after = dict(rewritten(pod).pod)
    context = sidecar(after)["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (65532, True)
    assert context["seccompProfile"] == context["appArmorProfile"] == {"type": "RuntimeDefault"}
    del context["runAsUser"], context["appArmorProfile"]
    assert rewritten(after).pod == rewritten(pod).pod
    assert rewritten(dict(rewritten(after).pod)).patch == []


def test_a_container_of_that_name_which_is_not_the_sidecar_can_be_renamed() -> None:
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    container = {"name": "gpu-share", "image": "gpu-share:0.1.0"}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "x"}, container]}}
    with pytest.raises(PolicyDenied, match="rename") as refused:
        rewritten(pod)
    assert refused.value.field == "spec.containers[1].name"


def test_of_a_sidecar_with_values_of_any_type_only_a_refusal_comes() -> None:
    for key in (*sidecar(a_pod()), "command", "envFrom", "lifecycle", "livenessProbe", "volumeDevices", "workingDir"):
        for value in (
            True,
            7,
            "x",
            ["x"],
            {"x": "y"},
            [{"x": ["y"]}],
            {"exec": "x", "type": ["x"], "preStop": {"exec": 1}},
        ):
            pod = a_pod()
            sidecar(pod)[key] = value
            try:
                assert rewritten(dict(rewritten(pod).pod)).patch == []
            except PolicyDenied as refused:
                assert refused.message
