"""A gunicorn worker with one event loop: each turn reads from all connections that are ready, then answers for a while.

No client can hold it up: nothing waits for a handshake, a request or a reader of an answer, and senders get the same
share. Requests are answered in the loop, because a thread for 0.2 ms of work costs as much again. Those that wait for
the API server (``MustWait``) are answered in a thread.
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
from webhook.serving.connection import FREE_BYTES, REQUEST_SECONDS, Connection, Steps
from webhook.serving.fair_queue import FairQueue, sender_of
from webhook.serving.http_request import CHECK, Request
from webhook.serving.tls import refuses_client

THREADS: Final = 32
"""Reviews that wait at once for the API server: for a namespace (0.5 s at most) or a claim template (0.3 s)."""
THREAD_BYTES: Final = 1024 * 1024
"""As soon as reviews of so many bytes are in threads, no other is begun: parsed, one of 7 MiB can be 140 MiB."""
MAX_CONNECTIONS: Final = 1000
MAX_ACCEPTED: Final = 16
"""New connections of one turn. With one, a burst beside busy connections takes twice as long until it is answered."""
MAX_BUFFERED: Final = 64 * 1024 * 1024
"""Bytes of unanswered requests, of all connections that hold more than ``FREE_BYTES``: nine of the largest."""
TURN_SECONDS: Final = 1.0
IDLE_STOP_SECONDS: Final = 2.0
"""How long a worker that ends keeps idle connections, on which a request may be on its way."""
ANSWERING_SECONDS: Final = 0.01
"""Then connections are read again: what came meanwhile may be another sender's. Most reviews take a tenth of it."""
_QUEUED: Final = 0
"""Yielded instead of events by a connection whose request waits for its turn."""
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
        self._queue, self._must_wait = FairQueue[Connection](), FairQueue[Connection]()
        self._in_threads = 0
        self._slow = ThreadPoolExecutor(THREADS, "waiting")
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
        for number, _ in self._poller.poll(0.0 if self._waiting or self._queue else TURN_SECONDS):
            if number in listeners:
                self._accept(listeners[number])
            elif number == self.PIPE[0]:  # signals and threads wake the loop
                os.read(number, 4096)
            elif (connection := self._connections.get(number)) and not connection.queued:
                self._resume(connection)
        for _ in range(len(self._waiting)):
            self._resume(self._waiting.popleft())
        now = time.monotonic()
        until = now + ANSWERING_SECONDS
        while self._queue and now < until:
            self._resume(self._queue.take())
            now = time.monotonic()
        while self._must_wait and self._in_threads < THREAD_BYTES:
            self._resume(self._must_wait.take())
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
            connection.queued = events == _QUEUED
            # Most answers leave at once, and cost no system call here.
            if not connection.queued and events != connection.events:
                connection.events = events
                self._poller.modify(connection.socket, events)

    def _close_all(self, which: Callable[[Connection], bool]) -> None:
        for connection in [each for each in self._connections.values() if which(each)]:
            self._close(connection, "deadline" if connection.begun else "")

    def _close(self, connection: Connection, reason: str | None = None) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        if connection.queued:
            self._queue.discard(connection)
            self._must_wait.discard(connection)
        connection.steps.close()
        connection.socket.close()
        if reason:
            self.on_closed(reason)

    def _serve(self, connection: Connection) -> Steps[str | None]:
        reader, keep_alive, has_memory = connection.reader, True, partial(self._has_memory, connection)
        yield from connection.shake_hands()
        while keep_alive:
            if (ended := (yield from connection.receive(self.cfg.keepalive, has_memory))) is not None:
                return ended
            if reader.requests:
                request = reader.requests.popleft()
                once = request.target.startswith(CHECK.encode())
                keep_alive = request.keep_alive = request.keep_alive and self.alive and not once
                answer = yield from self._answer(connection, request)
            else:
                keep_alive, answer = False, _plain(reader.refusal)
            yield from connection.send(answer)
        if reader.size:
            yield from connection.linger()
        return None

    def _has_memory(self, connection: Connection) -> bool:
        """Tell whether a large request may go on. Where memory is short, the largest gives way, of these the last."""
        large = [each for each in self._connections.values() if each.buffered > FREE_BYTES]
        if sum(each.buffered for each in large) <= MAX_BUFFERED:
            return True
        largest = max((each for each in large if each.deadline < inf), key=lambda each: (each.buffered, each.deadline))
        if largest is not connection:
            self._close(largest, "memory")
        return largest is not connection

    def _answer(self, connection: Connection, request: Request) -> Steps[bytes]:
        """Answer here, or in a thread."""
        yield from self._take_turn(self._queue, connection, request)
        with suppress(MustWait):
            return self._respond(request)
        yield from self._take_turn(self._must_wait, connection, request)
        return (yield from self._answer_in_thread(connection, request))

    def _take_turn(self, queue: FairQueue[Connection], connection: Connection, request: Request) -> Steps[None]:
        connection.wait(REQUEST_SECONDS, begun=True)
        queue.add(sender_of(request.body), len(request.body), connection)
        yield _QUEUED

    def _answer_in_thread(self, connection: Connection, request: Request) -> Steps[bytes]:
        """Until it is done the loop hears of nothing but a lost connection."""
        connection.wait(inf, begun=False)
        size = max(len(request.body), THREAD_BYTES // THREADS)
        self._in_threads += size
        answer = self._slow.submit(self._respond, request)
        answer.add_done_callback(partial(self._wake, connection))
        while not answer.done():
            yield select.EPOLLET
        self._in_threads -= size
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
