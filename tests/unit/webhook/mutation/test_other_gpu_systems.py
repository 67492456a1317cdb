"""What is said of pods that come from other GPU sharing systems, and what is denied."""

from typing import Any

import pytest

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation.mutate import WARNING_LENGTH, Mutation, mutate_pod
from webhook.mutation.other_gpu_systems import ANNOTATIONS, NAME_SHOWN, RESOURCES
from webhook.mutation.settings import Settings

Json = dict[str, Any]
OTHERS = frozenset({"claim/whole", "template/whole"})


def decided(container: Json, spec: Json | None = None, name: str = "model", **annotations: Any) -> Mutation:
    metadata = {
        "name": "p",
        "annotations": {contract.MEMORY: "4Gi", contract.DEFAULT_CONTAINER: "model", **annotations},
    }
    containers = [{"name": "model", "image": "a"}]
    others = [{"name": name, "image": "a", **container}] if name != "model" else []
    containers = [{**containers[0], **container}] if not others else [*containers, *others]
    whole = {"securityContext": {"runAsNonRoot": True}, "containers": containers, **(spec or {})}
    pod = {"metadata": metadata, "spec": whole}
    return mutate_pod(pod, policy=NamespacePolicy(), settings=Settings(), other_claims=OTHERS)


@pytest.mark.parametrize("parts", [("limits",), ("requests",), ("limits", "requests")])
@pytest.mark.parametrize("key", sorted(RESOURCES))
def test_one_warning_names_a_resource_and_what_replaces_it(key: str, parts: tuple[str, ...]) -> None:
    (warning,) = decided({"resources": {part: {key: "1"} for part in parts}}).warnings
    assert f" {key} " in warning
    assert (f" {RESOURCES[key]} " if RESOURCES[key] else "nothing like it") in warning


@pytest.mark.parametrize("key", sorted(ANNOTATIONS))
def test_one_warning_names_an_annotation_and_what_replaces_it(key: str) -> None:
    extra: Json = {key: "1"}
    (warning,) = decided({}, **extra).warnings
    assert f" {key}:" in warning
    assert f" {ANNOTATIONS[key]} " in warning


@pytest.mark.parametrize("key", ["nvidia.com/gpumem", "nvidia.com/gpucores", "volcano.sh/vgpu-number"])
def test_for_another_container_it_is_the_annotation_that_names_that_one(key: str) -> None:
    (warning,) = decided({"resources": {"limits": {key: "1"}}}, name="worker").warnings
    prefix = RESOURCES[key].partition("/")[2] + ".gpu-share.io/"
    assert f" {prefix}worker " in warning


@pytest.mark.parametrize("name", ["w" * NAME_SHOWN, "w" * 63])
@pytest.mark.parametrize("key", sorted(RESOURCES))
def test_no_warning_is_cut(key: str, name: str) -> None:
    (warning,) = decided({"resources": {"limits": {key: "1"}}}, name=name).warnings
    assert len(warning) <= WARNING_LENGTH
    assert not warning.endswith("...")


@pytest.mark.parametrize("scheduler", ["default-scheduler", "", None])
def test_the_stock_scheduler_needs_no_warning(scheduler: str | None) -> None:
    assert decided({}, {"schedulerName": scheduler}).warnings == ()


def test_another_scheduler_gets_one_that_names_it_and_the_profiles() -> None:
    (warning,) = decided({}, {"schedulerName": "volcano"}).warnings
    assert "volcano" in warning
    assert "default-scheduler" in warning


@pytest.mark.parametrize("entry", [{"resourceClaimName": "whole"}, {"resourceClaimTemplateName": "whole"}])
def test_a_claim_of_another_gpu_driver_is_denied_in_a_sharing_container_alone(entry: Json) -> None:
    claims, uses = {"resourceClaims": [{"name": "gpu", **entry}]}, {"resources": {"claims": [{"name": "gpu"}]}}
    with pytest.raises(PolicyDenied) as denied:
        decided(uses, claims)
    assert denied.value.field == "spec.containers[0].resources.claims[gpu]"
    assert denied.value.reason is Reason.CONFLICTS_WITH_SHARE
    assert decided(uses, claims, name="trainer").reason is Reason.APPLIED
    assert decided({}, claims).reason is Reason.APPLIED


def test_a_claim_of_no_gpu_is_the_pods_own_affair() -> None:
    claims = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}
    assert decided({"resources": {"claims": [{"name": "nic"}]}}, claims).reason is Reason.APPLIED
