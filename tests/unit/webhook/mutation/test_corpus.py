"""Pod templates from public repositories, each annotated on its default container: all of it survives.

The templates are no part of this repository; they lie beside the checkout where this is developed.
"""

import copy
import json
import os
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.support.need import missing
from tests.unit.webhook.mutation.test_mutate import assert_survives, without_reserved
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

Json = dict[str, Any]
USUAL = Path(__file__).parents[5] / "shared" / "corpus" / "pods.jsonl"
CORPUS = Path(os.environ.get("GPU_SHARE_CORPUS") or USUAL)
TEMPLATES = 275
REFUSED = 74
ROADS = ("privileged", "spec.hostPID", "spec.hostIPC", "spec.hostNetwork", "spec.nodeName", "hostPath.path", "].name")
CAPABILITY = ".securityContext.capabilities.add["
"""The fields by which a template may be refused."""


@pytest.fixture(scope="module")
def templates() -> list[Json]:
    return [asking_for_a_share(pod) for pod in real_pods()]


def test_all_templates_are_there(templates: list[Json]) -> None:
    assert len(templates) == TEMPLATES


def test_refused_are_only_those_with_a_road_around_the_limit(templates: list[Json]) -> None:
    refusals = [outcome for outcome in map(answered, templates) if isinstance(outcome, PolicyDenied)]
    problems = [problem for each in refusals for problem in each.problems]
    assert [each for each in problems if not each.field.endswith(ROADS) and CAPABILITY not in each.field] == []
    assert len(refusals) == REFUSED


def test_no_path_is_lost_and_no_second_patch_needed(templates: list[Json]) -> None:
    accepted = 0
    for pod in templates:
        decision = answered(pod)
        if isinstance(decision, Mutation):
            after = jsonpatch.apply_patch(pod, copy.deepcopy(decision.patch))
            assert after == decision.pod
            assert_survives(without_reserved(pod), without_reserved(after), "")
            assert answered(after).patch == []  # type: ignore[union-attr]
            accepted += 1
    assert accepted == TEMPLATES - REFUSED


def test_every_template_names_the_claim_it_can_be_rebuilt_from(templates: list[Json]) -> None:
    for decision in map(answered, templates):
        if isinstance(decision, Mutation):
            template = template_for(decision.pod)
            assert template is not None
            entry = {"name": "gpu-share", "resourceClaimTemplateName": template["metadata"]["name"]}
            assert entry in decision.pod["spec"]["resourceClaims"]


def test_foreign_claims_stay(templates: list[Json]) -> None:
    """Counted, so that this does not hold because there are none."""
    seen = 0
    for pod in templates:
        decision = answered(pod)
        before = pod["spec"].get("resourceClaims") or []
        if isinstance(decision, Mutation) and before:
            assert decision.pod["spec"]["resourceClaims"][: len(before)] == before
            seen += 1
    assert seen > 30


def test_frameworks_are_warned_about_where_they_would_not_start(templates: list[Json]) -> None:
    """Both were read: vLLM without its fraction, and a tensor parallel of 2 in one container with one share."""
    said = [each for outcome in map(answered, templates) if isinstance(outcome, Mutation) for each in outcome.warnings]
    about = [each for each in said if any(word in each for word in ("vLLM", "GGML", "NCCL"))]
    assert [each.partition(";")[0] for each in about] == [
        "vllm-container: 2 ranks on 1 GPU(s): NCCL refuses two ranks on one GPU",
        "vllm: vLLM fills the GPU",
    ]


def real_pods() -> list[Json]:
    if not CORPUS.exists():
        missing("no real pod templates to try: set GPU_SHARE_CORPUS to a file of JSON lines with a pod each")
    return [json.loads(line)["pod"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def answered(pod: Json) -> Mutation | PolicyDenied:
    try:
        return mutate_pod(pod, policy=NamespacePolicy(), settings=Settings())
    except PolicyDenied as error:
        return error


def asking_for_a_share(pod: Json) -> Json:
    """Take whole GPUs out and ask for a share instead, as somebody would who moves to this product."""
    for section in ("initContainers", "containers"):
        for container in pod["spec"].get(section) or []:
            resources = container.get("resources") or {}
            for part in ("limits", "requests"):
                for key in list(resources.get(part) or {}):
                    if key == "nvidia.com/gpu" or key.startswith(("nvidia.com/mig-", "nvidia.com/gpu.")):
                        del resources[part][key]
    annotations = pod["metadata"].get("annotations") or {}
    pod["metadata"]["annotations"] = annotations | {"gpu-share.io/memory": "4Gi", "gpu-share.io/compute": "25%"}
    return pod
