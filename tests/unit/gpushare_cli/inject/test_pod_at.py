"""``inject --pod-at``: pod templates in objects of other APIs."""

from typing import Any

import pytest
import yaml

from gpushare.contract import MEMORY
from tests.unit.gpushare_cli.inject.test_custom_workloads import SPECS, made
from tests.unit.gpushare_cli.injecting import Run
from tests.unit.gpushare_cli.streams import pod, text, wrapped

RAY = ("ray.io/v1", "RayCluster")
CLUSTER = made(*RAY, SPECS[RAY])
EACH_WORKER = "spec.workerGroupSpecs[*].template"


def claims(value: Any) -> int:
    """How many pods of a text or a value use a claim of ours."""
    return str(value).count("resourceClaimTemplateName")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (RAY, EACH_WORKER),
        (RAY, "spec.workerGroupSpecs[0].template"),
        (RAY, "spec.workerGroupSpecs.*.template"),
        (("kubeflow.org/v1", "PyTorchJob"), "spec.pytorchReplicaSpecs.*.template"),
        (("jobset.x-k8s.io/v1alpha2", "JobSet"), "spec.replicatedJobs[*].template.spec.template"),
        (("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), "spec.leaderWorkerTemplate.workerTemplate"),
    ],
)
def test_a_pod_template_of_another_api_is_rewritten_where_it_is(inject: Run, kind: tuple[str, str], path: str) -> None:
    code, out, err = inject(yaml.safe_dump(made(*kind, SPECS[kind])), "--pod-at", path)
    assert (code, claims(out), "--pod-at" in err) == (0, 1, False)
    assert yaml.safe_load(out)["kind"] == kind[1]


def test_several_paths_and_items_of_a_list_are_followed(inject: Run) -> None:
    head = {"headGroupSpec": {"template": pod()}, "workerGroupSpecs": [{"template": pod()}, {"template": pod()}]}
    items = [made(*RAY, head), wrapped("Deployment", pod())]
    paths = ("--pod-at", "spec.headGroupSpec.template", "--pod-at", EACH_WORKER)
    code, out, err = inject(text({"apiVersion": "v1", "kind": "List", "items": items}), *paths)
    assert (code, claims(out), "--pod-at" in err) == (0, 4, False)


def test_the_patch_leads_to_the_pod_template_also_through_odd_keys(inject: Run) -> None:
    item = made(*RAY, {"groups": {"a/b~c": {"template": pod()}}})
    code, out, _ = inject(yaml.safe_dump(item), "--pod-at", "spec.groups.*.template", "-o", "patch")
    assert code == 0
    assert "/spec/groups/a~1b~0c/template/spec" in out


def test_a_refusal_names_the_field_in_that_object(inject: Run) -> None:
    item = made(*RAY, {"workerGroupSpecs": [{"template": pod()}, {"template": pod(memory="4GB")}]})
    code, out, err = inject(yaml.safe_dump(item), "--pod-at", EACH_WORKER)
    assert (code, out) == (1, "")
    assert f"spec.workerGroupSpecs[1].template.metadata.annotations[{MEMORY}]" in err


def test_objects_of_known_kinds_are_not_searched(inject: Run) -> None:
    item = wrapped("Deployment", pod())
    assert inject(text(item), "--pod-at", "spec.template")[1] == inject(text(item))[1]


def test_what_cannot_be_read_and_is_no_business_of_ours_is_left_alone(inject: Run) -> None:
    secret = "apiVersion: v1\nkind: Secret\nstringData: {a: !Vault x}\n"
    code, out, _ = inject(f"{secret}---\n{yaml.safe_dump(CLUSTER)}", "--pod-at", EACH_WORKER)
    assert (code, claims(out)) == (0, 1)
    assert out.startswith(secret)


def test_a_path_that_leads_to_no_pod_template_is_pointed_out(inject: Run) -> None:
    code, out, err = inject(yaml.safe_dump(CLUSTER), "--pod-at", "spec.wrokers[*].template", "--pod-at", EACH_WORKER)
    assert (code, claims(out)) == (0, 1)
    assert "spec.wrokers[*].template" in err
    assert EACH_WORKER not in err


@pytest.mark.parametrize(
    "path", ["", ".", "spec..template", "spec[", "spec[a].b", "spec.x y", "spec[-1]", "/spec", "a" * 999]
)
def test_what_is_no_path_is_refused(inject: Run, path: str) -> None:
    code, out, err = inject(yaml.safe_dump(CLUSTER), f"--pod-at={path}")
    assert (code, out) == (2, "")
    assert "--pod-at" in err
