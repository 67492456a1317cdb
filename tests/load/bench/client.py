"""A closed-loop client in a process of its own: so many kept-alive TLS connections, each sends when it got its answer.

One thread and one poller for all connections, raw bytes, no HTTP library: the client has to cost less than the server.
"""

import multiprocessing
import select
import socket
import ssl
import time
from dataclasses import dataclass

HEADER_END = b"\r\n\r\n"
LENGTH = b"content-length: "


@dataclass(frozen=True, slots=True)
class Load:
    port: int
    ca: str
    body: bytes
    connections: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies in seconds, sorted."""

    latencies: list[float]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class Peer:
    def __init__(self, load: Load, request: bytes) -> None:
        context = ssl.create_default_context(cadata=load.ca)
        raw = socket.create_connection(("127.0.0.1", load.port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(raw, server_hostname="localhost")
        self._request, self._received, self._started = request, b"", 0.0

    def send(self) -> None:
        self._started = time.perf_counter()
        self.socket.sendall(self._request)

    def receive(self) -> float | None:
        """Read what is there. Returns the latency when the answer is whole."""
        self._received += self.socket.recv(262144)
        while self.socket.pending():
            self._received += self.socket.recv(262144)
        head = self._received.find(HEADER_END)
        if head < 0:
            return None
        at = self._received[:head].lower().find(LENGTH) + len(LENGTH)
        length = int(self._received[at : self._received.find(b"\r", at)])
        if len(self._received) < head + len(HEADER_END) + length:
            return None
        took = time.perf_counter() - self._started
        if not self._received.startswith(b"HTTP/1.1 200 ") or b'"allowed":true' not in self._received:
            raise RuntimeError(f"the webhook answered {self._received[:500]!r}")
        self._received = b""
        return took


def drive(load: Load) -> Measured:
    """Run the load in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_drive, (load,))


def _drive(load: Load) -> Measured:
    head = "POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(load.body)}"
    request = head.encode() + HEADER_END + load.body
    peers = {peer.socket.fileno(): peer for peer in (Peer(load, request) for _ in range(load.connections))}
    poller = select.epoll()
    for number in peers:
        poller.register(number, select.EPOLLIN)
    latencies: list[float] = []
    _loop(poller, peers, latencies, time.perf_counter() + min(1.0, load.seconds / 4))
    latencies.clear()
    started = time.perf_counter()
    _loop(poller, peers, latencies, started + load.seconds)
    return Measured(sorted(latencies), time.perf_counter() - started)


def _loop(poller: select.epoll, peers: dict[int, Peer], latencies: list[float], until: float) -> None:
    """Keep every connection busy until then, and wait for the last answers."""
    for peer in peers.values():
        peer.send()
    busy = len(peers)
    while busy:
        for number, _ in poller.poll():
            took = peers[number].receive()
            if took is None:
                continue
            latencies.append(took)
            if time.perf_counter() < until:
                peers[number].send()
            else:
                busy -= 1
