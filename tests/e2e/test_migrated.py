"""Manifests as HAMi's, KAI's and time slicing's users have them: converted, applied, and all of them run."""

from pathlib import Path
from typing import Final

import pytest

from tests.e2e.site import Site, ready
from tests.e2e.version import SIMULATOR_IMAGE

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
FOLDER: Final = Path(__file__).parent / "foreign"
CARD: Final = "--card 15Gi"
OPTIONS: Final = {"hami": CARD, "kai": CARD, "time-slicing": f"{CARD} --replicas nvidia.com/gpu=15"}
PODS: Final = {"hami": 3, "kai": 2, "time-slicing": 3}
MIB: Final = {
    "hami-part": "6144",
    "hami-amount": "3000",
    "kai-fraction": "3840",
    "kai-amount": "2000",
    "time-slicing": "1024",
}


def test_every_file_of_the_folder_is_tried() -> None:
    assert {each.stem for each in FOLDER.glob("*.yaml")} == OPTIONS.keys() == PODS.keys()


def test_converted_pods_run_with_the_share_that_they_had(site: Site) -> None:
    namespace = site.namespace("migrated")
    for name, options in OPTIONS.items():
        there = site.work / f"{name}.yaml"
        there.write_text((FOLDER / f"{name}.yaml").read_text().replace("IMAGE", SIMULATOR_IMAGE))
        site.shell(f"gpu-share migrate -f {there} {options} | kubectl apply --namespace {namespace} --filename -")
    site.until("all pods are there", lambda: len(site.pods(namespace)) == sum(PODS.values()))
    site.until("all run", lambda: all(map(ready, site.pods(namespace))), 180)
    found = {pod["metadata"]["name"]: memory(site, namespace, pod["metadata"]["name"]) for pod in site.pods(namespace)}
    assert {name: found[each] for name in MIB for each in found if each.startswith(name)} == MIB


def memory(site: Site, namespace: str, pod: str) -> str:
    """What a program finds as its limit in the container with a share, in MiB."""
    container = "workload" if pod == "kai-amount" else "main"
    return site.environ(namespace, pod, container)["GPU_SHARE_MEMORY_MIB"]
