"""``gpu-share ui`` on a real cluster with a real node: use by exec, a kill on the page, each page in a browser."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import pytest

from gpushare.contract import GRACE_PERIOD
from tests.e2e import pods
from tests.e2e.site import Site
from tests.integration.controlplane.bed import SLICES
from tests.integration.controlplane.explaining import viewer
from tests.support.browser import axe, browser
from tests.support.patience import patient
from tests.support.ui import opened

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
TENANTS: Final = {"small": "1Gi", "middle": "2Gi", "large": "3Gi"}
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
SHOWN: Final = 5.0
"""Seconds after its record within which a kill is on the page: one on a quiet machine, two with six busy neighbours."""


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("seen", **{GRACE_PERIOD: "2s"})
    for each, amount in TENANTS.items():
        site.run(name, pods.pod(each, "hold", amount, memory="4Gi"))
    yield name
    site.drop(name, wait=True)


def test_use_and_a_kill_are_on_the_pages_and_the_log_verifies(site: Site, namespace: str) -> None:
    with opened(site.bed.plane.kubeconfig()) as server:
        server.until("fleet.html", "ok", 60)
        slices = site.bed.list(SLICES, "")
        names = [each["name"] for item in slices for each in item["spec"]["devices"] if each["name"] != "status"]
        gpu = f"gpu_{site.node.name}_{names[0]}.html"
        server.until(gpu, f"{namespace}/small main 4Gi", 60)
        server.until("kills.html", "intact", 60)
        site.create(namespace, pods.pod("greedy", *GREEDY))
        server.until("kills.html", f"{namespace}/greedy main", 120)
        appeared = datetime.now(UTC)
        lines = [json.loads(line) for line in server.text(f"kills.jsonl?namespace={namespace}").splitlines()]
        record = next(each for each in lines if each["pod"]["name"] == "greedy")
        took = (appeared - datetime.fromisoformat(record["time"])).total_seconds()
        print(f"\na kill was on the page {took:.2f} s after its record")
        assert took < patient(SHOWN)
        with browser() as chromium:
            for name in ("fleet.html", gpu, "kills.html", "waste.html", f"pod_{namespace}_greedy.html", "fit.html"):
                chromium.open(server.address + name)
                assert chromium.findings(axe()) == []
            assert chromium.complaints == []
    advice = json.loads(site.shell("gpu-share advise -A -o json --min-age 0s"))
    mine = {each["workload"]: each for each in advice if each["namespace"] == namespace}
    assert mine["Pod small"]["advisedMiB"] < mine["Pod small"]["reservedMiB"]
    assert mine["Pod greedy"]["advisedMiB"] >= mine["Pod greedy"]["reservedMiB"]


def test_a_tenant_sees_use_through_the_sidecars(site: Site, namespace: str) -> None:
    with opened(viewer(site.bed, namespace, "edit"), "-n", namespace) as server:
        server.until(f"namespace_{namespace}.html", f"middle main {site.node.name} 2", 60)
        assert "you may not list resourceslices" in server.page("fleet.html")
        server.until(f"pod_{namespace}_middle.html", "uses 2048 MiB", 60)
