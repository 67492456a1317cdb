"""Thousands of connections that send nothing, or too little, to the ports of metrics and readiness.

Each of them must cost the process neither a thread, nor a descriptor, nor memory, and a scraper must get its answer
meanwhile.
"""

import http.client
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.need import missing
from tests.support.webhook import serving
from tests.testbed.cluster.ports import free_ports

PROJECT = Path(__file__).resolve().parents[2]
CONNECTIONS = 2000
SCRAPED_EVERY = 100
MORE_DESCRIPTORS = 40
MORE_THREADS = 3
MORE_MIB = 8.0
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """A process and its port for metrics."""

    pid: int
    port: int

    def scrape(self) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read()
        finally:
            connection.close()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def webhook(folder: Path, stack: ExitStack) -> Target:
    running = stack.enter_context(serving(folder))
    return Target(running.worker_pids()[0], running.admin_port)


def enforcer(folder: Path, stack: ExitStack) -> Target:
    """On a machine without a GPU and without a cluster: it waits for NVML, and serves its pages."""
    port = free_ports(1)[0]
    (folder / "state").mkdir(mode=0o700)
    command = [sys.executable, "-m", "enforcer.main", "--node", "gpu-7", "--state", str(folder / "state")]
    command += ["--run", str(folder / "run")]
    command += ["--no-cluster", "--no-mps", "--no-publish", "--no-dra", "--allow-any-pid-namespace"]
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen([*command, "--metrics", f"127.0.0.1:{port}"], cwd=PROJECT, stderr=log, stdout=log)
    stack.callback(process.wait, 30)
    stack.callback(process.kill)
    target = Target(process.pid, port)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            target.scrape()
            return target
        time.sleep(0.1)
    raise AssertionError((folder / "log").read_text())


@pytest.fixture(autouse=True)
def _enough_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        missing(f"this takes {needed} descriptors, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed) if soft != resource.RLIM_INFINITY else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("start", [webhook, enforcer])
@pytest.mark.parametrize("sending", [b"", b"GET /metrics HTT"], ids=["silent", "unfinished"])
def test_connections_that_ask_for_nothing_cost_nothing(
    tmp_path: Path, start: Callable[[Path, ExitStack], Target], sending: bytes
) -> None:
    with ExitStack() as stack:
        target = start(tmp_path, stack)
        for _ in range(10):
            target.scrape()
        descriptors, threads, resident = target.descriptors(), target.threads(), target.resident_mib()
        for count in range(1, CONNECTIONS + 1):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 10))
            client.sendall(sending)
            if count % SCRAPED_EVERY == 0:
                assert b"gpu_share_" in target.scrape()
                assert target.descriptors() - descriptors < MORE_DESCRIPTORS
                assert target.threads() - threads < MORE_THREADS
        assert target.resident_mib() - resident < MORE_MIB
