"""A gunicorn worker with one event loop: each turn serves every connection that is ready, once, in turn.

No client can hold it up: nothing waits for a handshake, a request or a reader of an answer. Requests are answered in
the loop, because a thread for 0.2 ms of work costs as much again. Large ones, and those that wait for the API server
(``MustWait``), are answered in a thread.
"""

import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any, Final

from gunicorn import util
from gunicorn.workers import base

from webhook.must_wait import MustWait
from webhook.serving.connection import MAX_BUFFERED, BufferBudget, Connection, ConnectionClosed, Phase
from webhook.serving.http_request import Request
from webhook.serving.tls import refuses_client

LARGE: Final = 512 * 1024
"""Larger bodies are read one at a time: parsed, one of 7 MiB can be 150 MiB."""
THREADS: Final = 32
"""Reviews that wait at once for the API server: for a namespace (0.5 s at most) or a claim template (0.3 s)."""
MAX_CONNECTIONS: Final = 1000
TURN_SECONDS: Final = 1.0
IDLE_STOP_SECONDS: Final = 2.0
"""How long a worker that ends keeps idle connections, on which a request may be on its way."""
NO_ANSWER: Final = "500 Internal Server Error"
_NAMED: Final = {"CONTENT-TYPE": "CONTENT_TYPE", "CONTENT-LENGTH": "CONTENT_LENGTH"}
_Answer = tuple[bytes, Callable[[], object]]
"""Bytes to send, and what is to do once they are sent."""


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
        self._budget = BufferBudget(MAX_BUFFERED)
        self._answered: SimpleQueue[tuple[Connection, Request, Future[_Answer]]] = SimpleQueue()
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
                for connection in [each for each in self._connections.values() if each.idle]:
                    self._close(connection)
            self._turn({})

    def _turn(self, listeners: dict[int, socket.socket]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for number, _ in self._poller.poll(0.0 if waiting else TURN_SECONDS):
            if number in listeners:
                self._accept(listeners[number])
            elif number == self.PIPE[0]:
                self._wake()
            elif connection := self._connections.get(number):
                self._guarded(connection, partial(self._proceed, connection))
        for connection in waiting:
            self._guarded(connection, partial(self._answer_next, connection))
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + TURN_SECONDS
            self.notify()
            for connection in [each for each in self._connections.values() if each.deadline < now]:
                begun = connection.phase in {Phase.HANDSHAKE, Phase.READING} and not connection.idle
                self._close(connection, "deadline" if begun else "")

    def _accept(self, listener: socket.socket) -> None:
        """Take a connection in; the longest idle one makes room for it."""
        try:
            raw, _ = listener.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._make_room()
        try:
            raw.settimeout(0.0)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(raw, self.cfg.ssl_context(self.cfg, None), self._budget)
        except OSError as error:
            self.log.debug("connection failed: %s", error)
            raw.close()
            return
        self._connections[connection.socket.fileno()] = connection
        self._poller.register(connection.socket, select.EPOLLIN)

    def _make_room(self) -> None:
        closable = [each for each in self._connections.values() if each.phase is not Phase.ANSWERING]
        if closable:
            self._close(min(closable, key=lambda each: (each.idle, each.deadline)), "room")

    def _guarded(self, connection: Connection, step: Callable[[], None]) -> None:
        """Go on with a connection, or close it."""
        try:
            step()
        except ssl.SSLWantReadError:
            self._watch(connection, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._watch(connection, select.EPOLLOUT)
        except ConnectionClosed as stop:
            self._close(connection, stop.reason)
        except OSError as error:
            self.log.debug("connection failed: %s", error)
            self._close(connection, "certificate" if refuses_client(error) else "")
        except Exception:
            self.log.exception("bug while serving a connection")
            self._close(connection)

    def _watch(self, connection: Connection, events: int) -> None:
        """Wait for other events than until now. Most answers leave at once, and cost no system call here."""
        if connection.events != events:
            connection.events = events
            self._poller.modify(connection.socket, events)

    def _proceed(self, connection: Connection) -> None:
        """Do one step."""
        match connection.phase:
            case Phase.READING:
                if not connection.reader.requests:  # else the client sends faster than it is answered
                    connection.receive()
                    self._answer_next(connection)
            case Phase.SENDING:
                connection.flush()
                self._sent(connection)
            case Phase.HANDSHAKE:
                connection.shake_hands(self.cfg.keepalive)
                self._watch(connection, select.EPOLLIN)
            case Phase.LINGERING:
                connection.drain()

    def _answer_next(self, connection: Connection) -> None:
        """Answer the next whole request, if there is one."""
        reader = connection.reader
        if connection.phase is not Phase.READING:
            return
        if reader.requests:
            self._answer(connection, reader.requests.popleft())
        elif reader.refusal:
            connection.last = True
            connection.send(_plain(reader.refusal))
            self._sent(connection)

    def _answer(self, connection: Connection, request: Request) -> None:
        if len(request.body) > LARGE:
            self._hand_over(self._large, connection, request)
            return
        try:
            answer = self._respond(request)
        except MustWait:
            self._hand_over(self._slow, connection, request)
        else:
            self._send(connection, request, answer)

    def _hand_over(self, pool: ThreadPoolExecutor, connection: Connection, request: Request) -> None:
        """Have a thread answer. The loop hears of nothing but a lost connection until then."""
        connection.phase, connection.deadline = Phase.ANSWERING, float("inf")
        self._poller.unregister(connection.socket)
        pool.submit(self._respond, request).add_done_callback(partial(self._tell_loop, connection, request))

    def _tell_loop(self, connection: Connection, request: Request, done: Future[_Answer]) -> None:
        self._answered.put((connection, request, done))
        with suppress(BlockingIOError):  # full: the loop wakes up anyway
            os.write(self.PIPE[1], b".")

    def _wake(self) -> None:
        """Send what threads have answered; signals wake the loop here as well."""
        with suppress(BlockingIOError):
            os.read(self.PIPE[0], 4096)
        with suppress(Empty):
            while True:
                connection, request, done = self._answered.get_nowait()
                self._poller.register(connection.socket, connection.events)
                self._guarded(connection, partial(self._send, connection, request, done.result()))

    def _send(self, connection: Connection, request: Request, answer: _Answer) -> None:
        connection.last = not (request.keep_alive and self.alive)
        data, after = answer
        try:
            connection.send(data)
        finally:
            after()
        self._sent(connection)

    def _sent(self, connection: Connection) -> None:
        reader = connection.reader
        if not connection.last:
            connection.rest(self.cfg.keepalive)
            self._watch(connection, select.EPOLLIN)
            if reader.requests or reader.refusal:
                self._waiting.append(connection)
        elif reader.size:
            connection.linger()
            self._watch(connection, select.EPOLLIN)
        else:
            raise ConnectionClosed

    def _close(self, connection: Connection, reason: str = "") -> None:
        self._connections.pop(connection.socket.fileno(), None)
        connection.close()
        if reason:
            self.on_closed(reason)

    def _respond(self, request: Request) -> _Answer:
        """Call the application. Raises ``MustWait`` where it can be answered in a thread only."""
        head: list[str] = []

        def start(status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> Callable[[bytes], object]:
            head[:] = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
            return head.append  # type: ignore[return-value] # WSGI's old way to write; the application has no use for it

        try:
            chunks = self.wsgi(_environ(request), start)
            body = b"".join(chunks)
        except MustWait:
            raise
        except Exception:
            self.log.exception("bug in the application")
            return _plain(NO_ANSWER), lambda: None
        connection = "keep-alive" if request.keep_alive and self.alive else "close"
        head += [f"Date: {util.http_date()}", f"Connection: {connection}", "", ""]
        return "\r\n".join(head).encode("latin-1") + body, getattr(chunks, "close", lambda: None)


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
