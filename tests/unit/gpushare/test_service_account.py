"""A pod's own way to the API server, over TLS to a server on loopback, with what a kubelet mounts."""

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare.service_account import KEEPALIVE, READ_AGAIN, ServiceAccount
from tests.support import pki
from tests.unit.gpushare.test_pod_exec import END, FINE, OUT, Server, close, run, say

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class Answers(BaseHTTPRequestHandler):
    """Says who asked."""

    def log_message(self, *_: object) -> None:
        """Keep the test output quiet."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"kind": "Pod"}')


class Quiet(ThreadingHTTPServer):
    """Says nothing of who hangs up, as one does that does not trust it."""

    asked: list[str]

    def handle_error(self, *_: object) -> None:
        """Keep the test output quiet."""


class Mounted:
    """What the kubelet puts into a pod, and the server it leads to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.authority = folder, 0.0, pki.Authority()
        pki.write(folder / "served", self.authority.issue())
        (folder / "token").write_text("first\n")
        (folder / "ca.crt").write_bytes(self.authority.bundle)
        self.server: Any = Quiet(("127.0.0.1", 0), Answers)
        self.server.daemon_threads, self.server.asked = True, []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "served" / "tls.crt", folder / "served" / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)

    def cluster(self) -> KubeClient:
        host = f"https://127.0.0.1:{self.server.server_port}"
        return KubeClient(ServiceAccount(host, self.folder, lambda: self.now))

    def says(self, token: str) -> None:
        (self.folder / "token").write_text(token)


@pytest.fixture(name="mounted")
def _mounted(tmp_path: Path) -> Iterator[Mounted]:
    mounted = Mounted(tmp_path)
    thread = threading.Thread(target=mounted.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield mounted
    mounted.server.shutdown()
    thread.join()
    mounted.server.server_close()


def test_a_pod_asks_as_its_service_account(mounted: Mounted) -> None:
    assert mounted.cluster().get("/x") == {"kind": "Pod"}
    assert mounted.server.asked == ["Bearer first"]


def test_a_server_of_another_authority_hears_no_token(mounted: Mounted) -> None:
    (mounted.folder / "ca.crt").write_bytes(pki.Authority().bundle)
    with pytest.raises(ClusterError, match=r"check its CA .*: .*certificate"):
        mounted.cluster().get("/x")
    assert mounted.server.asked == []


def test_a_connection_whose_other_end_is_gone_does_not_stay(mounted: Mounted) -> None:
    """The kernel asks for a sign of life; a watch that nobody feeds any more ends."""
    account = ServiceAccount(f"https://127.0.0.1:{mounted.server.server_port}", mounted.folder)
    with closing(account.pool.connection_from_url(account.host)._new_conn()) as connection:
        connection.connect()
        made: socket.socket = connection.sock  # type: ignore[attr-defined] # urllib3's own has it
        asks = [made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEPALIVE]
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert asks == [*KEEPALIVE.values()]
    assert KEEPALIVE["TCP_KEEPIDLE"] + KEEPALIVE["TCP_KEEPINTVL"] * KEEPALIVE["TCP_KEEPCNT"] <= 30


def test_a_new_token_is_taken_up_within_a_minute(mounted: Mounted) -> None:
    cluster = mounted.cluster()
    for token, later in (("first", 0.0), ("second", READ_AGAIN - 1), ("third", 1.0), ("fourth", READ_AGAIN)):
        mounted.says(token)
        mounted.now += later
        cluster.get("/x")
    assert mounted.server.asked == [f"Bearer {token}" for token in ("first", "first", "third", "fourth")]


def test_while_the_token_cannot_be_read_the_last_one_is_sent(mounted: Mounted) -> None:
    cluster = mounted.cluster()
    cluster.get("/x")
    mounted.now += READ_AGAIN
    mounted.says("")
    cluster.get("/x")
    mounted.says("second")
    cluster.get("/x")
    assert mounted.server.asked == ["Bearer first", "Bearer first", "Bearer second"]


def test_without_any_token_nothing_is_asked(mounted: Mounted) -> None:
    mounted.says("")
    with pytest.raises(ClusterError, match=r"no token: .*/token cannot be read or is empty"):
        mounted.cluster().get("/x")
    assert mounted.server.asked == []


@pytest.mark.parametrize(
    ("host", "leads_to"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_it_is_found_in_a_pod(tmp_path: Path, host: str, leads_to: str) -> None:
    mount(tmp_path)
    found = ServiceAccount.found({**POD, "KUBERNETES_SERVICE_HOST": host}, tmp_path)
    assert found is not None
    assert found.host == leads_to


@pytest.mark.parametrize("lacking", [*POD, "token", "ca.crt"])
def test_it_is_not_found_where_a_part_is_missing_or_empty(tmp_path: Path, lacking: str) -> None:
    mount(tmp_path)
    assert ServiceAccount.found(POD, tmp_path) is not None
    assert ServiceAccount.found({**POD, lacking: ""}, tmp_path) is None or lacking not in POD
    if lacking not in POD:
        (tmp_path / lacking).write_text("")
        assert ServiceAccount.found(POD, tmp_path) is None
        (tmp_path / lacking).unlink()
        assert ServiceAccount.found(POD, tmp_path) is None


def mount(folder: Path) -> None:
    (folder / "token").write_text("first")
    (folder / "ca.crt").write_bytes(pki.Authority().bundle)


def test_a_command_in_a_pod_is_run_as_the_service_account(tmp_path: Path) -> None:
    def talk(connection: Any) -> None:
        say(connection, OUT, b"some")
        say(connection, END, FINE)
        close(connection)

    mount(tmp_path)
    server = Server(talk)
    assert b"".join(run(KubeClient(ServiceAccount(f"http://127.0.0.1:{server.port}", tmp_path)))) == b"some"
    server.thread.join(30)
    assert "authorization: bearer first" in server.request.lower()


def test_an_enforcer_in_a_pod_does_not_load_the_official_client() -> None:
    """It is a third of the enforcer's memory."""
    program = "import sys, enforcer.main; print({'kubernetes', 'requests', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_pod_does_not_ask_as_another_user(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(pki.Authority().bundle)
    with pytest.raises(ClusterError, match="cannot impersonate jo"):
        KubeClient(ServiceAccount("https://127.0.0.1", tmp_path)).acting_as("jo")
