"""The agent's pages over plain HTTP: ``/metrics`` for Prometheus, ``/readyz`` for the kubelet."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from gpushare.errors import ConfigError

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def app(registry: CollectorRegistry, hindrance: Callable[[], str | None]) -> App:
    """Answer ``/readyz`` by what hinders, with 503 and the sentence, and everything else with the metrics."""
    metrics: App = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/readyz":
            return metrics(environ, start_response)
        why = hindrance()
        status = "200 OK" if why is None else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{why or 'ok'}\n".encode()]

    return answer


def serve(address: tuple[str, int], pages: App) -> Callable[[], None]:
    """Serve from threads beside the loop. Returns what ends it.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    host, port = address
    try:
        server = make_server(host, port, pages, _Server, _Quiet)
    except OSError as error:
        raise ConfigError(f"--metrics {host}:{port} cannot be listened on: {error}") from error
    thread = threading.Thread(target=server.serve_forever, name="pages", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it so
        """Leave what was asked out of the agent's log."""
