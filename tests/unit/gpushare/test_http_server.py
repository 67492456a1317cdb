"""The small HTTP server: its answers, its deadline, and how floods, slow clients and bugs leave others alone."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from gpushare import http_server
from gpushare.http_server import DEADLINE, MAX_CONNECTIONS, Answer, Server, respond, text

ASKING = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = b"x" * 8_000_000
"""More than the kernel takes from the server at once, on loopback as well."""
SOON = 10.0


def page(path: str) -> Answer:
    match path:
        case "/metrics":
            return Answer(b"page", "text/plain")
        case "/of-some-size":
            return Answer(LARGE[:150_000])
        case "/large":
            return Answer(LARGE)
        case "/bug":
            raise ZeroDivisionError(path)
        case "/busy":
            return text("not now", HTTPStatus.SERVICE_UNAVAILABLE)
    return text("nothing here", HTTPStatus.NOT_FOUND)


class Running:
    """The server in a thread, and the clients of a test, all of which end with it."""

    def __init__(self, stack: ExitStack) -> None:
        self.bugs: list[Exception] = []
        self.server, self.stack = Server(("127.0.0.1", 0), page, self.bugs.append), stack
        self._stopped, self._rounds = threading.Event(), 0
        thread = threading.Thread(target=self._run)
        thread.start()
        stack.callback(self.server.close)
        stack.callback(thread.join)
        stack.callback(self._stopped.set)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.server.work(0.05)
            self._rounds += 1

    def connect(self, sending: bytes = b"", *, buffer: int | None = None) -> socket.socket:
        client = socket.socket()
        self.stack.callback(client.close)
        client.settimeout(SOON)
        if buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.connect(("127.0.0.1", self.server.port))
        client.sendall(sending)
        return client

    def get(self, path: str = "/metrics", method: str = "GET") -> bytes:
        return read(self.connect(f"{method} {path} HTTP/1.1\r\n\r\n".encode()))

    def settle(self) -> None:
        """Wait until the server has seen what clients did up to now."""
        before = self._rounds
        until(lambda: self._rounds >= before + 2)


@pytest.fixture(name="running")
def _running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server whose deadline no busy machine exceeds."""
    monkeypatch.setattr(http_server, "DEADLINE", 60.0)
    with ExitStack() as stack:
        yield Running(stack)


@pytest.fixture(name="as_shipped")
def _as_shipped() -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(stack)


def read(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection, in whatever way."""
    found = b""
    with suppress(ConnectionError):
        while data := client.recv(1 << 20):
            found += data
    return found


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_still(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        client.settimeout(SOON)
    return False


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n", b"200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n", b"200 OK"),
        (b"GET /busy HTTP/1.1\r\n", b"503 Service Unavailable"),
        (b"HEAD /busy HTTP/1.1\r\n", b"503 Service Unavailable"),
        (b"POST /metrics HTTP/1.1\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n", b"404 Not Found"),
        (b"GET /\xff HTTP/1.1\r\n", b"404 Not Found"),
        (b"GET /metrics\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\r\n", b"400 Bad Request"),
        (b"", b"400 Bad Request"),
    ],
)
def test_requests_are_answered_by_the_book(head: bytes, status: bytes) -> None:
    answer, _, body = respond(head, page).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert (body == b"") == head.startswith(b"HEAD")
    assert (body == b"page") == (head.startswith(b"GET") and status == b"200 OK")


def test_a_request_may_come_in_pieces(running: Running) -> None:
    client = running.connect()
    for byte in ASKING:
        client.sendall(bytes([byte]))
    assert read(client).endswith(b"\r\n\r\npage")


def test_a_request_without_end_is_cut_off(running: Running) -> None:
    client = running.connect()
    with suppress(ConnectionError):
        client.sendall(b"A" * 1_000_000)
    assert read(client) == b""
    assert running.get().endswith(b"page")


def test_where_silent_clients_fill_the_server_the_oldest_makes_room(running: Running) -> None:
    silent = [running.connect() for _ in range(MAX_CONNECTIONS)]
    running.settle()
    assert all(map(open_still, silent))
    assert running.get().endswith(b"page")
    assert [open_still(client) for client in silent] == [False] + [True] * (MAX_CONNECTIONS - 1)


def test_a_part_of_a_request_is_as_silent_as_none(running: Running) -> None:
    clients = [running.connect(ASKING[:-1]) for _ in range(MAX_CONNECTIONS)]
    running.settle()
    assert running.get().endswith(b"page")
    assert not open_still(clients[0])


def test_who_reads_its_answer_stays_while_silent_clients_come_and_go(running: Running) -> None:
    reader = running.connect(b"GET /large HTTP/1.1\r\n\r\n")
    assert reader.recv(1, socket.MSG_PEEK) == b"H"
    for _ in range(10 * MAX_CONNECTIONS):
        running.connect()
    running.settle()
    assert read(reader).endswith(LARGE)


def test_clients_that_never_read_keep_nobody_out(running: Running) -> None:
    for _ in range(2 * MAX_CONNECTIONS):
        running.connect(b"GET /large HTTP/1.1\r\n\r\n", buffer=4096)
    running.settle()
    assert running.get().endswith(b"page")


@pytest.mark.parametrize("sending", [b"", b"GET /large HTTP/1.1\r\n\r\n"], ids=["silent", "not reading"])
def test_a_connection_ends_after_its_deadline_while_nothing_arrives(as_shipped: Running, sending: bytes) -> None:
    began = time.monotonic()
    client = as_shipped.connect(sending, buffer=4096)
    as_shipped.settle()
    assert open_still(client) or sending
    until(lambda: not as_shipped.server._connections)
    assert time.monotonic() - began >= DEADLINE
    assert len(read(client)) < len(LARGE)


def test_a_byte_now_and_then_prolongs_nothing(as_shipped: Running) -> None:
    began, client = time.monotonic(), as_shipped.connect(b"G")
    with pytest.raises(ConnectionError):
        while time.monotonic() - began < SOON:
            client.sendall(b"E")
            time.sleep(0.1)
    assert time.monotonic() - began >= DEADLINE


def test_a_slow_reader_gets_a_large_page_and_holds_up_nobody(running: Running) -> None:
    slow = running.connect(b"GET /large HTTP/1.1\r\n\r\n", buffer=65536)
    running.settle()
    assert running.get().endswith(b"page")
    assert read(slow).endswith(LARGE)


def test_a_bug_in_a_page_is_reported_and_the_server_goes_on(running: Running) -> None:
    assert running.get("/bug").startswith(b"HTTP/1.1 500 ")
    assert [type(bug) for bug in running.bugs] == [ZeroDivisionError]
    assert running.get().endswith(b"page")


def test_the_kernel_keeps_no_answer_for_a_client_that_never_reads(as_shipped: Running) -> None:
    """It would do so for minutes after close(), and the memory is the container's."""
    client = as_shipped.connect(b"GET /of-some-size HTTP/1.1\r\n\r\n", buffer=2304)
    ends = f":{as_shipped.server.port:04X}", f":{client.getsockname()[1]:04X}"
    assert client.recv(1, socket.MSG_PEEK)

    def kept() -> bool:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        return any(line[1].endswith(ends[0]) and line[2].endswith(ends[1]) for line in lines)

    assert kept()
    until(lambda: not kept())


def test_neither_threads_nor_descriptors_grow_with_clients(running: Running) -> None:
    running.get()
    threads, most = threading.active_count(), 0
    own = descriptors()
    for count in range(1, 301):
        running.connect()
        most = max(most, descriptors() - own - count)
    assert most <= 2 * MAX_CONNECTIONS
    assert threading.active_count() <= threads


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_without_descriptors_it_rests_and_then_goes_on(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    class Exhausted:
        def accept(self) -> None:
            tried.append(time.monotonic())
            raise OSError(24, "Too many open files")

        def getsockname(self) -> tuple[str, int]:
            return address

    listener, address = running.server._listener, ("127.0.0.1", running.server.port)
    monkeypatch.setattr(running.server, "_listener", Exhausted())
    client = running.connect(ASKING)
    until(lambda: len(tried) > 5)
    assert tried[5] - tried[0] > 0.1, "it tried again and again without a pause"
    monkeypatch.setattr(running.server, "_listener", listener)
    assert read(client).endswith(b"page")


def test_an_address_that_is_taken_is_an_error(running: Running) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(("127.0.0.1", running.server.port), page, print)
