"""One client of the webhook: its handshake, its requests, its answers. Nothing here blocks."""

import select
import socket
import ssl
import time
from enum import Enum, auto
from typing import Final

from webhook.serving.http_request import RequestReader
from webhook.serving.tls import check_client

REQUEST_SECONDS: Final = 10.0
"""From a request's first byte to its last. The API server waits 3 s with our configuration, 30 s at most."""
ANSWER_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 1.0
FREE_BYTES: Final = 64 * 1024
"""What each connection may hold without being counted: reviews of ordinary pods never compete for memory."""
MAX_BUFFERED: Final = 64 * 1024 * 1024
"""Counted bytes that unfinished requests may hold, all connections together: nine of the largest."""
READ: Final = 256 * 1024
MAX_DRAIN: Final = 8 * 1024 * 1024
"""How much is thrown away at most of what follows an early answer, so that its sender hears the answer."""


class ConnectionClosed(Exception):
    """This connection ends. ``reason`` is empty where the client ended it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BufferBudget:
    """Bytes buffered for unfinished requests, over all connections."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def change(self, by: int) -> bool:
        """Add to the bytes in use. Returns whether they are within the limit."""
        self._left -= by
        return self._left >= 0


class Phase(Enum):
    """What a connection does."""

    HANDSHAKE = auto()
    READING = auto()
    ANSWERING = auto()
    """A thread works on its request."""
    SENDING = auto()
    LINGERING = auto()
    """The answer is sent; what still comes is thrown away for a moment, or the client would not read its answer."""


class Connection:
    """A TLS connection and what it waits for. ``deadline`` is monotonic seconds."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, budget: BufferBudget) -> None:
        self.socket = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        self.phase, self.deadline = Phase.HANDSHAKE, time.monotonic() + REQUEST_SECONDS
        self.reader = RequestReader()
        self.events = select.EPOLLIN
        """What the loop watches for."""
        self.last = False
        """Whether the connection ends after the answer that is being sent."""
        self._budget, self._counted = budget, 0
        self._unsent = memoryview(b"")
        self._drained = 0

    @property
    def idle(self) -> bool:
        """Whether the connection is up and no request has begun."""
        return self.phase is Phase.READING and not self.reader.size and not self.reader.requests

    def shake_hands(self, keepalive: float) -> None:
        """Go on with the handshake. Raises ``OSError``, among them ``SSLWantReadError`` and ``SSLWantWriteError``."""
        self.socket.do_handshake()
        check_client(self.socket)
        self.phase, self.deadline = Phase.READING, time.monotonic() + keepalive

    def receive(self) -> None:
        """Read once, which is one TLS record at most."""
        data = self.socket.recv(READ)
        if not data:
            raise ConnectionClosed
        if not self.reader.size:
            self.deadline = time.monotonic() + REQUEST_SECONDS
        self.reader.feed(data)
        excess = self.reader.size - FREE_BYTES - self._counted
        if excess > 0:
            self._counted += excess
            if not self._budget.change(excess):
                raise ConnectionClosed("memory")

    def send(self, answer: bytes) -> None:
        """Send an answer, as much as the client takes now."""
        self._uncount()
        self._unsent = memoryview(answer)
        self.phase, self.deadline = Phase.SENDING, time.monotonic() + ANSWER_SECONDS
        self.flush()

    def flush(self) -> None:
        """Go on sending. Raises ``SSLWantWriteError`` while the client does not read."""
        while self._unsent:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def rest(self, keepalive: float) -> None:
        """Wait for the next request."""
        self.phase = Phase.READING
        self.deadline = time.monotonic() + (REQUEST_SECONDS if self.reader.size else keepalive)

    def linger(self) -> None:
        """End our side, and read on for a moment: TLS is over, so what comes is not even decrypted."""
        self.socket.shutdown(socket.SHUT_WR)
        self.phase, self.deadline = Phase.LINGERING, time.monotonic() + LINGER_SECONDS

    def drain(self) -> None:
        """Throw away what comes."""
        data = self.socket.recv(READ)
        self._drained += len(data)
        if not data or self._drained > MAX_DRAIN:
            raise ConnectionClosed

    def close(self) -> None:
        """Close at once."""
        self._uncount()
        self.socket.close()

    def _uncount(self) -> None:
        self._budget.change(-self._counted)
        self._counted = 0
