"""A few connections at a time, one short answer each: all that serving /metrics to a scraper takes.

One thread, no waiting: a client that is slow, silent or many costs nothing but its own connection. The standard
library's HTTP server would add 9 MiB to every sharing pod.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

MAX_CONNECTIONS: Final = 16
MAX_REQUEST: Final = 4096
DEADLINE: Final = 2.0
BACKLOG: Final = 16


class Connection:
    """One client: what it has said, and what is still to be said to it."""

    __slots__ = ("answer", "born", "heard", "peer")

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.born = peer, time.monotonic()
        self.heard, self.answer = b"", b""


class Server:
    """Serves one page. ``page`` maps a path to content type and body, or ``None``."""

    def __init__(self, address: tuple[str, int], page: Callable[[str], tuple[str, bytes] | None]) -> None:
        self._page = page
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The port in fact listened on."""
        port: int = self._listener.getsockname()[1]
        return port

    def fileno(self) -> int:
        """The descriptor to wait for: readable when there is something to do."""
        return self._selector.fileno()

    def work(self) -> None:
        """Do what can be done without waiting; drop who has taken too long."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(self._connections[key.fd])
        late = time.monotonic() - DEADLINE
        for connection in [c for c in self._connections.values() if c.born < late]:
            self._drop(connection)

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # gone already, or out of descriptors
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            peer.close()
            return
        peer.settimeout(0)
        self._connections[peer.fileno()] = Connection(peer)
        self._selector.register(peer, selectors.EVENT_READ)

    def _serve(self, connection: Connection) -> None:
        try:
            if connection.answer:
                connection.answer = connection.answer[connection.peer.send(connection.answer) :]
                done = not connection.answer
            else:
                done = self._hear(connection)
        except BlockingIOError:
            return
        except OSError:
            done = True
        if done:
            self._drop(connection)

    def _hear(self, connection: Connection) -> bool:
        """Read on; once the head is complete, turn to answering. Says whether the connection is over."""
        data = connection.peer.recv(MAX_REQUEST)
        connection.heard += data
        if not data or len(connection.heard) > MAX_REQUEST:
            return True
        if b"\r\n\r\n" in connection.heard or b"\n\n" in connection.heard:
            connection.answer = respond(connection.heard, self._page)
            self._selector.modify(connection.peer, selectors.EVENT_WRITE)
        return False

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection.peer.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.peer)
        connection.peer.close()


def respond(head: bytes, page: Callable[[str], tuple[str, bytes] | None]) -> bytes:
    """Answer a request's head: 200 with the page, 404 without one, 405 for other methods, 400 for no HTTP."""
    words = head.split(b"\n", 1)[0].split()
    if len(words) != len(("GET", "/", "HTTP/1.1")) or not words[2].startswith(b"HTTP/1."):
        return _answer("400 Bad Request", "text/plain", b"this is no HTTP request\n")
    if words[0] not in {b"GET", b"HEAD"}:
        return _answer("405 Method Not Allowed", "text/plain", b"use GET\n")
    found = page(words[1].split(b"?", 1)[0].decode("ascii", "replace"))
    if found is None:
        return _answer("404 Not Found", "text/plain", b"there is /metrics\n")
    content_type, body = found
    return _answer("200 OK", content_type, body, head_only=words[0] == b"HEAD")


def _answer(status: str, content_type: str, body: bytes, *, head_only: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
