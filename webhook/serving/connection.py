"""One client of the webhook: its handshake, its requests, its answers. Nothing here blocks.

What may have to wait is a generator that yields the epoll events it waits for. It is resumed after one of them, or
earlier: then it tries again.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from webhook.serving.http_request import RequestReader
from webhook.serving.tls import check_client

REQUEST_SECONDS: Final = 10.0
"""From a request's first byte to its last, and from there to its turn.

The API server waits 3 s with our configuration, 30 s at most.
"""
ANSWER_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 1.0
FREE_BYTES: Final = 64 * 1024
"""What each connection may hold without being counted: reviews of ordinary pods never compete for memory."""
READ: Final = 256 * 1024
MAX_DRAIN: Final = 8 * 1024 * 1024
"""How much is thrown away at most of what follows an early answer, so that its sender hears the answer."""
_T = TypeVar("_T")
Steps = Generator[int, None, _T]
"""Yields the epoll events to wait for."""


class Connection:
    """A TLS connection. The loop ends it at its ``deadline``, monotonic seconds."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        self.reader = RequestReader()
        self.steps: Steps[str | None]
        """What the loop resumes. It returns why the connection ends, if that is not the client's doing."""
        self.events = select.EPOLLIN
        """What the loop watches for."""
        self.queued = False
        """Whether its request waits for its turn."""
        self.buffered = 0
        """Bytes of a request that is not answered yet."""
        self.wait(REQUEST_SECONDS, begun=True)

    def wait(self, seconds: float, *, begun: bool) -> None:
        """Set the deadline, and ``begun``: whether a handshake or a request has begun and is not whole, or waits."""
        self.begun, self.deadline = begun, time.monotonic() + seconds

    def shake_hands(self) -> Steps[None]:
        """Raises ``OSError`` where client and server cannot agree."""
        yield select.EPOLLIN
        yield from _ready(self.socket.do_handshake)
        check_client(self.socket)

    def receive(self, keepalive: float, has_memory: Callable[[], bool]) -> Steps[str | None]:
        """Read until a request is whole or refused. ``has_memory`` tells whether large requests may go on.

        Returns why the connection ends instead: ``memory``, or an empty string where the client ended it.
        """
        reader = self.reader
        self.wait(REQUEST_SECONDS if reader.size else keepalive, begun=reader.size > 0)
        while not (reader.requests or reader.refusal):
            yield select.EPOLLIN
            data = yield from _ready(partial(self.socket.recv, READ))  # one TLS record at most
            if not data:
                return ""
            if not self.begun:
                self.wait(REQUEST_SECONDS, begun=True)
            reader.feed(data)
            before, self.buffered = self.buffered, max(self.buffered, reader.size)
            if self.buffered // FREE_BYTES > before // FREE_BYTES and not has_memory():
                return "memory"
        return None

    def send(self, answer: bytes) -> Steps[None]:
        """Send an answer."""
        self.buffered = 0
        self.wait(ANSWER_SECONDS, begun=False)
        unsent = memoryview(answer)
        while unsent:
            unsent = unsent[(yield from _ready(partial(self.socket.send, unsent))) :]

    def linger(self) -> Steps[None]:
        """End our side and throw away what still comes, for a moment: else the client would not read its answer.

        TLS is over then, so what comes is not even decrypted.
        """
        self.socket.shutdown(socket.SHUT_WR)
        self.wait(LINGER_SECONDS, begun=False)
        drained = 0
        while drained <= MAX_DRAIN:
            yield select.EPOLLIN
            data = yield from _ready(partial(self.socket.recv, READ))
            if not data:
                return
            drained += len(data)


def _ready(call: Callable[[], _T]) -> Steps[_T]:
    """Call until it has what it needs."""
    while True:
        try:
            return call()
        except ssl.SSLWantReadError:
            yield select.EPOLLIN
        except ssl.SSLWantWriteError:
            yield select.EPOLLOUT
