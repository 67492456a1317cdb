"""The claim: its selector, its name, and that it can be told from the rewritten pod alone."""

import copy
import json
import re
from typing import Any

import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.podview import Kind
from webhook.mutation.resourceclaims import Request, claim_plan, template_for, template_name, template_spec
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import Share, ShareRequest
from webhook.mutation.template_content import content

Json = dict[str, Any]
NO_POLICY = NamespacePolicy()
BASE = (Request("model", 4096, 25),)


def rewritten(annotations: Json, env: list[Json] | None = None, policy: NamespacePolicy = NO_POLICY) -> Json:
    container = {"name": "model", "image": "a", "env": env or []}
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}
    return copy.deepcopy(dict(mutate_pod(pod, policy=policy, settings=Settings()).pod))


def named(pod: Json) -> str:
    name: str = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    return name


def rebuilt(pod: Json) -> str | None:
    template = template_for(pod)
    return template["metadata"]["name"] if template else None


def test_the_name_changes_with_everything_the_claim_says() -> None:
    variants = [
        (BASE, (), True),
        ((Request("model", 4097, 25),), (), True),
        ((Request("model", 4096, 26),), (), True),
        ((Request("model", 4096, 0),), (), True),
        ((Request("other", 4096, 25),), (), True),
        (BASE, ("h100",), True),
        ((*BASE, Request("b", 512, 0)), (), True),
        ((*BASE, Request("b", 512, 0)), (), False),
    ]
    names = {
        template_name(template_spec(requests, models, same_gpu=same_gpu)) for requests, models, same_gpu in variants
    }
    assert len(names) == len(variants)
    assert all(len(name) == len("gpu-share-") + 16 for name in names)


@pytest.mark.parametrize(
    ("requests", "counts"),
    [
        (BASE, {"memory-mib": 4096, "compute-percent": 25}),
        ((*BASE, Request("b", 512, 0)), {"memory-mib": 4608, "compute-percent": 25}),
        ((Request("model", 4096, 25, gpus=3),), {"memory-mib": 12288, "compute-percent": 75}),
        ((Request("model", 4096, 0),), {"memory-mib": 4096}),
        ((Request("model", 0, 0, profile="1g.10gb"),), {}),
    ],
)
def test_a_claim_states_the_sums_of_its_requests(requests: tuple[Request, ...], counts: dict[str, int]) -> None:
    *_, status = template_spec(requests, (), same_gpu=True, counted=True)["spec"]["devices"]["requests"]
    first, *stated = status["firstAvailable"]
    assert first == {"name": "status", "deviceClassName": "status.gpu-share.io"}
    assert {each["deviceClassName"]: each["count"] for each in stated} == {
        f"{name}.gpu-share.io": number for name, number in counts.items()
    }


def test_a_claim_that_states_amounts_is_known_from_the_pod_alone() -> None:
    annotations = {"gpu-share.io/memory": "4Gi", "gpu-share.io/compute": "25%"}
    plain, counted = rewritten(annotations), rewritten(annotations, policy=NamespacePolicy(count_amounts=True))
    assert (rebuilt(plain), rebuilt(counted)) == (named(plain), named(counted))
    assert named(plain) != named(counted)


def test_what_the_api_server_adds_to_alternatives_changes_nothing() -> None:
    template = {"spec": template_spec(BASE, (), same_gpu=True, counted=True)}
    stored = copy.deepcopy(template)
    for each in stored["spec"]["spec"]["devices"]["requests"][-1]["firstAvailable"]:
        each |= {"allocationMode": "ExactCount", "count": each.get("count", 1)}
    assert content(stored) == content(template)
    stored["spec"]["spec"]["devices"]["requests"][-1]["firstAvailable"][1]["count"] = 1
    assert content(stored) != content(template)
    assert content(template) != content({"spec": template_spec(BASE, (), same_gpu=True)})


def test_one_request_needs_no_constraint_so_same_gpu_makes_no_difference() -> None:
    assert template_spec(BASE, (), same_gpu=True) == template_spec(BASE, (), same_gpu=False)


def test_models_become_one_selector_of_each_gpu_request_alone() -> None:
    spec = template_spec((*BASE, Request("b", 512, 0)), ("a100", "h100"), same_gpu=True)
    first, second, status = spec["spec"]["devices"]["requests"]
    expression = (
        '"model" in device.attributes["gpu-share.io"] && '
        'device.attributes["gpu-share.io"].model.lowerAscii().matches("(^|[^0-9a-z])(a100|h100)([^0-9a-z]|$)")'
    )
    assert first["exactly"]["selectors"] == second["exactly"]["selectors"] == [{"cel": {"expression": expression}}]
    assert "selectors" not in status["exactly"]
    assert spec["spec"]["devices"]["constraints"] == [
        {"requests": ["model", "b"], "matchAttribute": "gpu-share.io/uuid"},
    ]


@pytest.mark.parametrize(
    ("models", "gpu", "fits"),
    [
        (("a100",), "NVIDIA A100-SXM4-16GB", True),
        (("a100-sxm4",), "NVIDIA A100-SXM4-16GB", True),
        (("l4", "nvidia a100"), "NVIDIA A100 80GB PCIe", True),
        (("a10",), "NVIDIA A100-SXM4-16GB", False),
        (("a10",), "NVIDIA A10", True),
        (("l4",), "NVIDIA L40S", False),
        (("h200",), "NVIDIA GH200 480GB", False),
        (("a.00",), "NVIDIA A100-SXM4-16GB", False),
    ],
)
def test_a_model_is_a_whole_word_of_the_name(models: tuple[str, ...], gpu: str, fits: bool) -> None:  # noqa: FBT001
    selector = template_spec(BASE, models, same_gpu=True)["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]
    pattern = json.loads(selector["cel"]["expression"].partition("matches(")[2].removesuffix(")"))
    assert bool(re.search(pattern, gpu.lower())) is fits


@pytest.mark.parametrize(
    "value",
    [
        'a"',
        "a\\",
        "a'",
        "a\n",
        "a)",
        "\uff21100",
        "",
        " ",
        ",",
        "a,,b",
        "x" * 64,
        "a\t",
        ",".join("abcdefghijklmnopq"),
        5,
        None,
    ],
)
def test_a_model_that_could_end_the_selector_is_refused(value: object) -> None:
    if value is None:
        assert rewritten({"gpu-share.io/memory": "4Gi", "gpu-share.io/gpu-model": None})
        return
    with pytest.raises(PolicyDenied, match="gpu-model"):
        rewritten({"gpu-share.io/memory": "4Gi", "gpu-share.io/gpu-model": value})


SHARE = {"gpu-share.io/memory": "4Gi", "gpu-share.io/compute": "25%", "gpu-share.io/gpu-model": "H100, a100"}


def test_the_template_is_rebuilt_under_the_name_in_the_pod() -> None:
    pod = rewritten(SHARE)
    assert rebuilt(pod) == named(pod)


def test_a_percentage_of_the_tenants_own_is_not_taken_for_ours() -> None:
    own = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "10"}]
    pod = rewritten({"gpu-share.io/memory": "4Gi"}, own)
    assert rebuilt(pod) == named(pod)
    template = template_for(pod)
    assert template is not None
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "4096Mi"}


def test_a_webhook_that_sorts_variables_does_not_lose_the_template() -> None:
    pod = rewritten(SHARE)
    pod["spec"]["containers"][0]["env"].sort(key=lambda entry: entry["name"])
    assert rebuilt(pod) == named(pod)


def another_amount(pod: Json) -> None:
    """The last variable of a name is the one that counts."""
    pod["spec"]["containers"][0]["env"].append({"name": "GPU_SHARE_MEMORY_MIB", "value": "1"})


def another_model(pod: Json) -> None:
    pod["metadata"]["annotations"]["gpu-share.io/gpu-model"] = "V100"


def no_model(pod: Json) -> None:
    del pod["metadata"]["annotations"]["gpu-share.io/gpu-model"]


def another_container(pod: Json) -> None:
    pod["spec"]["containers"][0]["name"] = "renamed"


@pytest.mark.parametrize("change", [another_amount, another_model, no_model, another_container])
def test_what_was_changed_since_gives_another_name(change: Any) -> None:
    pod = rewritten(SHARE)
    change(pod)
    assert rebuilt(pod) != named(pod)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"spec": None},
        {"spec": {"containers": [{"name": "a"}]}},
        {"spec": {"containers": [{"name": "a", "resources": {"claims": [{"name": "gpu-share", "request": "a"}]}}]}},
        {"spec": {"containers": [{"name": "a", "env": [{"name": "GPU_SHARE_MEMORY_MIB", "value": "1024"}]}]}},
    ],
)
def test_a_pod_without_a_share_has_no_template(pod: Json) -> None:
    assert template_for(pod) is None


def test_the_shared_request_is_the_first_of_the_largest_apps() -> None:
    annotations = {f"memory.gpu-share.io/{name}": "2Gi" for name in ("a", "b")} | {"memory.gpu-share.io/i": "8Gi"}
    containers = [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]
    spec = {"initContainers": [{"name": "i", "image": "x"}], "containers": containers}
    pod = mutate_pod(
        {"metadata": {"annotations": annotations}, "spec": spec}, policy=NamespacePolicy(), settings=Settings()
    ).pod  # fmt: skip
    assert pod["spec"]["initContainers"][1]["resources"]["claims"] == [{"name": "gpu-share", "request": "a"}]


def test_31_sharing_containers_and_their_init_containers_fit_a_claim() -> None:
    names = [f"c{index}" for index in range(31)]
    annotations = {f"memory.gpu-share.io/{name}": "1Gi" for name in (*names, "i")}
    containers = [{"name": name, "image": "x"} for name in names]
    spec = {"initContainers": [{"name": "i", "image": "x"}], "containers": containers}
    pod = {"metadata": {"annotations": annotations}, "spec": spec}
    template = template_for(mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).pod)
    assert template is not None
    assert len(template["spec"]["spec"]["devices"]["requests"]) == 32


def requests_of(pod: Json) -> dict[str, str]:
    """Request → class and what it asks for, of the template that a pod names."""
    template = template_for(pod)
    assert template is not None
    assert template["metadata"]["name"] == named(pod), "rebuilt as it was named"
    found = {each["name"]: each["exactly"] for each in template["spec"]["spec"]["devices"]["requests"]}
    return {
        name: f"{each['deviceClassName']} {each.get('selectors') or each.get('capacity')}"
        for name, each in found.items()
    }


def pod_with(annotations: Json, **spec: Any) -> Json:
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], **spec}}
    return copy.deepcopy(dict(mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).pod))


def test_instances_and_shares_of_one_pod_stand_side_by_side() -> None:
    annotations = {"memory.gpu-share.io/a": "4Gi", "mig-profile.gpu-share.io/b": "1g.10gb"}
    found = requests_of(pod_with(annotations))
    assert (found["a"].split()[0], found["b"].split()[0]) == ("gpu-share.io", "mig.gpu-share.io")
    assert '.profile == "1g.10gb"' in found["b"]


def test_an_init_container_of_another_profile_has_an_instance_of_its_own() -> None:
    init = {"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}
    same = {f"mig-profile.gpu-share.io/{name}": "1g.10gb" for name in "ias"}
    assert requests_of(pod_with(same, **init)).keys() == {"a", "s", "gpu-share"}, "a sidecar runs beside both"
    other = same | {"mig-profile.gpu-share.io/i": "2g.20gb"}
    assert requests_of(pod_with(other, **init)).keys() == {"a", "s", "i", "gpu-share"}


def test_two_instances_of_one_pod_need_not_be_of_one_gpu() -> None:
    template = template_for(pod_with({f"mig-profile.gpu-share.io/{name}": "1g.10gb" for name in "ab"}))
    assert template is not None
    assert "constraints" not in template["spec"]["spec"]["devices"]


def test_a_profile_changed_since_gives_another_name() -> None:
    pod = pod_with({"gpu-share.io/mig-profile": "1g.10gb"})
    env = next(each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "GPU_SHARE_MIG_PROFILE")
    env["value"] = "7g.80gb"
    template = template_for(pod)
    assert template is not None
    assert template["metadata"]["name"] != named(pod)
    env["value"] = 'x" || true || "'
    assert template_for(pod) is None


@pytest.mark.parametrize(("length", "kept"), [(63, True), (64, False)])
def test_a_claim_is_kept_by_value_unless_its_names_are_longer_than_any_stored_one(length: int, *, kept: bool) -> None:
    first, second = (ShareRequest(shares=(Share("a" * length, Kind.APP, 512, 10),)) for _ in range(2))
    assert claim_plan(first) == claim_plan(second)
    assert (claim_plan(first) is claim_plan(second)) == kept
