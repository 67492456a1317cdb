"""``python -m tests.load.bench.lists NODES PODS [apart]``: an API server with a fleet's lists, for one webhook.

It streams lists, or answers pages, and keeps watches open. ``POST /bench/pods?from=A&to=B`` lets so many pods come,
change three times and go, one after the other, and then waits until who watches had a template made for a last one.
Its first line of output is its port.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.load.bench.fleet import Fleet

VERSION: Final = "1000"
CHANGES: Final = 3
MARK: Final = 900_000
"""Number of the first pod that asks for a size nobody else has."""
PATIENCE: Final = 300.0
BOOKMARKS: Final = 20.0


@dataclass(slots=True)
class Kind:
    """One list: how many objects, and each of them by its number; who watches it."""

    count: int
    make: Callable[[int], bytes]
    watchers: list[BaseHTTPRequestHandler] = field(default_factory=list)
    writing: threading.Lock = field(default_factory=threading.Lock)


class Lists:
    """What is served."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.kinds = {
            "namespaces": Kind(fleet.namespaces, fleet.namespace),
            "pods": Kind(fleet.pods, fleet.pod),
            "resourceclaims": Kind(fleet.pods, fleet.claim),
            "resourceclaimtemplates": Kind(len(fleet.templates), fleet.template),
        }
        self.created = threading.Semaphore(0)
        self._mark = MARK

    def page(self, kind: Kind, query: dict[str, str]) -> bytes:
        """One page of a list."""
        first = int(query.get("continue", "0"))
        last = min(kind.count, first + int(query.get("limit", kind.count)))
        more = str(last) if last < kind.count else ""
        metadata = json.dumps({"resourceVersion": VERSION, "continue": more}).encode()
        items = b",".join(kind.make(number) for number in range(first, last))
        return b'{"metadata":' + metadata + b',"items":[' + items + b"]}"

    def churn(self, numbers: range) -> None:
        """Let pods come, change and go; done when all of it has been taken in."""
        for number in numbers:
            pod, claim = self.fleet.pod(number), self.fleet.claim(number)
            for change in ("ADDED", *["MODIFIED"] * CHANGES, "DELETED"):
                self.tell("pods", change, pod)
            for change in ("ADDED", "MODIFIED", "DELETED"):
                self.tell("resourceclaims", change, claim)
        self._mark += 1
        marked = Fleet(self.fleet.nodes, 1, apart=True).pod(self._mark)
        self.tell("pods", "ADDED", marked)
        if not self.created.acquire(timeout=PATIENCE):
            raise TimeoutError("no template was made for the last pod")
        self.tell("pods", "DELETED", marked)

    def tell(self, kind: str, change: str, item: bytes) -> None:
        """Send an event to whoever watches."""
        line = b'{"type":"' + change.encode() + b'","object":' + item + b"}\n"
        with self.kinds[kind].writing:
            for watcher in self.kinds[kind].watchers:
                watcher.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def bookmark(self) -> None:
        """Say now and then that there is nothing to say, as a watch that is silent is given up."""
        while True:
            time.sleep(BOOKMARKS)
            for kind in self.kinds:
                self.tell(kind, "BOOKMARK", b'{"metadata":{"resourceVersion":"' + VERSION.encode() + b'"}}')


class Handler(BaseHTTPRequestHandler):
    """Of ``server.lists``."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        where, query = self._asked()
        kind = self._lists.kinds[where.rpartition("/")[2]]
        if query.get("sendInitialEvents"):
            self._stream(kind)
        elif query.get("watch"):
            self._watch(kind)
        else:
            self._answer(200, self._lists.page(kind, query))

    def do_POST(self) -> None:
        where, query = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if where == "/bench/pods":
            self._lists.churn(range(int(query["from"]), int(query["to"])))
        else:
            self._created(where, json.loads(body))
        self._answer(201, body or b"{}")

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(404, b"{}")

    @property
    def _lists(self) -> Lists:
        server: Any = self.server
        lists: Lists = server.lists
        return lists

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()}

    def _stream(self, kind: Kind) -> None:
        """Send all there is as events, and a bookmark after them."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(kind.count):
            self.wfile.write(b'{"type":"ADDED","object":' + kind.make(number) + b"}\n")
        end = {"resourceVersion": VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
        self.wfile.write(json.dumps({"type": "BOOKMARK", "object": {"metadata": end}}).encode() + b"\n")
        self.close_connection = True

    def _watch(self, kind: Kind) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        kind.watchers.append(self)
        threading.Event().wait()

    def _created(self, where: str, body: dict[str, Any]) -> None:
        """Store a template: everybody who watches is told."""
        metadata = {"namespace": where.split("/")[-2], "uid": body["metadata"]["name"], "resourceVersion": VERSION}
        stored = json.dumps({**body, "metadata": {**body["metadata"], **metadata}}).encode()
        self._lists.tell("resourceclaimtemplates", "ADDED", stored)
        self._lists.created.release()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(argv: list[str]) -> int:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.lists = lists = Lists(Fleet(int(argv[0]), int(argv[1]), apart="apart" in argv[2:]))
    threading.Thread(target=lists.bookmark, daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
