"""``gpu-share ui`` at a real API server: as operator, as tenant with ``edit``, as somebody without rights."""

from typing import Final

import pytest

from gpushare.contract import COMPUTE
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.explaining import account, kill, prepared, runs, viewer
from tests.load.bench.ui import GPUS, first_page, fleet
from tests.support.extent import trials
from tests.support.patience import patient
from tests.support.ui import START, opened

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
NODES: Final = trials(50, 500)
FIRST: Final = {50: 1.0, 500: 3.0}[NODES]
"""Seconds of a processor from the command to the first page: on a quiet machine it takes no longer."""
MOST_KIB: Final = 150 * 1024


def test_an_operator_sees_fleet_gpu_and_pods_and_what_changes(bed: Bed) -> None:
    namespace = bed.namespace("shown")
    bed.node("shown", 16384, 16384)
    bed.create(namespace, objects.pod("first", "4Gi", node="shown", **{COMPUTE: "25%"}))
    prepared(bed, bed.wait_bound(namespace, "first"))
    runs(bed, namespace, "first")
    with opened(bed.plane.kubeconfig()) as browser:
        assert "shown GPU" in browser.page("fleet.html?node=shown")
        assert "4Gi N/A 0 12Gi of 16Gi 1 use not read" in browser.page("fleet.html?node=shown")
        assert f"{namespace}/first 4Gi 25%" in browser.page("gpu_shown_gpu-0.html")
        bed.create(namespace, objects.pod("second", "8Gi", node="shown"))
        seen = bed.wait_bound(namespace, "second")
        browser.until("gpu_shown_gpu-0.html", f"{namespace}/second 8Gi")
        kill(bed, seen)
        took = browser.until(f"namespace_{namespace}.html", "9000 MiB")
        assert took < patient(2.0)
        page = browser.page(f"pod_{namespace}_second.html")
        assert "last kill" in page
        assert "gpu-share explain" in page
        found = browser.page("fit.html?memory=12Gi&selector=kubernetes.io%2Fhostname%3Dshown")
        assert "1 such pod fits now" in found


def test_a_tenant_with_edit_sees_the_namespace_and_why_a_pod_waits(bed: Bed) -> None:
    namespace = bed.namespace("mine")
    bed.node("mine", 8192)
    bed.create(namespace, objects.pod("waits", "12Gi", node="mine"))
    bed.wait_unschedulable(namespace, "waits")
    with opened(viewer(bed, namespace, "edit"), "-n", namespace) as browser:
        page = browser.page()
        assert f"Namespace {namespace}" in page
        assert "no GPU there fits" in browser.page(f"namespace_{namespace}.html")
        assert "you may not list resourceslices in the cluster; ask for the ClusterRole" in browser.page("fleet.html")
        assert "you may not list" in browser.page("kills.html")
        bed.node("larger", 16384)
        bed.remove(path(CORE_V1, "pods", "waits", namespace))
        bed.create(namespace, objects.pod("runs", "12Gi", node="larger"))
        bed.wait_bound(namespace, "runs")
        browser.until(f"namespace_{namespace}.html", "larger")


def test_somebody_without_rights_gets_a_sentence_on_each_page(bed: Bed) -> None:
    namespace = bed.namespace("closed")
    with opened(account(bed, namespace, "nobody"), "-n", namespace) as browser:
        for name in (f"namespace_{namespace}", "fleet", "kills", f"pod_{namespace}_x", "fit"):
            page = browser.page(f"{name}.html" + ("?memory=4Gi" if name == "fit" else ""))
            assert "you may not" in page, page


def test_the_first_page_of_many_nodes_takes_little_time_of_a_processor_and_little_memory(bed: Bed) -> None:
    with fleet(bed, NODES):
        first_page(bed.plane.kubeconfig())  # it writes the bytecode
        found = first_page(bed.plane.kubeconfig())
        with opened(bed.plane.kubeconfig()) as browser:
            assert f"{GPUS * NODES} GPUs on" in browser.page("fleet.html?node=fleet-")
            kib = browser.kib
    print(f"\nfirst page of {NODES} nodes: {found.seconds:.2f} s, {found.cpu:.2f} s of a processor; then {kib} KiB")
    assert "reserved" in found.text
    assert found.cpu < FIRST
    assert found.seconds < patient(START)
    assert kib < MOST_KIB
