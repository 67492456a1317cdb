"""``gpu-share ui`` on a real cluster with a real node: use by exec, a kill on the page, each page in a browser.

The audit log that is changed and the enforcer that goes away come last: the tests before them read that node.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import pytest

from enforcer.audit.log import segments
from gpushare.contract import GRACE_PERIOD
from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.absences import no_enforcer
from tests.e2e.site import STATE, Site
from tests.integration.controlplane.bed import SLICES
from tests.integration.controlplane.explaining import account, viewer
from tests.support.browser import axe, browser
from tests.support.patience import patient
from tests.support.ui import opened

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
TENANTS: Final = {"small": "1Gi", "middle": "2Gi", "large": "3Gi"}
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
SHOWN: Final = 5.0
"""Seconds after its record within which a kill is on the page: one on a quiet machine, two with six busy neighbours."""
STATES: Final = "[...document.querySelectorAll('.state')].map(each => each.textContent)"
ROOM: Final = "example.com/room"
COLOUR: Final = "getComputedStyle([...document.querySelectorAll('.state')].find(e => e.textContent === 'broken')).color"


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    name = site.namespace("seen", **{GRACE_PERIOD: "2s"})
    for each, amount in TENANTS.items():
        site.run(name, pods.pod(each, "hold", amount, memory="4Gi"))
    return name


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
            one, all_of_it = f"pod_{namespace}_greedy.html", f"namespace_{namespace}.html"
            for name in ("fleet.html", gpu, all_of_it, one, "kills.html", "waste.html", "fit.html?memory=4Gi"):
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


def test_a_pending_pod_becomes_ready_on_the_page(site: Site) -> None:
    """It asks for a label that no node has, and then the node has it."""
    name = site.namespace("room")
    waiting = pods.pod("waiting", "hold", "1Gi")
    waiting["spec"]["nodeSelector"] = {ROOM: "yes"}
    with opened(site.bed.plane.kubeconfig()) as server:
        page = f"namespace_{name}.html"
        site.create(name, waiting)
        server.until(page, "Waiting for a node waiting : ", 60)
        set_label(site, "yes")
        try:
            server.until(page, f"waiting main {site.node.name} 1Gi", 120)
        finally:
            set_label(site, None)
        assert "Waiting for a node" not in server.page(page)
    site.drop(name, wait=True)


def set_label(site: Site, value: str | None) -> None:
    node = path(CORE_V1, "nodes", site.node.name)
    site.cluster.patch(node, {"metadata": {"labels": {ROOM: value}}}, "application/merge-patch+json")


def test_somebody_without_rights_gets_a_sentence_on_each_page(site: Site, namespace: str) -> None:
    with opened(account(site.bed, namespace, "nobody"), "-n", namespace) as server:
        for name in (f"namespace_{namespace}", "fleet", "kills", "waste", f"pod_{namespace}_small", "fit"):
            page = server.page(f"{name}.html" + ("?memory=4Gi" if name == "fit" else ""))
            assert "you may not" in page, page


def test_a_changed_audit_log_is_red_and_an_enforcer_that_is_gone_is_named(site: Site, namespace: str) -> None:
    """The enforcer reports a problem within seconds, and once a minute at most: so long a page may take."""
    with opened(site.bed.plane.kubeconfig()) as server, browser() as chromium:
        chromium.look(1280, dark=False)
        chromium.open(f"{server.address}kills.html")
        chromium.until(f"{STATES}.includes('ok')", patient(60))
        with changed_log(site, namespace):
            chromium.until(f"{STATES}.includes('broken')", patient(120))
            assert chromium.run(COLOUR) == "rgb(179, 38, 30)"
        chromium.until(f"{STATES}.includes('ok')", patient(120))
        with no_enforcer(site):
            chromium.until("document.body.textContent.includes('no enforcer runs there')", patient(90))
            assert f"{namespace}/greedy" in chromium.run("document.body.textContent"), "its records stay"
            chromium.open(f"{server.address}fleet.html")
            chromium.until("document.body.textContent.includes('no enforcer runs there')", patient(90))
        chromium.until(f"{STATES}.includes('ok')", patient(120))
        chromium.open(f"{server.address}kills.html")
        chromium.until(f"{STATES}.includes('ok')", patient(120))


@contextmanager
def changed_log(site: Site, namespace: str) -> Iterator[None]:
    """Write one other letter into a record on the node; the enforcer may append meanwhile."""
    name = namespace.encode()
    file = next(each for each in segments(site.on_node(STATE) / "audit") if name in each.read_bytes())
    at = file.read_bytes().index(name)

    def write(letter: bytes) -> None:
        with file.open("r+b") as log:
            log.seek(at)
            log.write(letter)

    write(name[:1].upper())
    try:
        yield
    finally:
        write(name[:1])
