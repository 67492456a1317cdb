"""An API server on loopback for test 28: objects it lists and watches, and everything that can go wrong with it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
WELL: Final = "well"
CLOSED: Final = "closed"
"""Ends the watches that are still open: each is a thread."""
SLOW: Final = 3.0
"""Seconds: more than the tests let a call wait."""
GARBAGE: Final[dict[str, bytes]] = {
    "an array": b"[]",
    "an empty object": b"{}",
    "null": b"null",
    "no JSON": b"<html>502 Bad Gateway</html>",
    "half a list": b'{"items": [{"metadata": {"na',
    "items that are none": b'{"items": [5, null, "x", []], "metadata": {"resourceVersion": "1"}}',
    "objects without metadata": b'{"items": [{}, {"metadata": null}], "metadata": {"resourceVersion": "1"}}',
    "a list without a version": b'{"items": [], "metadata": {}}',
    "a bookmark of nothing": b'{"type": "BOOKMARK", "object": {}}\n',
    "one object": b'{"kind": "Status", "metadata": {"resourceVersion": "1"}, "status": "Success"}',
    "a deep one": b"[" * 100_000,
    "no text": b"\xff\xfe\x00" * 100,
}
STATUSES: Final = (401, 403, 404, 410, 429, 500, 503)
FAULTS: Final = (
    "away", "silent", "slow", "cut", *map(str, STATUSES), *GARBAGE,
    "watch: 410", "watch: ends at once", "watch: garbage",
)  # fmt: skip


class ApiServer(ThreadingHTTPServer):
    """Lists and watches ``objects`` by kind (the last word of the path), as ``fault`` lets it."""

    daemon_threads = True
    block_on_close = False
    objects: dict[str, list[Object]]

    def __init__(self, port: int = 0) -> None:
        self.fault, self.version, self.asked = WELL, 1, 0
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are expected here."""

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; while away, slam the door."""
        connection, peer = super().get_request()
        if self.fault == "away":
            connection.close()
            raise OSError("away")
        return connection, peer

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.fault = CLOSED
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def log_message(self, *_: object) -> None:
        """Keep the test's output quiet."""

    def do_GET(self) -> None:
        server, where = self.server, urlsplit(self.path)
        server.asked += 1
        query = parse_qs(where.query)
        watched = "watch" in query and "sendInitialEvents" not in query
        fault = server.fault
        if fault.startswith("watch: "):
            fault = fault.removeprefix("watch: ") if watched else WELL
        if fault in {"silent", "slow"}:
            time.sleep(SLOW)
        if fault.isdigit():
            self._answer(int(fault), json.dumps({"kind": "Status", "message": "not now"}).encode())
        elif fault in GARBAGE:
            self._answer(200, GARBAGE[fault])
        elif fault != "silent" and watched:
            self._watch(fault)
        elif fault != "silent":
            self._list(where.path.rpartition("/")[2], fault)

    def _list(self, kind: str, fault: str) -> None:
        """Answer a list as it is asked for: a stream of events that a bookmark ends."""
        end = {"resourceVersion": str(self.server.version), "annotations": {"k8s.io/initial-events-end": "true"}}
        events = [{"type": "ADDED", "object": each} for each in self.server.objects[kind]]
        events.append({"type": "BOOKMARK", "object": {"metadata": end}})
        data = b"".join(json.dumps(each).encode() + b"\n" for each in events)
        self._answer(200, data[: len(data) // 2] if fault == "cut" else data, length=len(data))

    def _answer(self, status: int, data: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, fault: str) -> None:
        """Watch until anything changes here; then end, which makes the other side list again after a 410."""
        self.send_response(200)
        self.end_headers()
        begun, kind = self.server.version, self.server.fault
        if fault == "garbage":
            self.wfile.write(b'{"type": "MODIFIED"}\n{"type": 5, "object": []}\n')
            return
        while fault not in {"410", "ends at once"} and (self.server.version, self.server.fault) == (begun, kind):
            time.sleep(0.02)
        if fault != "ends at once":
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
            self.wfile.write(json.dumps(gone).encode() + b"\n")
