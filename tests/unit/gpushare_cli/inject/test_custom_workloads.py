"""What ``inject`` says of objects whose pods a controller of their own makes."""

from typing import Any

import pytest
import yaml

from gpushare.contract import MEMORY, MEMORY_OF
from gpushare_cli.inject.workloads import notes
from tests.unit.gpushare_cli.injecting import Run
from tests.unit.gpushare_cli.streams import pod, text, wrapped

Object = dict[str, Any]
TEMPLATE: Object = {"metadata": {"annotations": {MEMORY: "4Gi"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
SPECS: dict[tuple[str, str], Object] = {
    ("ray.io/v1", "RayCluster"): {"workerGroupSpecs": [{"template": TEMPLATE}]},
    ("serving.kserve.io/v1beta1", "InferenceService"): {"predictor": {"annotations": {MEMORY: "4Gi"}}},
    ("kubeflow.org/v1", "PyTorchJob"): {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}},
    ("kubeflow.org/v1", "Notebook"): {"template": TEMPLATE},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]},
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE}},
    ("batch.volcano.sh/v1alpha1", "Job"): {"tasks": [{"template": TEMPLATE}]},
    ("argoproj.io/v1alpha1", "Rollout"): {"template": TEMPLATE},
    ("example.com/v1", "Anything"): {"deep": [{"er": {"annotations": {MEMORY_OF + "a": "4Gi"}}}]},
}


def made(version: str, kind: str, spec: Object, **metadata: Any) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "team", **metadata},
        "spec": spec,
    }


@pytest.mark.parametrize(("version", "kind"), sorted(SPECS))
def test_the_pods_of_such_an_object_are_rewritten_later(inject: Run, version: str, kind: str) -> None:
    source = yaml.safe_dump(made(version, kind, SPECS[version, kind]))
    code, out, err = inject(source)
    assert (code, out) == (0, source)
    assert len(err.splitlines()) == 1
    assert err.startswith(f"{kind} team/x: ")
    assert "rewrites its pods at creation" in err


def test_each_of_them_is_named_also_beside_a_deployment(inject: Run) -> None:
    several = [made(*key, spec) for key, spec in SPECS.items()]
    code, out, err = inject("---\n".join([text(wrapped("Deployment", pod())), *map(yaml.safe_dump, several)]))
    assert code == 0
    assert out.count("resourceClaimTemplateName") == 1
    assert [line.split(" ")[0] for line in err.splitlines() if "rewrites its pods at creation" in line] == [
        kind for _, kind in SPECS
    ]


def test_so_are_items_of_a_list() -> None:
    items = [made("ray.io/v1", "RayCluster", SPECS["ray.io/v1", "RayCluster"]), wrapped("Deployment", pod())]
    assert len(list(notes({"apiVersion": "v1", "kind": "List", "items": items}))) == 1


def test_annotations_of_the_object_itself_count_where_its_pods_inherit_them() -> None:
    own = {"annotations": {MEMORY: "4Gi"}}
    (inherited,) = notes(made("serving.kserve.io/v1beta1", "InferenceService", {}, **own))
    (misplaced,) = notes(made("ray.io/v1", "RayCluster", {}, **own))
    assert "rewrites its pods at creation" in inherited
    assert "pod template" in misplaced


@pytest.mark.parametrize(
    "value",
    [
        made("v1", "Node", {}, annotations={"gpu-share.io/gpus": "0"}),
        made("v1", "Namespace", {}, annotations={"gpu-share.io/max-memory": "4Gi"}),
        made("ray.io/v1", "RayCluster", {"template": {"metadata": {"labels": {"gpu-share.io/managed": "true"}}}}),
        made("ray.io/v1", "RayCluster", {"note": f"say {MEMORY}"}),
        wrapped("Deployment", pod()),
        None,
        [],
        "gpu-share.io/memory",
        {"kind": 7, "metadata": [], "spec": {7: {MEMORY.upper(): 1}}},
    ],
    ids=repr,
)
def test_nothing_is_reported_of_anything_else(value: Any) -> None:
    assert list(notes(value)) == []


def test_an_object_that_only_its_controller_can_read_is_left_alone(inject: Run) -> None:
    source = f"apiVersion: example.com/v1\nkind: Odd\nspec:\n  a: !tag {{{MEMORY}: 1}}\n  a: 2\n"
    code, out, _ = inject(source)
    assert (code, out) == (0, source)
