"""Metrics and readiness from a thread."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from gpushare import metrics_server
from gpushare.errors import ConfigError
from tests.testbed.cluster.ports import free_ports


class Process:
    """What is served, and why it is not ready."""

    def __init__(self) -> None:
        self.port, self.why, registry = free_ports(1)[0], "", CollectorRegistry()
        Counter("gpu_share_things", "Counted.", registry=registry).inc()
        self.end = metrics_server.serve("--metrics", ("127.0.0.1", self.port), registry, self.not_ready)

    def not_ready(self) -> str:
        if self.why == "bug":
            raise ZeroDivisionError
        return self.why

    def get(self, path: str) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(name="process")
def _process() -> Iterator[Process]:
    process = Process()
    yield process
    process.end()


def test_metrics_are_prometheus_text(process: Process) -> None:
    status, content_type, body = process.get("/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "gpu_share_things_total 1.0\n" in body


def test_readiness_is_503_with_the_reason(process: Process) -> None:
    assert process.get("/readyz")[::2] == (200, "ok\n")
    process.why = "no GPU"
    assert process.get("/readyz")[::2] == (503, "no GPU\n")


def test_other_pages_are_404(process: Process) -> None:
    assert process.get("/")[0] == 404


def test_a_bug_is_logged_and_ends_nothing(process: Process) -> None:
    process.why = "bug"
    with capture_logs() as logged:
        assert process.get("/readyz")[0] == 500
    assert [type(line["exc_info"]) for line in logged] == [ZeroDivisionError]
    assert process.get("/metrics")[0] == 200


def test_its_end_leaves_no_thread_and_no_listener() -> None:
    before, process = set(threading.enumerate()), Process()
    (made,) = set(threading.enumerate()) - before
    process.end()
    assert not made.is_alive()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        process.get("/metrics")


def test_an_address_that_is_taken_is_a_wrong_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="--admin: cannot listen on"):
            metrics_server.serve("--admin", ("127.0.0.1", port), CollectorRegistry(), lambda: None)
