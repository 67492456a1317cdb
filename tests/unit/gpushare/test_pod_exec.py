"""Commands run in pods, against a server that speaks the API server's side of the conversation."""

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from gpushare import kubeconfig
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OUT, COMPLAINT, END = 1, 2, 3
FINE = json.dumps({"status": "Success"}).encode()
WRONG = json.dumps({"status": "Failure", "message": "command terminated with non-zero exit code"}).encode()
Talk = Callable[[socket.socket], None]


def say(connection: socket.socket, channel: int, data: bytes) -> None:
    payload = bytes([channel]) + data
    size = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2, "big")
    connection.sendall(b"\x82" + size + payload)


def close(connection: socket.socket) -> None:
    connection.sendall(b"\x88\x02\x03\xe8")


class Server:
    """Answers one handshake, and then talks as it is told to."""

    def __init__(self, talk: Talk, refusal: tuple[int, bytes] | None = None) -> None:
        self._talk, self._refusal = talk, refusal
        self.request = ""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(30)
        self.port = self._socket.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, self._socket:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += connection.recv(4096)
            self.request = request.decode()
            if self._refusal is not None:
                status, body = self._refusal
                head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)
                return
            key = next(x for x in self.request.splitlines() if x.lower().startswith("sec-websocket-key")).split()[1]
            accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()
            head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            head += f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
            connection.sendall(head.encode())
            with suppress(OSError):  # the client may have given up
                self._talk(connection)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):  # closing with something unread would take back what was said
                    pass


@contextmanager
def asking(folder: Path, talk: Talk, refusal: tuple[int, bytes] | None = None) -> Iterator[tuple[Server, KubeClient]]:
    server = Server(talk, refusal)
    yield server, at(folder, server.port)
    server.thread.join(30)


def at(folder: Path, port: int) -> KubeClient:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return KubeClient.connect(str(folder / "config"))


def run(cluster: KubeClient, silence: float = 30.0) -> Iterator[bytes]:
    return cluster.run("enforcer-x", "sys", "enforcer", ["gpu-share", "a b"], silence=silence)


def test_what_a_command_writes_comes_back_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 100

    def talk(connection: socket.socket) -> None:
        connection.sendall(b"\x89\x00")  # a ping
        for at in range(0, len(data), 700):
            say(connection, OUT, data[at : at + 700])
        say(connection, COMPLAINT, b"a warning")
        say(connection, END, FINE)
        close(connection)

    with asking(tmp_path, talk) as (server, cluster):
        assert b"".join(run(cluster)) == data
    line, *headers = server.request.splitlines()
    where = urlsplit(line.split()[1])
    assert where.path == "/api/v1/namespaces/sys/pods/enforcer-x/exec"
    asked = [("container", "enforcer"), ("stdout", "true"), ("stderr", "true")]
    assert parse_qsl(where.query) == [*asked, ("command", "gpu-share"), ("command", "a b")]
    assert "authorization: Bearer secret" in [header.replace("Authorization", "authorization") for header in headers]


@pytest.mark.parametrize(
    ("end", "said"),
    [(WRONG, "non-zero exit code: gpu-share: no audit log"), (b"", "ended before"), (b"[]", "ended before")],
)
def test_a_command_that_fails_raises_after_what_it_wrote(end: bytes, said: str, tmp_path: Path) -> None:
    def talk(connection: socket.socket) -> None:
        say(connection, OUT, b"some")
        say(connection, COMPLAINT, b"gpu-share: no audit log\n")
        if end:
            say(connection, END, end)
        close(connection)

    got: list[bytes] = []
    with asking(tmp_path, talk) as (_, cluster), pytest.raises(ClusterError, match=said):
        got.extend(run(cluster))
    assert got == [b"some"]


def test_a_kubelet_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server answers the handshake only once the kubelet does, and sets itself no time."""
    monkeypatch.setattr(kubeconfig, "HANDSHAKE", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ClusterError, match="kubelet") as refused,
    ):
        list(run(at(tmp_path, silent.getsockname()[1])))
    assert refused.value.status == 0


def test_a_refused_handshake_is_the_api_servers_sentence(tmp_path: Path) -> None:
    body = json.dumps({"kind": "Status", "message": 'pods "enforcer-x" is forbidden: no exec for you'}).encode()
    with asking(tmp_path, lambda _: None, (403, body)) as (_, cluster), pytest.raises(ClusterError) as caught:
        list(run(cluster))
    assert caught.value.status == 403
    assert (
        caught.value.message
        == '/api/v1/namespaces/sys/pods/enforcer-x/exec: pods "enforcer-x" is forbidden: no exec for you'
    )


def test_a_connection_that_breaks_is_an_error(tmp_path: Path) -> None:
    with (
        asking(tmp_path, lambda connection: connection.sendall(b"\x82\x7e\xff")) as (_, cluster),
        pytest.raises(ClusterError, match="connection broke"),
    ):
        list(run(cluster))


def test_a_silent_command_is_given_up(tmp_path: Path) -> None:
    given_up = threading.Event()

    def talk(_: socket.socket) -> None:
        given_up.wait(30)

    with asking(tmp_path, talk) as (_, cluster):
        with pytest.raises(ClusterError, match=r"printed nothing for 0\.05 seconds"):
            list(run(cluster, silence=0.05))
        given_up.set()


def test_a_command_that_only_complains_is_given_up_too(tmp_path: Path) -> None:
    given_up = threading.Event()

    def talk(connection: socket.socket) -> None:
        while not given_up.wait(0.01):
            say(connection, COMPLAINT, b"still here")

    with asking(tmp_path, talk) as (_, cluster):
        with pytest.raises(ClusterError, match="printed nothing"):
            list(run(cluster, silence=0.3))
        given_up.set()


def test_where_nobody_listens_it_says_so(tmp_path: Path) -> None:
    with asking(tmp_path, lambda _: None, (500, b"")) as (_, cluster):
        with pytest.raises(ClusterError):
            list(run(cluster))
        with pytest.raises(ClusterError, match="does not answer"):
            list(run(cluster))
