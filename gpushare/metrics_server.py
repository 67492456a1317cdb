"""Serve ``/metrics`` for Prometheus and ``/readyz`` for the kubelet, over plain HTTP and from one daemon thread.

The enforcer and the webhook call it. Plain HTTP, because a probe should not depend on the certificate that it reports
about.
"""

import platform
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gpushare.errors import ConfigError
from gpushare.http_server import Answer, Page, Server, text
from gpushare.reasons import Reason
from gpushare.version import installed

ROUND_SECONDS: Final = 0.5
"""How long the thread waits for a client at most: deadlines of connections, and its own end, are this late."""

log = structlog.get_logger()


def serve(
    flag: str, address: tuple[str, int], registry: CollectorRegistry, not_ready: Callable[[], str | None]
) -> Callable[[], None]:
    """Start the thread. Return what ends it.

    Args:
        flag: the option that named the address.
        address: host and port.
        registry: what ``/metrics`` shows.
        not_ready: returns why the process is not ready, empty or None when it is. The thread calls it for each probe.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    try:
        server = Server(address, pages(registry, not_ready), _report)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot listen on {address[0]}:{address[1]}: {error}") from error
    stopped = threading.Event()
    thread = threading.Thread(target=_run, args=(server, stopped), name="metrics-server", daemon=True)
    thread.start()

    def end() -> None:
        stopped.set()
        thread.join()

    return end


def pages(registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> Page:
    """Return the pages: metrics in Prometheus' text format, and 503 with the reason while not ready.

    Adds ``gpu_share_build_info`` to the metrics. The time at which each counter began would double its series.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call] # the library has no annotation for it
    build = Gauge(
        "gpu_share_build_info", "Version of gpu-share and Python; always 1.", ("version", "python"), registry=registry
    )
    build.labels(installed(), platform.python_version()).set(1)

    def page(path: str) -> Answer:
        if path == "/metrics":
            return Answer(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
        if path != "/readyz":
            return text("page not found; the pages are /metrics and /readyz", HTTPStatus.NOT_FOUND)
        why = not_ready()
        return text(why, HTTPStatus.SERVICE_UNAVAILABLE) if why else text("ok")

    return page


def _run(server: Server, stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            server.work(ROUND_SECONDS)
        except Exception as bug:  # noqa: BLE001 - a pod without /readyz gets no traffic, and nothing restarts it
            _report(bug)
            time.sleep(ROUND_SECONDS)
    server.close()


def _report(bug: Exception) -> None:
    log.error("the metrics server failed", reason=str(Reason.INTERNAL), exc_info=bug)
