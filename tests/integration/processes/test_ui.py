"""The pages of ``gpu-share ui`` in headless Chromium: axe-core, both widths, both schemes, live, and as files.

``GPU_SHARE_PICTURES=1`` writes the pictures of docs/pictures.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Final

import pytest

from enforcer.audit.log import segments
from gpushare.contract import AUDIT_HEAD
from gpushare.errors import ClusterError
from gpushare_cli.ui import server, sources
from gpushare_cli.ui.cache import Cached, Changes, History
from gpushare_cli.ui.pages import Pages
from gpushare_cli.ui.server import leading_to, serve
from gpushare_cli.ui.sources import Sources
from tests.support.browser import Browser, axe, browser
from tests.unit.gpushare_cli.audit_logs import write
from tests.unit.gpushare_cli.ui import fleets
from tests.unit.gpushare_cli.ui.fleets import Logged

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("chromium")]
PICTURES: Final = Path(__file__).parents[3] / "docs" / "pictures"
PAGES: Final = {
    "fleet": "fleet.html", "gpu": "gpu_one_gpu-0.html", "namespace": "namespace_asr.html", "pod": "pod_asr_asr-0.html",
    "kills": "kills.html", "waste": "waste.html?price=2.50", "fit": "fit.html?memory=12Gi",
    "refused": "pod_asr_nobody.html",
}  # fmt: skip
KEPT: Final = ("fleet", "gpu", "kills", "waste")
"""Pages whose pictures the documentation shows."""
WIDTHS: Final = (390, 1280)


@pytest.fixture(name="script", scope="module")
def _script() -> str:
    return axe()


@pytest.fixture(name="chromium", scope="module")
def _chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logged:
    monkeypatch.setattr(sources, "LEAST_AGE", 0.0)
    monkeypatch.setattr(sources, "USE_SECONDS", 0.3)
    cluster = Logged()
    cluster.__dict__.update(fleets.fleet().__dict__)
    cluster.folders = {name: tmp_path / name for name in ("one", "two")}
    fleets.report(cluster.lists["resourceslices"][1], "the MPS daemon of GPU 0 does not answer")
    for item in cluster.lists["resourceslices"]:
        node = item["spec"]["nodeName"]
        item["metadata"]["annotations"][AUDIT_HEAD] = str(write(cluster.folders[node], node=node))
        for number, device in enumerate(item["spec"]["devices"][:-1]):
            device["attributes"] |= {
                "index": {"int": number}, "mode": {"string": "mps"}, "limitBackend": {"string": "mps-v2"},
                "driverVersion": {"version": "580.159.4"},
            }  # fmt: skip
    return cluster


def seen_before(history: History) -> None:
    """Let a page have been open for a quarter of an hour, in which one tenant took more and more."""
    now = time.monotonic()
    for second in range(900, 0, -10):
        share = 1 - second / 900
        uses = {"asr": 1024, "llm": 1024 + round(1024 * share), "tts": 3072 + round(6144 * max(0.0, share - 0.8) * 5)}
        history.add("GPU-one-0", now - second, 512 + sum(uses.values()))
        for name, mib in uses.items():
            history.add((name, f"{name}-0", "model", "GPU-one-0"), now - second, mib)


@pytest.fixture(name="opened")
def _opened(cluster: Any, chromium: Browser) -> Iterator[Any]:
    changes = Changes()
    made = Pages(Sources(Cached(cluster, changes)), "asr", wait=5.0, live=True)
    seen_before(made.sources.history)
    server, address = serve(made, changes, 0)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield SimpleNamespace(address=address, made=made)
    chromium.open("about:blank")  # or its page asks a server that is gone
    changes.close()
    server.shutdown()
    thread.join()


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_no_serious_finding_at_each_width_in_light_and_dark(
    name: str, chromium: Browser, opened: Any, script: str, tmp_path: Path
) -> None:
    chromium.complaints.clear()
    for width in WIDTHS:
        for dark in (False, True):
            chromium.look(width, dark=dark)
            chromium.open(opened.address + PAGES[name])
            assert chromium.findings(script) == []
            assert chromium.run("document.documentElement.scrollWidth") == width, "no scrolling to the side"
            file = tmp_path / f"{name}-{width}-{'dark' if dark else 'light'}.png"
            chromium.picture(file)
            assert file.stat().st_size > 5000
            if os.environ.get("GPU_SHARE_PICTURES") and name in KEPT and width == WIDTHS[1] and not dark:
                (PICTURES / f"ui-{name}.png").write_bytes(file.read_bytes())
    assert chromium.complaints == [], "the policy forbids nothing that pages do"


def test_the_file_that_is_opened_leads_to_the_first_page(chromium: Browser, opened: Any, tmp_path: Path) -> None:
    (tmp_path / "open.html").write_text(leading_to(opened.address))
    chromium.ask("Page.navigate", url=(tmp_path / "open.html").as_uri())
    chromium.until(f"location.href === {opened.address + 'fleet.html'!r} && document.readyState === 'complete'")
    chromium.until("document.querySelector('h1')?.textContent === 'Fleet'")


def test_the_first_key_leads_to_the_content_and_each_link_can_be_reached(chromium: Browser, opened: Any) -> None:
    chromium.look(1280, dark=False)
    chromium.open(f"{opened.address}fleet.html")
    seen = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            chromium.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(chromium.run("document.activeElement.className + ' ' + document.activeElement.textContent.trim()"))
    assert seen[0] == "skip Skip to the content"
    assert {" Kills", " GPU 1", " tts", " Filter"} <= set(seen)


def test_what_changes_is_shown_without_a_reload_and_the_focus_stays(
    chromium: Browser, opened: Any, cluster: Logged
) -> None:
    chromium.open(f"{opened.address}gpu_one_gpu-0.html")
    chromium.run("window.stays = true; document.querySelector('#live a').focus(); true")
    cluster.change("ADDED", "resourceclaims", fleets.claim("asr", "later", "one", 0, 2048))
    chromium.until("document.body.textContent.includes('asr/later')")
    assert chromium.run("window.stays")
    assert chromium.run("document.activeElement.textContent") == "asr/asr-0"
    cluster.answers["enforcer-one"] = b"", ClusterError("the enforcer went away", 500)
    chromium.until("document.body.textContent.includes('the enforcer went away')")
    assert chromium.run("document.body.textContent.includes('use not read')")


def test_a_pending_pod_that_gets_a_node_is_no_longer_among_those_that_wait(
    chromium: Browser, opened: Any, cluster: Logged
) -> None:
    chromium.open(f"{opened.address}namespace_asr.html")
    chromium.until("document.body.textContent.includes('Waiting for a node')")
    ready = fleets.pod("asr", "waits", "one")
    cluster.answers["waits"] = fleets.pod_status(512), None
    cluster.change("MODIFIED", "pods", ready)
    chromium.until("!document.body.textContent.includes('Waiting for a node')")
    chromium.until("document.querySelector('#live table').textContent.includes('0.5Gi')")


def test_a_kill_is_shown_within_two_seconds_of_its_record_and_a_changed_log_is_red(
    chromium: Browser, opened: Any, cluster: Logged
) -> None:
    chromium.look(1280, dark=False)
    chromium.open(f"{opened.address}kills.html")
    chromium.until("document.body.textContent.includes('6 records')")
    head = write(cluster.folders["one"], node="one")
    event = {
        "metadata": {"namespace": "asr", "name": "kill"}, "reportingComponent": fleets.REPORTER,
        "reportingInstance": "one", "reason": "Killed", "message": f"ended; audit log {head}",
    }  # fmt: skip
    cluster.change("ADDED", "events", event)
    took = chromium.until("document.body.textContent.includes('12 records')")
    print(f"\na kill was shown {took:.2f} s after its record")
    assert took < 2.0
    file = segments(cluster.folders["two"] / "audit")[0]
    file.write_bytes(file.read_bytes().replace(b"tts-1", b"tts-9", 1))
    cluster.change(
        "ADDED", "events", {**event, "metadata": {"namespace": "asr", "name": "k2"}, "reportingInstance": "two"}
    )
    chromium.until("[...document.querySelectorAll('.state')].some(each => each.textContent === 'broken')")
    colour = "getComputedStyle([...document.querySelectorAll('.state')].find(e => e.textContent === 'broken')).color"
    assert chromium.run(colour) == "rgb(179, 38, 30)"


def test_a_page_of_another_origin_gets_nothing(chromium: Browser, opened: Any) -> None:
    chromium.open("about:blank")
    for options in ("{}", "{mode: 'no-cors'}", "{method: 'POST'}"):
        script = f"fetch({opened.address!r} + 'fleet.html', {options}).then(a => a.text()).catch(e => '')"
        assert chromium.run(script) == ""


def test_a_server_that_has_ended_is_said_so(chromium: Browser, cluster: Any) -> None:
    changes = Changes()
    server, address = serve(Pages(Sources(Cached(cluster, changes)), "asr", wait=5.0, live=True), changes, 0)
    thread = Thread(target=server.serve_forever)
    thread.start()
    chromium.open(f"{address}fleet.html")
    server.shutdown()
    thread.join()
    server.server_close()
    changes.close()
    chromium.run("news.close(); news.onerror(); true")
    assert "Not current" in chromium.run("document.getElementById('lost').textContent")
    chromium.open("about:blank")


def test_a_snapshot_is_read_from_files_in_its_own_style(
    chromium: Browser, cluster: Any, script: str, tmp_path: Path
) -> None:
    changes = Changes(once=True)
    pages = Pages(Sources(Cached(cluster, changes)), "asr", wait=20.0, live=False)
    number, more = server.write(pages, tmp_path / "pages")
    assert (number >= len(PAGES), more) == (True, False)
    chromium.complaints.clear()
    for name in ("index", "gpu_one_gpu-0", "kills"):
        chromium.look(390, dark=True)
        chromium.open(f"file://{tmp_path}/pages/{name}.html")
        assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 22)"
        assert chromium.findings(script) == []
    assert chromium.complaints == []
