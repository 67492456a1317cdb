"""Health and metrics on a port of their own, in plain HTTP.

TLS applies to every port of gunicorn's, and probes should not depend on the certificate they report about.
"""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from webhook.metrics import Metrics

TEXT: Final = [("Content-Type", "text/plain; charset=utf-8")]

Check = Callable[[], str]
"""Says what is not ready; an empty string when all is."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 32


class _Handler(WSGIRequestHandler):
    timeout = 5
    """Seconds a silent client may hold a thread."""

    def log_message(self, *_: Any) -> None:
        """Say nothing: a probe every few seconds is no news."""


def start(address: tuple[str, int], metrics: "Metrics", not_ready: Check) -> WSGIServer:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics`` from a daemon thread."""
    expose = make_wsgi_app(metrics.registry)

    def app(environ: "WSGIEnvironment", answer: "StartResponse") -> Iterable[bytes]:
        where = environ.get("PATH_INFO")
        if where == "/metrics":
            pages: Iterable[bytes] = expose(environ, answer)
            return pages
        if where not in {"/healthz", "/readyz"}:
            return _say(answer, "404 Not Found", "there are /healthz, /readyz and /metrics")
        fault = not_ready() if where == "/readyz" else ""
        return _say(answer, "503 Service Unavailable" if fault else "200 OK", fault or "ok")

    server = make_server(*address, app, server_class=_Server, handler_class=_Handler)
    threading.Thread(target=server.serve_forever, name="admin", daemon=True).start()
    return server


def _say(answer: "StartResponse", status: str, text: str) -> list[bytes]:
    answer(status, list(TEXT))  # a fresh one: the server adds Content-Length to the list it is given
    return [f"{text}\n".encode()]
