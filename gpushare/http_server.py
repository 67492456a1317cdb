"""Serve small pages over plain HTTP from one thread: metrics and readiness.

No client makes another one wait. A connection lasts two seconds at most, and a new one closes the oldest where 16 are
open. The sidecar calls the server from its own loop, ``gpushare/metrics_server.py`` from a thread. The standard
library's HTTP server would add 9 MiB to every sharing pod, and one thread for each connection to the others.
"""

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

MAX_CONNECTIONS: Final = 16
MAX_ACCEPTS: Final = 8
"""New connections in one round: a connection's request is looked for twice before others may take its place."""
MAX_REQUEST: Final = 4096
DEADLINE: Final = 2.0
"""Seconds from a connection's start to its end."""
BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted. It drops more, and a client tries again after a second,
which is later than a probe waits."""
PAUSE: Final = 0.05
TEXT: Final = "text/plain; charset=utf-8"
RESET: Final = struct.pack("ii", 1, 0)
"""As ``SO_LINGER``: closing discards what was not sent, and the kernel keeps nothing of the connection."""


class Answer(NamedTuple):
    """What a page says."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


def text(sentence: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Return an answer of one line."""
    return Answer(f"{sentence}\n".encode(), status=status)


Page = Callable[[str], Answer]
"""Maps the path of a request, without its query, to an answer."""


class Connection:
    """One client: the bytes of its request, and what is left to send of the answer."""

    __slots__ = ("answer", "opened", "peer", "request")

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.opened = peer, time.monotonic()
        self.request, self.answer = b"", memoryview(b"")


class Server:
    """Serves pages on one address.

    Args:
        address: host and port.
        page: what to answer.
        failed: takes an exception of ``page``, after which the client gets 500.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], page: Page, failed: Callable[[Exception], None]) -> None:
        self._page, self._failed = page, failed
        self._connections: list[Connection] = []  # the oldest first
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=BACKLOG)
        self._listener.settimeout(0)
        # Connections inherit it. Without it the kernel keeps an answer that a client never reads for minutes after
        # close(), at this container's expense.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEADLINE * 1000))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The port in fact listened on."""
        port: int = self._listener.getsockname()[1]
        return port

    def fileno(self) -> int:
        """Return the descriptor to wait for: readable when there is something to do."""
        return self._selector.fileno()

    def work(self, wait: float = 0.0) -> None:
        """Wait for something to do, do what can be done at once, and close connections that have lasted too long.

        Args:
            wait: seconds to wait at most. A caller that waits for ``fileno`` itself leaves it at 0.
        """
        ready = [key.data for key, _ in self._selector.select(wait)]
        # Before new connections: they close the oldest whose request has not been read.
        for connection in ready:
            if connection is not None:
                self._serve(connection)
        if None in ready:
            self._accept()
        late = time.monotonic() - DEADLINE
        while self._connections and self._connections[0].opened < late:
            self._abort(self._connections[0])

    def close(self) -> None:
        """Close everything."""
        while self._connections:
            self._abort(self._connections[0])
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: the listener stays readable, and the caller would not rest
                time.sleep(PAUSE)
                return
            peer.settimeout(0)
            if len(self._connections) >= MAX_CONNECTIONS:
                self._make_room()
            connection = Connection(peer)
            self._selector.register(peer, selectors.EVENT_READ, connection)
            self._connections.append(connection)
            self._serve(connection)

    def _make_room(self) -> None:
        """Close the oldest connection without a whole request, or else the oldest.

        Refusing the new one instead would let 16 clients that never read their answers keep the kubelet's probe out.
        """
        silent = (connection for connection in self._connections if not connection.answer)
        self._abort(next(silent, self._connections[0]))

    def _serve(self, connection: Connection) -> None:
        try:
            answered = self._progress(connection)
        except BlockingIOError:
            return
        except OSError:
            self._abort(connection)
        else:
            if answered:
                self._close(connection)

    def _progress(self, connection: Connection) -> bool:
        """Read, and send what the client takes. Return whether it has its whole answer.

        Raises:
            BlockingIOError: there is no more to read, or no room to write.
            OSError: the connection failed, or the client sent no request.
        """
        if not connection.answer:
            connection.request += (data := connection.peer.recv(MAX_REQUEST))
            if not data or len(connection.request) > MAX_REQUEST:
                raise ConnectionAbortedError
            if b"\r\n\r\n" not in connection.request and b"\n\n" not in connection.request:
                return False
            connection.answer = memoryview(respond(connection.request, self._safe_page))
            self._selector.modify(connection.peer, selectors.EVENT_WRITE, connection)
        connection.answer = connection.answer[connection.peer.send(connection.answer) :]
        return not connection.answer

    def _safe_page(self, path: str) -> Answer:
        try:
            return self._page(path)
        except Exception as bug:  # noqa: BLE001 - one page's bug must not take the others away
            self._failed(bug)
            return text("the server failed to make this page; read its log", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _abort(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            connection.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.peer)
        connection.peer.close()


def respond(head: bytes, page: Page) -> bytes:
    """Answer a request's head: with the page's answer, 405 for other methods, 400 for no HTTP."""
    words = head.split(b"\n", 1)[0].split()
    if len(words) != len(("GET", "/", "HTTP/1.1")) or not words[2].startswith(b"HTTP/1."):
        answer = text("this is not an HTTP request", HTTPStatus.BAD_REQUEST)
    elif words[0] not in {b"GET", b"HEAD"}:
        answer = text("use GET", HTTPStatus.METHOD_NOT_ALLOWED)
    else:
        answer = page(words[1].split(b"?", 1)[0].decode("ascii", "replace"))
    written = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    )
    return written.encode() + (b"" if words[:1] == [b"HEAD"] else answer.body)
