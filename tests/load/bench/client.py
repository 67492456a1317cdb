"""A client in a process of its own: kept-alive TLS connections, each of which has one request under way at most.

One thread and one poller for all connections, raw bytes, no HTTP library: the client has to cost less than the server.
"""

import multiprocessing
import select
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

HOST = "127.0.0.1"
HEADER_END, LAST_CHUNK = b"\r\n\r\n", b"0\r\n\r\n"
LENGTH, CHUNKED = b"content-length: ", b"transfer-encoding: chunked"
PIECE = 262144
WAIT_SECONDS = 10.0
"""After this long without an answer all requests under way have failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``rate`` is requests per second of all connections together; 0: each sends as soon as it has its answer.

    An answer has to begin with one of ``status`` and to contain ``expect``; anything else is a failure.
    """

    port: int
    ca: str
    body: bytes
    connections: int
    seconds: float
    rate: float = 0.0
    path: str = "/mutate"
    headers: Sequence[str] = ()
    status: bytes = b"HTTP/1.1 200 "
    expect: bytes = b'"allowed":true'


@dataclass(slots=True)
class Measured:
    """Latencies in seconds, sorted; with a ``rate`` they count from when a request was due, not from when it was sent.

    ``requests`` and ``client_cpu`` (seconds) include the warm-up and connecting.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    requests: int = 0
    client_cpu: float = 0.0
    failures: int = 0
    first_failure: str = ""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]

    def failed(self, why: str) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or why

    def without_failures(self) -> "Measured":
        """Return itself. Raises RuntimeError where a request failed: its latency is no answer's."""
        if self.failures:
            raise RuntimeError(f"{self.failures} of {self.requests} requests failed, the first: {self.first_failure}")
        return self


class Peer:
    """One connection. ``due`` is when the request under way had to be sent; ``None`` while there is none."""

    def __init__(self, load: Load, context: ssl.SSLContext) -> None:
        raw = socket.create_connection((HOST, load.port), WAIT_SECONDS)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(raw, server_hostname=HOST)
        self.due: float | None = None
        self._received = b""

    def send(self, request: bytes, due: float) -> None:
        self.due, self._received = due, b""
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.sendall(request)
        self.socket.settimeout(0.0)  # a session ticket makes it readable without an answer

    def receive(self) -> bytes | None:
        """Read what has come; returns the answer when it is whole."""
        try:
            while True:
                piece = self.socket.recv(PIECE)
                if not piece:
                    raise ConnectionError("the server closed the connection")
                self._received += piece
                if not self.socket.pending():
                    break
        except ssl.SSLWantReadError:
            return None
        return self._received if _whole(self._received) else None


def _whole(answer: bytes) -> bool:
    end = answer.find(HEADER_END)
    if end < 0:
        return False
    head = answer[: end + 2].lower()
    if CHUNKED in head:
        return answer.endswith(LAST_CHUNK)
    at = head.find(LENGTH) + len(LENGTH)
    return len(answer) >= end + len(HEADER_END) + int(head[at : head.find(b"\r", at)])


def drive(load: Load) -> Measured:
    """Run the load in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_drive, (load,))


def _drive(load: Load) -> Measured:
    driver, began = _Driver(load), time.process_time()
    warm = driver.run(min(1.0, load.seconds / 4))
    measured = driver.run(load.seconds)
    measured.latencies.sort()
    measured.requests += warm.requests
    measured.failures += warm.failures
    measured.first_failure = warm.first_failure or measured.first_failure
    measured.client_cpu = time.process_time() - began
    return measured


class _Driver:
    def __init__(self, load: Load) -> None:
        self._load, self._context = load, ssl.create_default_context(cadata=load.ca)
        head = [f"POST {load.path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *load.headers]
        head.append(f"Content-Length: {len(load.body)}")
        self._request = "\r\n".join(head).encode() + HEADER_END + load.body
        self._poller, self._peers = select.epoll(), dict[int, Peer]()
        self._idle = [self._connect() for _ in range(load.connections)]

    def _connect(self) -> Peer:
        peer = Peer(self._load, self._context)
        peer.socket.settimeout(0.0)
        self._peers[peer.socket.fileno()] = peer
        self._poller.register(peer.socket.fileno(), select.EPOLLIN)
        return peer

    def run(self, seconds: float) -> Measured:
        """Send for so many seconds, and wait for the last answers."""
        found, began, sent = Measured(), time.perf_counter(), 0
        until = began + seconds
        while True:
            now = time.perf_counter()
            while self._idle and now < until and (not self._load.rate or began + sent / self._load.rate <= now):
                self._send(self._idle.pop(), began + sent / self._load.rate if self._load.rate else now, found)
                sent += 1
            if now >= until and len(self._idle) == len(self._peers):
                break
            self._receive(self._pause(began, sent, until), found)
        found.seconds, found.requests = time.perf_counter() - began, sent
        return found

    def _pause(self, began: float, sent: int, until: float) -> float:
        """Seconds to wait for answers at most: until the next request is due, if a connection is free for it."""
        now = time.perf_counter()
        if not self._load.rate or not self._idle or now >= until:
            return WAIT_SECONDS
        return max(0.0, min(began + sent / self._load.rate, until) - now)

    def _send(self, peer: Peer, due: float, found: Measured) -> None:
        try:
            peer.send(self._request, due)
        except OSError as error:
            self._replace(peer, found, error)

    def _receive(self, pause: float, found: Measured) -> None:
        ready = self._poller.poll(pause)
        if not ready and pause >= WAIT_SECONDS:
            for peer in [each for each in self._peers.values() if each.due is not None]:
                self._replace(peer, found, TimeoutError(f"no answer for {WAIT_SECONDS:.0f} s"))
        for number, _ in ready:
            peer = self._peers[number]
            try:
                answer = peer.receive()
            except OSError as error:
                self._replace(peer, found, error)
                continue
            if answer is not None and peer.due is not None:
                self._answered(peer, peer.due, answer, found)

    def _answered(self, peer: Peer, due: float, answer: bytes, found: Measured) -> None:
        found.latencies.append(time.perf_counter() - due)
        if not answer.startswith(self._load.status) or self._load.expect not in answer:
            found.failed(f"answer {answer[:500]!r}")
        peer.due = None
        self._idle.append(peer)

    def _replace(self, peer: Peer, found: Measured, error: OSError) -> None:
        """Open another connection. What was under way on the old one has failed; an idle one may be closed."""
        if peer.due is not None:
            found.failed(f"{type(error).__name__}: {error}")
        elif peer in self._idle:
            self._idle.remove(peer)
        del self._peers[peer.socket.fileno()]
        peer.socket.close()
        self._idle.append(self._connect())
