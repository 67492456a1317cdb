"""The examples as people apply them: accepted by the real API server, rewritten where they share."""

from pathlib import Path

import pytest
import yaml

from gpushare.contract import MANAGED_LABEL
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.objects import Object

pytestmark = pytest.mark.controlplane
FOLDER = Path(__file__).parents[3] / "examples"
WHERE = {"Pod": ("/api/v1", "pods"), "Deployment": ("/apis/apps/v1", "deployments"), "Job": ("/apis/batch/v1", "jobs")}


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("name", sorted(file.name for file in FOLDER.glob("*.yaml")))
def test_an_example_is_accepted_and_its_pods_are_rewritten(bed: Bed, name: str) -> None:
    namespaces = [each for each in documents(name) if each["kind"] == "Namespace"]
    for each in namespaces:
        bed.cluster.create(path(CORE_V1, "namespaces"), each, dryRun="All", fieldValidation="Strict")
    annotations = namespaces[0]["metadata"]["annotations"] if namespaces else {}
    level = {"pod-security.kubernetes.io/enforce": "restricted"} if name == "job.yaml" else {}
    namespace = bed.namespace("example", annotations=annotations, labels=level)
    for item in (each for each in documents(name) if each["kind"] != "Namespace"):
        base, plural = WHERE[item["kind"]]
        item["metadata"].pop("namespace", None)
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        made = bed.plane.cluster("tenant").create(path(base, plural, namespace=namespace), item, **strict)
        if item["kind"] != "Pod":
            made = bed.create(namespace, _merged(item["spec"]["template"]), **strict)
        assert made["metadata"]["labels"][MANAGED_LABEL] == "true"


def _merged(template: Object) -> Object:
    """A pod as a controller makes it of its template."""
    return {"metadata": {**template["metadata"], "name": "it"}, "spec": template["spec"]}
