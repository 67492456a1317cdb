"""The real webhook as a process of its own: gunicorn, TLS, certificate folder, static namespaces."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import pki
from tests.testbed.cluster.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 20.0
DEFAULT_NAMESPACES = [{"kind": "Namespace", "metadata": {"name": "team", "labels": {"gpu-share.io/enabled": "true"}}}]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Webhook:
    port: int
    admin_port: int
    folder: Path
    certs: Path
    log: Path
    authority: pki.Authority
    process: subprocess.Popen[bytes]

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.bundle.decode())

    def connect(self, context: ssl.SSLContext | None = None, timeout: float = 30.0) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return (context or self.client_context()).wrap_socket(raw, server_hostname="localhost")

    def connection(self, timeout: float = 30.0) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.client_context(), timeout=timeout)

    def post(self, body: bytes, content_type: str | None = "application/json", where: str = "/mutate") -> Reply:
        connection = self.connection()
        try:
            connection.request("POST", where, body, {"Content-Type": content_type} if content_type else {})
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), dict(answer.getheaders()))
        finally:
            connection.close()

    def admin(self, where: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=10)
        try:
            connection.request("GET", where)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        finally:
            connection.close()

    def metric(self, series: str) -> float:
        """The value of a series, written as in the exposition, or 0."""
        for line in self.admin("/metrics").body.decode().splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def serving(
    folder: Path,
    *,
    namespaces: Sequence[Any] = DEFAULT_NAMESPACES,
    options: Sequence[str] = (),
    certificate: bool = True,
    watching: bool = False,
    patience: float = START_SECONDS,
    root: Path = ROOT,
) -> Iterator[Webhook]:
    """Start it, wait until it is ready, end it. With ``watching`` namespaces come from an API server instead.

    ``root`` is the checkout whose webhook is started.
    """
    authority, certs, log = pki.Authority(), folder / "certs", folder / "webhook.log"
    certs.mkdir()
    if certificate:
        pki.write(certs, authority.issue())
    (folder / "namespaces.json").write_text(json.dumps(list(namespaces)))
    port, admin_port = free_ports(2)
    command = [sys.executable, "-c", "import sys; from webhook.main import main; sys.exit(main(sys.argv[1:]))"]
    command += ["--bind", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin_port}", "--certs", str(certs)]
    command += [*([] if watching else ["--namespaces", str(folder / "namespaces.json")]), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=root, stdout=output, stderr=output)
    webhook = Webhook(port, admin_port, folder, certs, log, authority, process)
    try:
        _wait(webhook, {200} if certificate else {200, 503}, patience)
        yield webhook
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(webhook: Webhook, answers: set[int], patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and webhook.process.poll() is None:
        try:
            if webhook.admin("/readyz").status in answers:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the webhook did not get ready:\n{webhook.log.read_text()[-4000:]}")
