"""Properties of the whole rewriting, on generated pods, held against an oracle that shares no code with it."""

import copy
from collections.abc import Mapping
from typing import Any

import jsonpatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from tests.support.extent import trials
from tests.unit.webhook import oracle
from tests.unit.webhook.generated import PLAIN_VARIABLES, Generated, pods, variables
from webhook.mutation import mutate
from webhook.mutation.mutate import MAX_WARNINGS, Mutation, mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

EXAMPLES = trials(40, 2000)
"""Pods per property; a few tens find what breaks often, thousands what breaks rarely."""
thoroughly = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Json = Mapping[str, Any]

OUR_PATHS = (
    "/metadata/annotations/kubectl.kubernetes.io~1default-container",
    "/metadata/labels",
    "/spec/initContainers",
    "/spec/resourceClaims",
    "/spec/tolerations",
    "/spec/volumes",
)


def rewritten(pod: Json) -> Mutation:
    return mutate_pod(pod, policy=NamespacePolicy(), settings=Settings())


def patched(pod: Json, decision: Mutation) -> Json:
    after: Json = jsonpatch.apply_patch(pod, copy.deepcopy(decision.patch))
    return after


@thoroughly
@given(pods())
def test_rewriting_twice_is_rewriting_once(generated: Generated) -> None:
    first = rewritten(generated.pod)
    second = rewritten(patched(generated.pod, first))
    assert first.reason is Reason.APPLIED
    assert (second.reason, second.patch) == (Reason.UNCHANGED, [])


@thoroughly
@given(pods())
def test_patch_leads_to_the_desired_pod_and_leaves_the_request_alone(generated: Generated) -> None:
    before = copy.deepcopy(generated.pod)
    decision = rewritten(generated.pod)
    assert generated.pod == before
    assert patched(generated.pod, decision) == decision.pod


@thoroughly
@given(pods())
def test_nothing_is_removed_and_only_expected_paths_are_touched(generated: Generated) -> None:
    for operation in rewritten(generated.pod).patch:
        path = operation["path"]
        assert operation["op"] in {"add", "replace"}
        of_a_container = any(part in path.split("/")[4:5] for part in ("env", "resources"))
        assert path.startswith(OUR_PATHS) or of_a_container, path
        assert path != "/spec/containers"


@thoroughly
@given(pods())
def test_everything_of_the_pod_survives(generated: Generated) -> None:
    after = rewritten(generated.pod).pod
    assert_survives(without_reserved(generated.pod), without_reserved(after), "")


@thoroughly
@given(pods())
def test_no_way_around_the_limits_stands_open(generated: Generated) -> None:
    assert oracle.problems(rewritten(generated.pod).pod, generated.wanted, generated.gpus) == []


@thoroughly
@given(pods())
def test_the_claim_reserves_exactly_what_the_pod_can_hold_at_once(generated: Generated) -> None:
    after = rewritten(generated.pod).pod
    reserved = requests(after)
    peak = oracle.peak_per_request(after, generated.wanted, generated.gpus, together=generated.same_gpu)
    if "*" in peak:
        narrow = [amounts for name, amounts in reserved.items() if name not in peak]
        peak = {**peak, "*": (sum(memory for memory, _ in narrow), sum(compute for _, compute in narrow))}
        assert peak == oracle.peak_per_request(after, generated.wanted, generated.gpus, together=True)
    assert {name: amounts for name, amounts in reserved.items() if name in peak} == {
        name: amounts for name, amounts in peak.items() if name != "*"
    }
    assert all(memory >= generated.wanted[name][0] for name, (memory, _) in reserved.items())


@thoroughly
@given(pods())
def test_the_template_can_be_rebuilt_from_the_pod_alone(generated: Generated) -> None:
    after = rewritten(generated.pod).pod
    template = template_for(after)
    assert template is not None
    named = [
        each["resourceClaimTemplateName"] for each in after["spec"]["resourceClaims"] if each["name"] == "gpu-share"
    ]
    assert [template["metadata"]["name"]] == named


@thoroughly
@given(pods(), st.data())
def test_what_other_webhooks_do_after_us_converges(generated: Generated, data: st.DataObject) -> None:
    pod = patched(generated.pod, rewritten(generated.pod))
    mesh = {"name": "mesh", "image": "example/mesh:1", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}]}
    pod["spec"]["initContainers"].insert(data.draw(st.integers(0, 1)), mesh)
    for _, container in oracle.containers(pod):
        added = data.draw(st.lists(variables(harmless(container)), max_size=2))
        container["env"] = [*(container.get("env") or []), *added]
        if data.draw(st.booleans()):
            devices = "none" if container["name"] == contract.SIDECAR else "all"
            container["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": devices})
    again = rewritten(pod)
    final = patched(pod, again)
    assert oracle.problems(final, generated.wanted, generated.gpus) == []
    assert rewritten(final).patch == []


@thoroughly
@given(pods(), st.data())
def test_variables_appended_by_others_need_no_second_patch(generated: Generated, data: st.DataObject) -> None:
    pod = copy.deepcopy(patched(generated.pod, rewritten(generated.pod)))
    for _, container in oracle.containers(pod):
        container["env"] = [*container["env"], *data.draw(st.lists(variables(harmless(container)), max_size=2))]
        for entry in container["env"]:
            if entry.get("value") == "":
                del entry["value"]
    assert rewritten(pod).patch == []


def test_no_warning_says_that_a_container_gets_a_share_that_it_does_not_get() -> None:
    containers = [{"name": name, "image": "x"} for name in ("main", "helper", "third")]
    metadata = {"name": "p", "annotations": {"memory.gpu-share.io/helper": "4Gi"}}
    decision = rewritten({"metadata": metadata, "spec": {"containers": containers}})
    assert not [each for each in decision.warnings if "has the share" in each]


def test_warnings_are_bounded_and_the_last_one_counts_the_rest() -> None:
    amounts = {f"nvidia.com/mig-{index}g": 0 for index in range(1000)}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts}}
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    warnings = rewritten({"metadata": metadata, "spec": {"containers": [container]}}).warnings
    assert len(warnings) == MAX_WARNINGS
    assert warnings[-1] == f"and {1001 - MAX_WARNINGS + 1} more warnings"  # one more is about root


@given(st.text(max_size=400))
def test_warnings_are_short_printable_lines(text: str) -> None:
    [line] = mutate._bounded([text, text])
    assert len(line) < 120
    assert line.isprintable()


def test_volumes_of_our_name_are_not_compared_with_each_other() -> None:
    class Size(str):
        __slots__ = ()
        __hash__ = str.__hash__
        compared = 0

        def __eq__(self, other: object) -> bool:
            Size.compared += 1
            return super().__eq__(other)

    volumes = [{"name": "gpu-share-no-token", "emptyDir": {"x": Size(each)}} for each in range(1024)]
    metadata = {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}
    rewritten({"metadata": metadata, "spec": {"containers": [{"name": "a", "image": "x"}], "volumes": volumes}})
    assert Size.compared < 10 * len(volumes)


def harmless(container: Json) -> list[str]:
    """Variables that another webhook may add to a container; some would change what the sidecar runs or sees."""
    return ["MODEL", "LEVEL"] if container["name"] == "gpu-share" else PLAIN_VARIABLES


def requests(pod: Json) -> dict[str, tuple[int, int]]:
    template = template_for(pod)
    assert template is not None
    entries = {each["name"]: each["exactly"] for each in template["spec"]["spec"]["devices"]["requests"]}
    assert entries.pop("gpu-share") == {"deviceClassName": "status.gpu-share.io"}
    capacity = {name: exactly["capacity"]["requests"] for name, exactly in entries.items()}
    return {
        name: (int(each["memory"].removesuffix("Mi")), int(each.get("compute", 0))) for name, each in capacity.items()
    }


def without_reserved(original: Json) -> Json:
    """The pod less the variables that may be replaced; lists of containers become objects by name."""
    pod: dict[str, Any] = copy.deepcopy(dict(original))
    for section in ("initContainers", "containers"):
        entries = {each["name"]: each for each in pod["spec"].get(section) or []}
        for each in entries.values():
            env = each.get("env") or []
            each["env"] = [entry for entry in env if not entry["name"].startswith(("CUDA_", "NVIDIA_", "GPU_SHARE_"))]
        pod["spec"][section] = entries
    return pod


def assert_survives(before: Any, after: Any, path: str) -> None:
    if isinstance(before, dict):
        assert isinstance(after, dict), path
        for key, value in before.items():
            assert key in after, f"{path}/{key}"
            assert_survives(value, after[key], f"{path}/{key}")
    elif isinstance(before, list):
        assert isinstance(after, list), path
        assert after[: len(before)] == before, path
    elif before is not None:
        assert after == before, path
