"""Pages about KServe, Ray and JupyterHub: what their blocks ask for is what the pods of the golden cases ask for."""

from typing import Any, Final

import pytest
import yaml

from gpushare import contract
from gpushare_cli.inject import workloads
from tests.golden.cases import ROOT, Case
from tests.support import pages

PAGES: Final = {
    "docs/tenants/kserve.md": ("kserve-raw", ("metadata", "annotations")),
    "docs/tenants/ray.md": ("kuberay-worker", ("spec", "workerGroupSpecs", 0, "template", "metadata", "annotations")),
    "docs/operators/jupyterhub.md": (
        "jupyterhub-profile", ("singleuser", "profileList", 1, "kubespawner_override", "extra_annotations"),
    ),
}  # fmt: skip
"""The page, the case with the pod that comes of its block, and where the block has the pod's annotations."""


def block(page: str) -> Any:
    (found,) = [yaml.safe_load(each.text) for each in pages.blocks("yaml") if each.page == page]
    return found


def asked(annotations: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if contract.is_ours(key)}


@pytest.mark.parametrize("page", PAGES)
def test_the_pod_of_the_case_asks_for_what_the_page_writes(page: str) -> None:
    name, steps = PAGES[page]
    found = block(page)
    for step in steps:
        found = found[step]
    pod = Case(ROOT / name).pod
    assert asked(found) == asked(pod["metadata"]["annotations"]) != {}
    assert name in pages.read(page)


@pytest.mark.parametrize("page", ["docs/tenants/kserve.md", "docs/tenants/ray.md"])
def test_the_command_line_finds_the_annotations_where_pods_get_them(page: str) -> None:
    (note,) = workloads.notes(block(page))
    assert "the webhook rewrites its pods" in note


def test_the_profiles_leave_out_the_privileged_container() -> None:
    assert block("docs/operators/jupyterhub.md")["singleuser"]["cloudMetadata"] == {"blockWithIptables": False}
    assert "privileged" in Case(ROOT / "jupyterhub-cloud-metadata").answer()["refusal"]
