"""``gpu-share ui`` as a program: the address that it prints, its end, and pages as files."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from gpushare.kube_client import KubeClient
from gpushare_cli import ui
from gpushare_cli.main import main
from gpushare_cli.ui import server
from tests.house_lines import code_lines
from tests.support.ui import words
from tests.unit.gpushare_cli.ui.fleets import Watched, claim, fleet

HOSTILE = "../../outside"


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Watched:
    cluster = fleet()
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    monkeypatch.setattr(server, "namespace_of", lambda *_: "asr")
    return cluster


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]


def test_a_snapshot_is_the_pages_as_files_without_dead_links(
    cluster: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "pages"
    cluster.add("resourceclaims", claim("asr", HOSTILE, "one", 1, 1024))
    assert main(["ui", "--snapshot", str(folder)]) == 0
    said = capsys.readouterr().out
    files = {each.name: each.read_text() for each in folder.glob("*.html")}
    assert said == f"{len(files) - 1} pages in {folder}; open {folder / 'index.html'}\n"
    assert files["index.html"] == files["fleet.html"]
    expected = {"fleet", "kills", "gpu_one_gpu-0", "gpu_two_gpu-0", "namespace_asr", "pod_tts_tts-0", "pod_asr_waits"}
    assert {f"{each}.html" for each in expected} <= set(files)
    assert "tts/tts-0 model 4Gi 25% 9Gi" in words(files["gpu_one_gpu-0.html"])
    for name, text in files.items():
        page = Page(text)
        dead = [each for each in page.links if not (folder / each.partition("#")[0]).is_file()]
        assert [each for each in dead if each not in {"#main", "data:,"} and "%2F" not in each] == [], name
        assert {"script", "form"}.isdisjoint(page.tags), name
        assert 'http-equiv="Content-Security-Policy"' in text
    assert {each.parent for each in tmp_path.rglob("*.html")} == {folder}, "no name leads out of the folder"


def test_a_snapshot_of_a_tenant_starts_with_the_namespace(cluster: Watched, tmp_path: Path) -> None:
    cluster.hidden |= {"nodes", "resourceslices", "resourceclaims", "pods", "events", "daemonsets"}
    assert main(["ui", "--snapshot", str(tmp_path)]) == 0
    assert "Namespace asr" in words((tmp_path / "index.html").read_text())
    assert "you may not list resourceslices" in words((tmp_path / "fleet.html").read_text())


def test_a_folder_that_cannot_be_written_is_a_sentence(
    cluster: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["ui", "--snapshot", str(tmp_path / "file")]) == 2
    said = f"gpu-share: --snapshot {tmp_path / 'file'}: File exists; name a folder that you may write\n"
    assert capsys.readouterr().err == said


def test_the_address_that_is_printed_opens_the_pages_until_interrupted(
    cluster: Watched, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    seen: dict[str, str] = {}

    def reader() -> None:
        while not opened:
            time.sleep(0.02)
        file = Path(opened[0].removeprefix("file://"))
        seen["mode"] = oct(file.parent.stat().st_mode)[-3:]
        address = seen["address"] = file.read_text().partition("url=")[2].partition('"')[0]
        first = urlopen(address, timeout=10).read().decode().partition("url=")[2].partition('"')[0]
        seen["page"] = urlopen(f"{address}{first}", timeout=10).read().decode()
        events = urlopen(f"{address}events", timeout=10)
        seen["first"] = events.readline().decode()
        cluster.change("ADDED", "resourceclaims", claim("asr", "later", "two", 0, 2048))
        while not seen["first"].startswith("data: "):
            seen["first"] = events.readline().decode()
        for other in (address.replace("127.0.0.1", "[::1]"), address[:-4] + "/"):
            with pytest.raises((HTTPError, OSError)):
                urlopen(Request(other), timeout=5)
        os.kill(os.getpid(), signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    thread = Thread(target=reader)
    thread.start()
    try:
        assert main(["ui"]) == 0
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[A-Za-z0-9_-]{32}/", seen["address"])
    assert seen["address"] in capfd.readouterr().out
    assert (seen["mode"], Path(opened[0].removeprefix("file://")).exists()) == ("700", False)
    assert "3 GPUs on 2 of 2 nodes" in words(seen["page"])


def test_a_port_that_is_taken_is_a_sentence(cluster: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--no-browser", "--port", str(port)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"gpu-share: --port {port} cannot be used; write another one, or 0 for a free one"
    )
    assert main(["ui", "--port", "70000"]) == 2


def test_without_flask_the_remedy_is_named() -> None:
    code = "import sys; sys.modules['flask'] = None; from gpushare_cli import extras; extras.MODULES['ui'] = ('nope',);"
    code += "from gpushare_cli.main import main; sys.exit(main(['ui']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        2, "gpu-share: nope: not installed; run: pip install 'gpu-share[ui]'\n"
    )  # fmt: skip


def test_code_and_templates_stay_small() -> None:
    files = [each for each in Path(ui.__path__[0]).rglob("*.*") if each.suffix in {".py", ".html", ".css", ".js"}]
    lines = [
        code_lines(each.read_text()) if each.suffix == ".py" else sum(map(bool, each.read_text().split("\n")))
        for each in files
    ]
    assert len(files) > 20
    assert sum(lines) <= 1800
