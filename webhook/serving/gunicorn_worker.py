"""A gunicorn worker with one event loop: each turn serves every connection that is ready, once, in turn.

No client can hold it up: nothing waits for a handshake, a request or a reader of an answer. Requests are answered in
the loop, because a thread for 0.2 ms of work costs as much again. Large ones, and those that wait for the API server
(``MustWait``), are answered in a thread.
"""

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from math import inf
from typing import Any, Final

from gunicorn import util
from gunicorn.workers import base

from webhook.must_wait import MustWait
from webhook.serving.connection import FREE_BYTES, Connection, Steps
from webhook.serving.http_request import Request
from webhook.serving.tls import refuses_client

LARGE: Final = 512 * 1024
"""Larger bodies are read one at a time: parsed, one of 7 MiB can be 150 MiB."""
THREADS: Final = 32
"""Reviews that wait at once for the API server: for a namespace (0.5 s at most) or a claim template (0.3 s)."""
MAX_CONNECTIONS: Final = 1000
MAX_ACCEPTED: Final = 16
"""New connections of one turn. With one, a burst beside busy connections takes twice as long until it is answered."""
MAX_BUFFERED: Final = 64 * 1024 * 1024
"""Bytes of unanswered requests, of all connections that hold more than ``FREE_BYTES``: nine of the largest."""
TURN_SECONDS: Final = 1.0
IDLE_STOP_SECONDS: Final = 2.0
"""How long a worker that ends keeps idle connections, on which a request may be on its way."""
_NEXT_TURN: Final = 0
"""Yielded instead of events by a connection that can go on once all others had their turn."""
_NAMED: Final = {"CONTENT-TYPE": "CONTENT_TYPE", "CONTENT-LENGTH": "CONTENT_LENGTH"}


class Worker(base.Worker):  # type: ignore[misc] # gunicorn ships no types
    """The event loop. ``on_closed`` is called with why a connection was closed.

    That is ``deadline``, ``memory``, ``room``, or ``certificate``, the client's.
    """

    on_closed: Callable[[str], None] = staticmethod(lambda _reason: None)

    def run(self) -> None:
        """Serve until gunicorn wants the worker to end, or has gone."""
        self._poller = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._waiting: deque[Connection] = deque()
        self._large, self._slow = ThreadPoolExecutor(1, "large"), ThreadPoolExecutor(THREADS, "waiting")
        self._next_check = 0.0
        listeners = {each.fileno(): each for each in self.sockets}
        for each in self.sockets:
            each.settimeout(0.0)
            self._poller.register(each, select.EPOLLIN)
        self._poller.register(self.PIPE[0], select.EPOLLIN)
        while self.alive and self.ppid == os.getppid():
            self._turn(listeners)
        self._finish()

    def _finish(self) -> None:
        """Answer what has begun; idle connections get a moment."""
        self.alive = False
        for each in self.sockets:
            self._poller.unregister(each)
            each.close()
        began = time.monotonic()
        while self._connections and time.monotonic() - began < self.cfg.graceful_timeout:
            if time.monotonic() - began > IDLE_STOP_SECONDS:
                self._close_all(lambda each: not each.begun and each.deadline < inf)
            self._turn({})

    def _turn(self, listeners: dict[int, socket.socket]) -> None:
        for number, _ in self._poller.poll(0.0 if self._waiting else TURN_SECONDS):
            if number in listeners:
                self._accept(listeners[number])
            elif number == self.PIPE[0]:  # signals and threads wake the loop
                os.read(number, 4096)
            elif connection := self._connections.get(number):
                self._resume(connection)
        for _ in range(len(self._waiting)):
            self._resume(self._waiting.popleft())
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + TURN_SECONDS
            self.notify()
            self._close_all(lambda each: each.deadline < now)

    def _accept(self, listener: socket.socket) -> None:
        """Take connections in. Others make room: what has begun and will end first, then what is idle for longest."""
        with suppress(OSError):  # mostly BlockingIOError: there are no more
            for _ in range(MAX_ACCEPTED):
                raw, _ = listener.accept()
                if len(self._connections) >= MAX_CONNECTIONS:
                    self._make_room()
                self._take_in(raw)

    def _make_room(self) -> None:
        closable = [each for each in self._connections.values() if each.deadline < inf]
        if closable:
            self._close(min(closable, key=lambda each: (not each.begun, each.deadline)), "room")

    def _take_in(self, raw: socket.socket) -> None:
        try:
            raw.settimeout(0.0)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(raw, self.cfg.ssl_context(self.cfg, None))
        except OSError as error:
            self.log.debug("connection failed: %s", error)
            raw.close()
            return
        connection.steps = self._serve(connection)
        self._connections[connection.socket.fileno()] = connection
        self._poller.register(connection.socket, connection.events)

    def _resume(self, connection: Connection) -> None:
        """Go on with a connection until it has to wait, or close it."""
        try:
            events = next(connection.steps)
        except StopIteration as end:
            self._close(connection, end.value)
        except OSError as error:
            self.log.debug("connection failed: %s", error)
            self._close(connection, "certificate" if refuses_client(error) else "")
        except Exception:
            self.log.exception("bug while serving a connection")
            self._close(connection)
        else:
            if events == _NEXT_TURN:
                self._waiting.append(connection)
            elif events != connection.events:  # most answers leave at once, and cost no system call here
                connection.events = events
                self._poller.modify(connection.socket, events)

    def _close_all(self, which: Callable[[Connection], bool]) -> None:
        for connection in [each for each in self._connections.values() if which(each)]:
            self._close(connection, "deadline" if connection.begun else "")

    def _close(self, connection: Connection, reason: str | None = None) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        connection.steps.close()
        connection.socket.close()
        if reason:
            self.on_closed(reason)

    def _serve(self, connection: Connection) -> Steps[str | None]:
        reader, keep_alive = connection.reader, True
        yield from connection.shake_hands()
        while keep_alive:
            if (ended := (yield from connection.receive(self.cfg.keepalive, self._has_room))) is not None:
                return ended
            if reader.requests:
                request = reader.requests.popleft()
                keep_alive = request.keep_alive = request.keep_alive and self.alive
                answer = yield from self._answer(connection, request)
            else:
                keep_alive, answer = False, _plain(reader.refusal)
            yield from connection.send(answer)
            if reader.requests or reader.refusal:  # the client sends faster than it is answered
                yield _NEXT_TURN
        if reader.size:
            yield from connection.linger()
        return None

    def _has_room(self) -> bool:
        return sum(each.buffered for each in self._connections.values() if each.buffered > FREE_BYTES) <= MAX_BUFFERED

    def _answer(self, connection: Connection, request: Request) -> Steps[bytes]:
        """Answer here, or in a thread: then the loop hears of nothing but a lost connection until it is done."""
        pool = self._large
        if len(request.body) <= LARGE:
            try:
                return self._respond(request)
            except MustWait:
                pool = self._slow
        connection.wait(inf, begun=False)
        answer = pool.submit(self._respond, request)
        answer.add_done_callback(partial(self._wake, connection))
        while not answer.done():
            yield select.EPOLLET
        return answer.result()

    def _wake(self, connection: Connection, _answer: Future[bytes]) -> None:
        """Called by threads."""
        self._waiting.append(connection)
        with suppress(BlockingIOError):  # full: the loop wakes up anyway
            os.write(self.PIPE[1], b".")

    def _respond(self, request: Request) -> bytes:
        """Call the application. Raises ``MustWait`` where it can be answered in a thread only."""
        head: list[str] = []

        def start(status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> Callable[[bytes], object]:
            head[:] = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
            return head.append  # type: ignore[return-value] # WSGI's old way to write; the application has no use for it

        try:
            chunks = self.wsgi(_environ(request), start)
            body = b"".join(chunks)
            getattr(chunks, "close", lambda: None)()
        except MustWait:
            raise
        except Exception:
            self.log.exception("bug in the application")
            return _plain("500 Internal Server Error")
        head += [f"Date: {util.http_date()}", f"Connection: {'keep-alive' if request.keep_alive else 'close'}", "", ""]
        return "\r\n".join(head).encode("latin-1") + body


def _plain(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()


def _environ(request: Request) -> dict[str, Any]:
    """Describe a request in the variables of WSGI that Flask reads.

    Names with underscores are dropped: they could pass for other fields.
    """
    path, _, query = request.target.decode("latin-1").partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": util.unquote_to_wsgi_str(path),
        "QUERY_STRING": query,
        "SERVER_NAME": "",
        "SERVER_PORT": "",
        "wsgi.url_scheme": "https",
        "wsgi.input": BytesIO(request.body),
    }
    for raw, value in request.headers:
        name = raw.decode("latin-1").upper()
        if "_" not in name:
            key = _NAMED.get(name) or "HTTP_" + name.replace("-", "_")
            text = value.decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ
