"""Every example is a manifest the product accepts, and reserves what its comments say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

FOLDER = Path(__file__).parents[3] / "examples"
Object = dict[str, Any]


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods(name: str) -> list[Object]:
    found = [each for each in documents(name) if each["kind"] != "Namespace"]
    return [each if each["kind"] == "Pod" else each["spec"]["template"] for each in found]


def policy(name: str) -> NamespacePolicy:
    annotations = [each["metadata"]["annotations"] for each in documents(name) if each["kind"] == "Namespace"]
    return NamespacePolicy.from_annotations(annotations[0] if annotations else {})


def rewritten(name: str) -> list[Mutation]:
    return [mutate_pod(pod, policy=policy(name), settings=Settings()) for pod in pods(name)]


def requests(decision: Mutation) -> dict[str, dict[str, str]]:
    """Request name → capacity asked for, of the template the pod names; the sidecar's left out."""
    template = template_for(decision.pod)
    assert template is not None
    asked = template["spec"]["spec"]["devices"]["requests"]
    return {each["name"]: each["exactly"]["capacity"]["requests"] for each in asked if "capacity" in each["exactly"]}


@pytest.mark.parametrize("name", sorted(file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*.yaml")))
def test_every_example_is_rewritten_and_named_in_the_overview(name: str) -> None:
    for decision in rewritten(name):
        assert decision.pod["metadata"]["labels"][contract.MANAGED_LABEL] == "true"
        assert requests(decision)
    assert f"[{name}]({name})" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        ("pod.yaml", {"main": {"memory": "4096Mi", "compute": "25"}}),
        ("namespace.yaml", {"main": {"memory": "2048Mi", "compute": "10"}}),
        ("deployment.yaml", {"vllm": {"memory": "12288Mi", "compute": "40"}}),
        ("job.yaml", {"embed": {"memory": "6144Mi", "compute": "50"}}),
        (
            "two-containers.yaml",
            {"recognise": {"memory": "6144Mi", "compute": "30"}, "speak": {"memory": "4096Mi"}},
        ),
        ("two-gpus.yaml", {"vllm": {"memory": "20480Mi"}}),
    ],
)
def test_what_is_reserved_is_what_is_written(name: str, reserved: dict[str, dict[str, str]]) -> None:
    (decision,) = rewritten(name)
    assert requests(decision) == reserved


def test_a_container_that_asked_for_nothing_sees_no_gpu() -> None:
    (decision,) = rewritten("two-containers.yaml")
    front = next(each for each in decision.pod["spec"]["containers"] if each["name"] == "front")
    assert {each["name"]: each["value"] for each in front["env"]} == {
        contract.NVIDIA_VISIBLE_DEVICES: contract.NO_NVIDIA_DEVICE,
        contract.CUDA_VISIBLE_DEVICES: contract.NO_CUDA_DEVICE,
    }
