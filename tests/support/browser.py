"""Headless Chromium of Debian's packages, driven by its DevTools protocol, and axe-core of npm's: fetched on first use.

Nothing of them is installed: both are unpacked into the cache, and a test that cannot have them says so.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import websocket

from tests.support.need import missing
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.packages import tree

PACKAGE: Final = "chromium-headless-shell"
AXE: Final = "4.14.1"
AXE_SHA512: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
START_SECONDS: Final = 60.0
LOAD_SECONDS: Final = 30.0


def axe() -> str:
    """Return the script of axe-core, which finds what hinders people with disabilities on a page."""
    file = cache_root() / f"axe-core-{AXE}.tgz"
    if not file.is_file():
        if shutil.which("npm") is None:
            missing("axe-core: npm is missing")
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", "--silent", f"axe-core@{AXE}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
            packed = next(Path(folder).glob("*.tgz"), None)
            if done.returncode or packed is None:
                missing(f"axe-core cannot be fetched: {done.stderr.decode()[-300:]}")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(packed, file)
    assert base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode() == AXE_SHA512
    with tarfile.open(file) as archive:
        found = archive.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


class Browser:
    """One page of a browser. Each command waits for its answer; what the page complains of is in ``complaints``."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._numbers = socket, count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            self._heard(answer)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def _heard(self, answer: dict[str, Any]) -> None:
        parameters = answer.get("params", {})
        if answer.get("method") == "Log.entryAdded":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        if answer.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])

    def run(self, script: str) -> Any:
        """Run a script in the page, wait for what it promises, and return its value."""
        result = self.ask(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, address: str) -> None:
        """Open an address and wait until the page is there."""
        self.ask("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def until(self, holds: str, seconds: float = LOAD_SECONDS) -> float:
        """Wait until an expression is true in the page; return the seconds it took."""
        began = time.monotonic()
        while self.run(f"Boolean({holds})") is not True:
            assert time.monotonic() - began < seconds, f"not within {seconds} s: {holds}"
            time.sleep(0.05)
        return time.monotonic() - began

    def look(self, width: int, *, dark: bool) -> None:
        """Show the page so many pixels wide, in light or dark."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        """Write the whole page as a PNG."""
        shown = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))

    def findings(self, script: str) -> list[str]:
        """Return the serious findings of axe-core, whose ``script`` this is."""
        self.run(f"{script}; true")
        found = self.run("axe.run({preload: false}).then(found => JSON.stringify(found.violations))")
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in json.loads(found) if each["impact"] in {"serious", "critical"} for node in each["nodes"]
        ]  # fmt: skip


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium with a profile of its own; a test ends where it cannot be had."""
    program, environment = _program()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its children still write for a moment
        command = [
            program, "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}",
            "--remote-allow-origins=*", "--disable-dev-shm-usage", "--hide-scrollbars", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            socket = websocket.create_connection(_page(Path(folder), process), timeout=LOAD_SECONDS)
            try:
                yield Browser(socket)
            finally:
                socket.close()
        finally:
            process.kill()
            process.wait()


def _program() -> tuple[str, dict[str, str]]:
    installed = shutil.which(PACKAGE)
    if installed:
        return installed, dict(os.environ)
    try:
        home = tree((PACKAGE,)) / "usr"
    except BedError as error:
        missing(f"Chromium cannot be fetched: {error}")
    libraries = [*home.glob("lib/*-linux-gnu"), *home.glob("lib/*-linux-gnu/*audio")]
    return str(home / "lib" / "chromium" / PACKAGE), os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}


def _page(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the DevTools of the first page."""
    file, end = folder / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while not (file.is_file() and file.read_text().count("\n")):
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < end, "Chromium does not start"
        time.sleep(0.05)
    port = file.read_text().split("\n")[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=START_SECONDS) as answer:
        pages = json.loads(answer.read())
    return str(next(each for each in pages if each["type"] == "page")["webSocketDebuggerUrl"])
