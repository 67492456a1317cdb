"""A stand-in for Prometheus' HTTP API that answers as a test has it, and notes what was asked."""

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Api:
    """Answers to queries by a part of their text, as (labels, value or values); others have no series."""

    url: str = ""
    answers: dict[str, list[tuple[dict[str, str], Any]]] = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    more: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    """Fields of each request, with its path and its header Authorization."""

    def body(self, path: str) -> bytes:
        """Return the answer to a request."""
        if self.raw is not None:
            return self.raw
        query = self.asked[-1]["query"]
        found = next((each for part, each in self.answers.items() if part in query), [])
        value = "values" if path.endswith("query_range") else "value"
        result = [{"metric": labels, value: points} for labels, points in found]
        return json.dumps({"status": "success", "data": {"result": result}} | self.more).encode()


@contextmanager
def serving() -> Iterator[Api]:
    """Serve on a free port of the loopback address."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the test's output quiet."""

        def do_GET(self) -> None:
            where = urllib.parse.urlsplit(self.path)
            fields = dict(urllib.parse.parse_qsl(where.query))
            api.asked.append({"path": where.path, "token": self.headers.get("Authorization", ""), **fields})
            self.send_response(api.status)
            for name, value in api.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(api.body(where.path))

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield api
        server.shutdown()
