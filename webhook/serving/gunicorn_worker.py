"""A threaded gunicorn worker that slow clients cannot hold up: a request gets a thread when all of it is here.

Stock ``gthread`` gives a thread to a connection at its first byte and then waits for the rest without limit: as many
half-sent handshakes, headers or bodies as there are threads are an outage, and with ``failurePolicy: Fail`` nobody
creates a sharing pod. Here the incomplete ones wait in the poller, with a deadline and a limit to what they may hold,
and a thread waits milliseconds only. Answers leave in one piece, which saves a system call and a TLS record.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from gunicorn import http, util
from gunicorn import sock as gunicorn_sock
from gunicorn.workers.gthread import _DEFER, TConn, ThreadWorker

from webhook.serving.http_framing import RequestFramer
from webhook.serving.tls import check_client, refuses_client

REQUEST_SECONDS: Final = 10.0
"""From a request's first byte to its last. The API server waits 3 s with our configuration, 30 s at most."""
ANSWER_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 0.005
"""How long a thread waits for bytes that are on their way, which is cheaper than going through the poller."""
LINGER_SECONDS: Final = 1.0
MAX_CONNECTIONS: Final = 1000
FREE_BYTES: Final = 64 * 1024
"""What each connection may hold without being counted: reviews of ordinary pods never compete for memory."""
MAX_BUFFERED: Final = 64 * 1024 * 1024
"""Counted bytes that unfinished requests may hold, all connections together: nine of the largest."""
READ: Final = 256 * 1024
MAX_DRAIN: Final = 8 * 1024 * 1024
"""How much of one request is read at most, the part counted that is thrown away so that its sender hears the answer."""
MIN_DRAIN: Final = 64 * 1024
EXPECTATION_FAILED: Final = "417 Expectation Failed"
HEAD_TOO_LARGE: Final = "431 Request Header Fields Too Large"


class ConnectionClosed(Exception):
    """This connection ends. ``reason`` is empty where the client ended it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BufferBudget:
    """Bytes held for unfinished requests, over all connections."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, threading.Lock()

    def change(self, by: int) -> bool:
        """Add to the bytes in use. Returns whether they are within the limit."""
        with self._lock:
            self._bytes += by
            return self._bytes <= self._limit


class BufferedTlsSocket(ssl.SSLSocket):
    """A TLS connection that never blocks for ever, and that sends an answer's head together with its body.

    Once up it stays non-blocking and waits by polling: each change of a socket's mode is a system call that lets go of
    the interpreter, and two for each request cost a tenth of what eight busy connections can have.
    """

    _holding = False
    _head = b""

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - the socket's own signature
        """Leave the mode as it is, whatever gunicorn wants for its turn: this class waits by itself."""

    def ready(self, events: int, until: float) -> bool:
        """Wait for the connection to have something to read or room to write."""
        poller = select.poll()
        poller.register(self.fileno(), events)
        return bool(poller.poll(max(0.0, until - time.monotonic()) * 1000))

    def receive(self, size: int, until: float) -> bytes:
        """Read what comes until then. Raises ``TimeoutError`` where nothing does."""
        # What TLS has decrypted already is no longer seen by polling.
        while self.pending() or self.ready(select.POLLIN, until):
            with suppress(ssl.SSLWantReadError):  # part of a TLS record
                return self.recv(size)
        raise TimeoutError

    def hold_head(self) -> None:
        """Keep the next write back until the one after it."""
        self._holding, self._head = True, b""

    def release_head(self) -> None:
        """Send what is still buffered."""
        head, self._holding, self._head = self._head, False, b""
        if head:
            self._send_whole(head)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ARG002 - the socket's own signature
        """Send, or keep back."""
        if self._holding and not self._head:
            self._head = bytes(data)
        else:
            head, self._holding, self._head = self._head, False, b""
            self._send_whole(head + bytes(data) if head else data)

    def _send_whole(self, data: Any) -> None:
        """Send all of it, or give up on a client that does not read."""
        until = time.monotonic() + ANSWER_SECONDS
        left = memoryview(data)
        while left:
            try:
                left = left[self.send(left) :]
            except (ssl.SSLWantWriteError, TimeoutError):
                if not self.ready(select.POLLOUT, until):
                    raise TimeoutError("the client does not read its answer") from None


class Connection(TConn):  # type: ignore[misc] # gunicorn ships no types
    """One client: its handshake, and the bytes of the request that is coming in."""

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, budget: BufferBudget) -> None:
        self._deadline: float | None = None
        self._timeout: float | None = None
        self._budget, self._counted = budget, 0
        self._secured = False
        self._buffer, self._read, self._end = bytearray(), 0, 0
        self._frame = RequestFramer()
        self.sock: Any
        self.initialized: bool
        super().__init__(cfg, sock, client, server)

    @property
    def timeout(self) -> float | None:
        """When the poller gives up on this connection."""
        return self._timeout

    @timeout.setter
    def timeout(self, when: float | None) -> None:
        self._timeout = when if when is None or self._deadline is None else min(when, self._deadline)

    @property
    def idle(self) -> bool:
        """Whether the connection is up and no request has begun."""
        return self._secured and not self._buffer

    @property
    def unread(self) -> bool:
        """Whether closing now could cut an answer off, because more is coming in."""
        return not self._frame.complete

    def arrived(self, patience: float) -> bool:
        """Read what there is. Returns whether a request can be handled.

        Args:
            patience: seconds to wait for more, all in all.

        Raises:
            ConnectionClosed: the client is gone, late, or holds too much.
            OSError: the connection or its handshake failed.
        """
        until = time.monotonic() + patience
        try:
            if not self._secured:
                self._secure(until)
            while (end := self._frame.end(self._buffer)) is None:
                if self._frame.expects:
                    # Giving the go-ahead would bind a thread; clients send the body unasked when they are told so.
                    self._refuse(EXPECTATION_FAILED)
                self._take(until)
        except (TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._check_deadline()
            return False
        if self._frame.headless:
            self._refuse(HEAD_TOO_LARGE)
        self._end, self._deadline = end, None
        return True

    def recv(self, size: int) -> bytes:
        """What gunicorn's parser reads: the bytes of this one request, then an end."""
        start, self._read = self._read, min(self._read + size, self._end)
        return bytes(memoryview(self._buffer)[start : self._read])

    def next_request(self) -> None:
        """Forget the request that was answered; what follows it stays."""
        del self._buffer[: self._end]
        self._read = self._end = 0
        self._frame = RequestFramer()
        self._uncount()

    def close(self, graceful: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - gunicorn's signature
        """Close at once: gunicorn calls this in its only main thread, which a lingering client must not stop."""
        self._uncount()
        util.close(self.sock)

    def linger(self, seconds: float) -> None:
        """Give the client a moment to read an answer that came before it had sent everything."""
        util.close_graceful(self.sock, timeout=seconds, max_drain=max(MIN_DRAIN, MAX_DRAIN - len(self._buffer)))

    def _secure(self, until: float) -> None:
        if not self.initialized:
            self.sock = gunicorn_sock.ssl_wrap_socket(self.sock, self.cfg)
            self.initialized = True
            self.parser = http.get_parser(self.cfg, self, self.client)
            self._deadline = time.monotonic() + REQUEST_SECONDS
        self.sock.settimeout(max(0.0, until - time.monotonic()))
        self.sock.do_handshake()
        check_client(self.sock)
        self.sock.settimeout(0.0)
        self._secured, self._deadline = True, None

    def _take(self, until: float) -> None:
        data = self.sock.receive(READ, until)
        if not data:
            raise ConnectionClosed
        if not self._buffer:
            self._deadline = time.monotonic() + REQUEST_SECONDS
        self._buffer += data
        if (excess := len(self._buffer) - FREE_BYTES - self._counted) > 0:
            self._counted += excess
            if not self._budget.change(excess):
                raise ConnectionClosed("memory")

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise ConnectionClosed("deadline")

    def _refuse(self, status: str) -> None:
        self.sock.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        self.linger(0.0)
        raise ConnectionClosed

    def _uncount(self) -> None:
        if self._counted:
            self._budget.change(-self._counted)
            self._counted = 0


class Worker(ThreadWorker):  # type: ignore[misc] # gunicorn ships no types
    """``gthread`` with connections as above."""

    on_closed: Callable[[str], None] = staticmethod(lambda _reason: None)
    """Called with why a connection was closed: ``deadline``, ``memory``, ``room``, or ``certificate``, the client's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._budget = BufferBudget(MAX_BUFFERED)

    def accept(self, listener: socket.socket) -> None:
        """Take a connection in; the longest idle one makes room for it."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.nr_conns += 1
        if self.nr_conns >= MAX_CONNECTIONS:
            self._make_room()
        self.enqueue_req(Connection(self.cfg, client, address, listener.getsockname(), self._budget))

    def handle(self, conn: Connection) -> Any:
        """Answer what has arrived, in one of the threads. Returns what gunicorn's poller shall do with the rest."""
        try:
            while conn.arrived(self._patience()):
                if not super().handle(conn) or conn.unread:
                    if conn.unread:
                        conn.linger(LINGER_SECONDS if self._patience() else 0.0)
                    return False
                conn.next_request()
        except ConnectionClosed as stop:
            if stop.reason:
                self.on_closed(stop.reason)
            return False
        except OSError as error:
            if refuses_client(error):
                self.on_closed("certificate")
            self.log.debug("connection failed: %s", error)
            return False
        return True if conn.idle else _DEFER

    def handle_request(self, req: Any, conn: Connection) -> Any:
        """Answer one request, in one write."""
        conn.sock.hold_head()
        try:
            return super().handle_request(req, conn)
        finally:
            conn.sock.release_head()

    def murder_pending(self) -> None:
        """Close what did not arrive in time."""
        before = len(self.pending_conns)
        super().murder_pending()
        for _ in range(before - len(self.pending_conns)):
            self.on_closed("deadline")

    def _patience(self) -> float:
        """Nothing waits while others wait for a thread."""
        return PATIENCE_SECONDS if self.tpool._work_queue.empty() else 0.0  # noqa: SLF001 - there is no public way

    def _make_room(self) -> None:
        for connections in (self.pending_conns, self.keepalived_conns):
            if connections:
                conn = connections.popleft()
                self.poller.unregister(conn.sock)
                self.nr_conns -= 1
                conn.close()
                self.on_closed("room")
                return
