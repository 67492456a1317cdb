"""The event loop, in a thread of the test: what it hands to other threads, and certificates that change under load."""

import http.client
import itertools
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gunicorn import util
from gunicorn.config import Config

from gpushare.reasons import Reason
from tests.support import extent, pki, reviews
from webhook.metrics import Metrics
from webhook.must_wait import MustWait
from webhook.serving import review
from webhook.serving.app import create_app
from webhook.serving.gunicorn_worker import Worker
from webhook.serving.review import Answer, Review
from webhook.serving.tls import Certificates

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

WAITS, PASSES = "waits", "passes"
CLIENTS = 4


class Served:
    """A worker on a port of its own. Each handshake looks at the certificate's files."""

    def __init__(self, folder: Path, metrics: Metrics, authority: pki.Authority) -> None:
        self.authority, self.folder, self.loop = authority, folder, threading.Thread(target=self._run, daemon=True)
        pki.write(folder, authority.issue())
        moments = itertools.count(step=10)
        certificates = Certificates(folder, metrics, monotonic=lambda: float(next(moments)))
        config, listener = Config(), util.socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = listener.getsockname()[1]
        config.set("ssl_context", lambda _config, _default: certificates.context())
        config.set("keepalive", 95)
        self.worker = Worker(0, os.getppid(), [listener], None, 30, config, logging.getLogger("worker"))
        self.worker.PIPE = os.pipe()
        for end in self.worker.PIPE:
            os.set_blocking(end, False)

    def _run(self) -> None:
        self.worker.run()

    @contextmanager
    def answering_with(self, app: "WSGIApplication") -> Iterator[None]:
        self.worker.wsgi = app
        self.loop.start()
        try:
            yield
        finally:
            self.worker.alive = False
            os.write(self.worker.PIPE[1], b".")
            self.loop.join(10)
            self.worker.tmp.close()
            for end in self.worker.PIPE:
                os.close(end)
        assert not self.loop.is_alive()

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.authority.bundle.decode())
        return http.client.HTTPSConnection("localhost", self.port, context=context, timeout=20)

    def ask(self, uid: str) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = self.connection()
        connection.request(
            "POST", "/mutate", reviews.encoded(reviews.pod(), uid=uid), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        headers = [(name, value) for name, value in answer.getheaders() if name != "Date"]
        found = answer.status, headers, answer.read()
        connection.close()
        return found


@pytest.fixture(name="served")
def _served(tmp_path: Path, metrics: Metrics) -> Served:
    return Served(tmp_path, metrics, pki.Authority())


class Respond:
    """Allows; reviews with the uid ``waits`` only outside the loop's thread, once ``read`` is set."""

    def __init__(self, loop: threading.Thread) -> None:
        self._loop, self.read, self.calls = loop, threading.Event(), list[tuple[str, bool]]()

    def __call__(self, asked: Review, /) -> Answer:
        in_loop = threading.current_thread() is self._loop
        self.calls.append((asked.uid, in_loop))
        if asked.uid == WAITS:
            if in_loop:
                raise MustWait
            assert self.read.wait(20)
        return review.allowed("the same", Reason.NO_SHARE)


def eventually(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_review_that_must_wait_is_answered_in_a_thread_like_any_other(served: Served, metrics: Metrics) -> None:
    respond = Respond(served.loop)
    with (
        served.answering_with(create_app(respond, metrics)),
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(served.ask, WAITS)
        eventually(lambda: (WAITS, False) in respond.calls)
        others = [served.ask(PASSES) for _ in range(5)]
        assert not waiting.done()
        respond.read.set()

        assert waiting.result(20) == others[0]
    assert others[0][0] == 200
    assert [in_loop for uid, in_loop in respond.calls if uid == WAITS] == [True, False]
    assert all(in_loop for uid, in_loop in respond.calls if uid == PASSES)
    labels = {"operation": "CREATE", "result": "allowed", "reason": "NoShare"}
    assert metrics.registry.get_sample_value("gpu_share_admission_requests_total", labels) == 6
    assert metrics.registry.get_sample_value("gpu_share_admission_requests_in_flight") == 0


def test_an_application_that_fails_costs_one_answer(served: Served) -> None:
    def fail_once(environ: dict[str, Any], start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/fail":
            raise RuntimeError("secret")
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    with served.answering_with(fail_once):
        connection = served.connection()
        for path, status in (("/fail", 500), ("/", 200)):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status
            assert b"secret" not in answer.read()
        connection.close()


def test_no_handshake_fails_while_certificates_rotate(served: Served, metrics: Metrics) -> None:
    rotations, context = extent.trials(25, 1000), ssl.create_default_context(cadata=served.authority.bundle.decode())
    stop, handshakes = threading.Event(), itertools.count()

    def serial() -> str:
        raw = util.socket.create_connection(("127.0.0.1", served.port), 10)
        with context.wrap_socket(raw, server_hostname="localhost") as client:
            found: Any = client.getpeercert()
        next(handshakes)
        return str(found["serialNumber"]).lower().lstrip("0")

    def load() -> None:
        while not stop.is_set():
            serial()

    with served.answering_with(create_app(Respond(served.loop), metrics)):
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(load) for _ in range(CLIENTS)]
            try:
                for _ in range(rotations):
                    fresh = served.authority.issue()
                    pki.write(served.folder, fresh)
                    assert serial() == fresh.serial.lstrip("0")
            finally:
                stop.set()
        for client in clients:
            client.result()
    loaded: Any = metrics.registry.get_sample_value("gpu_share_cert_reloads_total", {"result": "loaded"})
    assert loaded >= rotations  # the first pair may be replaced before the first handshake
    print(f"rotations {rotations:,}, handshakes {next(handshakes):,}, failed 0")
