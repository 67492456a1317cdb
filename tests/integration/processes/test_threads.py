"""The enforcer's threads, with all of its parts, are those of the table in CONTRIBUTING.md."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.contract import NODE_LABEL
from tests.integration.processes.containers import PROJECT, wait_for
from tests.integration.processes.test_driver_root import Machine, laid_out
from tests.support.kubelet import KubeletCalls
from tests.support.podresources import pod_resources

pytestmark = pytest.mark.node

MOST: Final = 12
"""Threads that last, beside one for each GPU and those of gRPC."""
RUN: Final = """
import sys, threading, time
from pathlib import Path
from enforcer.main import main

def tell(file):
    while True:
        new = file.with_suffix(".new")
        new.write_text("\\n".join(each.name for each in threading.enumerate()))
        new.replace(file)
        time.sleep(0.1)

threading.Thread(target=tell, args=[Path(sys.argv[1])], name="test", daemon=True).start()
sys.exit(main(sys.argv[2:]))
"""
NODE: Final[dict[str, Any]] = {
    "metadata": {"name": "n1", "uid": "n1", "labels": {NODE_LABEL: "true"}, "annotations": {}}
}


class Api(BaseHTTPRequestHandler):
    """An API server with one node, and lists that are empty."""

    def log_message(self, *_: object) -> None:
        """Keep the test's output quiet."""

    def node(self) -> dict[str, Any]:
        """Return the Node object."""
        return NODE

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/nodes/"):
            self._answer(json.dumps(self.node()).encode())
        elif "sendInitialEvents" in self.path:
            end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
            self._answer(json.dumps({"type": "BOOKMARK", "object": {"metadata": end}}).encode() + b"\n")
        elif "watch=" not in self.path:
            self._answer(b'{"items": [], "metadata": {"resourceVersion": "1"}}')
        else:
            self.send_response(200)
            self.end_headers()
            self.server.ended.wait(60)  # type: ignore[attr-defined] # a watch in which nothing happens

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    do_PUT = do_PATCH = do_POST  # noqa: N815 - the standard library's names

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def api_server(folder: Path, api: type[Api]) -> Iterator[Path]:
    """Serve; gives the kubeconfig."""
    with ThreadingHTTPServer(("127.0.0.1", 0), api) as server:
        server.daemon_threads, server.block_on_close = True, False
        server.ended = threading.Event()  # type: ignore[attr-defined] # ours
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        }  # fmt: skip
        (folder / "kubeconfig").write_text(json.dumps(config))
        yield folder / "kubeconfig"
        server.ended.set()  # type: ignore[attr-defined] # ours
        server.shutdown()


def start(machine: Machine, stack: ExitStack, api: type[Api] = Api) -> subprocess.Popen[bytes]:
    """Start the enforcer with all of its parts on a node of two GPUs."""
    kubelet = machine.root / "kubelet"
    stack.enter_context(pod_resources(kubelet))
    kubeconfig = stack.enter_context(api_server(machine.root, api))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--node=n1", "--allow-any-pid-namespace", "--poll-seconds=0.2", "--mps-check-seconds=1",
        f"--metrics=127.0.0.1:{port}", f"--kubeconfig={kubeconfig}", f"--kubelet-root={kubelet}",
        f"--cdi-root={machine.root / 'cdi'}", f"--state={machine.state}", f"--run={machine.run}",
        f"--driver-root={machine.root / 'driver'}",
    ]  # fmt: skip
    with (machine.root / "enforcer.log").open("wb") as log:
        command = [sys.executable, "-c", RUN, str(machine.root / "threads"), *options]
        machine.enforcer = subprocess.Popen(command, cwd=PROJECT, env={"PATH": os.environ["PATH"]}, stderr=log)
    stack.callback(machine.end)
    return machine.enforcer


def names(machine: Machine) -> list[str]:
    """The threads there are now, beside the test's own."""
    file = machine.root / "threads"
    return [each for each in file.read_text().splitlines() if each != "test"] if file.exists() else []


def table() -> dict[str, str]:
    """The rows of the table: a thread's name, and whether it lasts."""
    text = (PROJECT / "CONTRIBUTING.md").read_text().partition("## Threads of the enforcer")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"][2:]
    return {row[0].strip("`"): row[1] for row in rows}


def row_of(name: str) -> str:
    """The row that a thread belongs to."""
    rows = {"MainThread": "main", r"release-.*": "release-GPU", r"Thread-\d+ \(_serve\)": "Thread-N (_serve)"}
    for pattern, row in rows.items():
        if re.fullmatch(pattern, name):
            return row
    return re.sub(r"_\d+$", "_N", name)


def test_the_threads_are_those_of_the_table_and_no_more_than_twelve_last_beside_one_for_each_gpu() -> None:
    rows = table()
    lasting = {name for name, kind in rows.items() if kind == "lasts"}
    assert len(lasting) <= MOST
    with laid_out() as machine, ExitStack() as stack:
        enforcer = start(machine, stack)
        wait_for(lambda: lasting <= set(map(row_of, names(machine))) and _released(machine) == 2, 60)
        with KubeletCalls(machine.root / "kubelet") as calls:
            calls.register()
            wait_for(lambda: "gpu-share.io-reg_0" in names(machine), 20)
        found = Counter(map(row_of, names(machine)))
        assert set(found) <= set(rows), f"not in the table: {sorted(set(found) - set(rows))}"
        assert {name: found[name] for name in lasting} == dict.fromkeys(lasting, 1)
        assert found["release-GPU"] == 2
        enforcer.terminate()
        assert enforcer.wait(30) == 0, (machine.root / "enforcer.log").read_text()
        assert "did not stop in time" not in (machine.root / "enforcer.log").read_text()


def _released(machine: Machine) -> int:
    return sum(name.startswith("release-") for name in names(machine))
