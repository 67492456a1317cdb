"""An API server on loopback whose lists are large: small objects first, then objects near the API server's own limit.

It streams lists, or refuses that and serves pages, as old API servers and proxies do. An object is written from one
body in memory, so that the server itself stays small.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
SMALL: Final = 60
VERSION: Final = "1000"
VARIABLES: Final = 45_000
"""Empty variables of a pod; with ``managedFields`` it reads back as 7.8 MB."""
_NAME: Final = "NAME-0000"


@dataclass(frozen=True, slots=True)
class Crowd:
    """Objects of one kind: ``SMALL`` small ones, then ``count`` like ``large``."""

    small: bytes
    large: bytes
    count: int

    def __len__(self) -> int:
        return SMALL + self.count

    def bodies(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield these objects, each with a name of its own."""
        for number in range(begin, min(end, len(self))):
            body = self.small if number < SMALL else self.large
            yield body.replace(_NAME.encode(), f"made-{number:04}".encode())


NOTHING: Final = Crowd(b"", b"", -SMALL)


def pod(**spec: Any) -> Object:
    """A pod that never started, which bears our label without having anything of ours."""
    return {
        "metadata": _metadata() | {"labels": {"gpu-share.io/managed": "true"}},
        "spec": {"nodeName": "gpu-7", "containers": [{"name": "main", "image": "none", **spec}]},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "containerID": ""}]},
    }


def long_arguments() -> Object:
    """A pod of 1.3 MB, most of it arguments."""
    return pod(args=[f"{number:0100}" for number in range(13_000)])


def empty_variables() -> Object:
    """A pod of many tiny fields: each becomes a dict here, and two more in each entry of ``managedFields``."""
    names = [f"V{number:027}" for number in range(VARIABLES)]
    made = pod(env=[{"name": name} for name in names])
    fields: Object = {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}} for name in names}
    owned = {"f:spec": {"f:containers": {'k:{"name":"main"}': {"f:env": fields}}}}
    made["metadata"]["managedFields"] = [
        {"manager": name, "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": owned}
        for name in ("kubectl-create", "kubectl-edit")
    ]
    return made


def claim(**rest: Any) -> Object:
    """A claim of somebody else's driver."""
    exactly = {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}
    return {
        "metadata": _metadata(),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], **rest}},
        "status": {},
    }


def long_claim() -> Object:
    """A claim of 1.3 MB, most of it parameters for its driver."""
    opaque = {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}
    return claim(config=[{"opaque": opaque}] * 130)


def _metadata() -> Object:
    return {"name": _NAME, "namespace": "outside", "uid": f"uid-{_NAME}", "resourceVersion": "7"}


def crowd(small: Object, large: Object, count: int) -> Crowd:
    """Make a list of small objects that are followed by large ones."""
    return Crowd(_written(small), _written(large), count)


def _written(item: Object) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


class LargeLists(ThreadingHTTPServer):
    """Serves crowds by the last word of the path, and empty lists of everything else.

    Attributes:
        watched: by kind, set once somebody watches from the end of the list.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, crowds: Mapping[str, Crowd], *, streams: bool) -> None:
        self.crowds, self.streams = crowds, streams
        self.watched: dict[str, threading.Event] = {}
        self.closed = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: Any) -> None:
        """Processes that are ended by memory hang up."""

    def seen(self, kind: str) -> threading.Event:
        """The event that tells that a list of this kind was read to its end."""
        return self.watched.setdefault(kind, threading.Event())

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig that leads here."""
        file = folder / "kubeconfig"
        cluster = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}
        context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
        users = [{"name": "x", "user": {"token": "secret"}}]
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "users": users}
        file.write_text(json.dumps(config | {"contexts": [context], "clusters": [cluster]}))
        return file

    @contextmanager
    def serving(self) -> Iterator["LargeLists"]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.closed.set()
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LargeLists

    def log_message(self, *_: object) -> None:
        """Keep the test's output quiet."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(where.query).items()}
        kind = where.path.rpartition("/")[2]
        with suppress(OSError):
            if where.path.endswith("/gpu-share-clean"):
                self._whole(404, b'{"kind":"Status","message":"not found"}')
            elif "watch" not in query:
                self._page(kind, int(query.get("limit", "500")), int(query.get("continue", "0")))
            elif "sendInitialEvents" not in query:
                self._watch(kind)
            elif self.server.streams:
                self._stream(kind)
            else:
                self._refuse()

    def do_DELETE(self) -> None:
        self._whole(404, b'{"kind":"Status","message":"not found"}')

    def _page(self, kind: str, limit: int, begin: int) -> None:
        crowd = self.server.crowds.get(kind, NOTHING)
        more = str(begin + limit) if begin + limit < len(crowd) else ""
        metadata = json.dumps({"resourceVersion": VERSION, "continue": more}).encode()
        items = b",".join(crowd.bodies(begin, begin + limit))
        self._whole(200, b'{"metadata":' + metadata + b',"items":[' + items + b"]}")

    def _refuse(self) -> None:
        self._whole(422, b'{"kind":"Status","message":"sendInitialEvents: Forbidden"}')

    def _stream(self, kind: str) -> None:
        self._begin()
        crowd = self.server.crowds.get(kind, NOTHING)
        for body in crowd.bodies(0, len(crowd)):
            self._chunk(b'{"type":"ADDED","object":' + body + b"}\n")
        annotations = {"k8s.io/initial-events-end": "true"}
        end = {"metadata": {"resourceVersion": VERSION, "annotations": annotations}}
        self._chunk(json.dumps({"type": "BOOKMARK", "object": end}).encode() + b"\n")
        self.server.closed.wait(60)

    def _watch(self, kind: str) -> None:
        self._begin()
        self.server.seen(kind).set()
        self.server.closed.wait(600)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
