"""The event loop, in a thread of the test: what it hands to other threads, and certificates that change under load."""

import http.client
import itertools
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gunicorn import util
from gunicorn.config import Config

from gpushare.reasons import Reason
from gpushare_cli.check.trial import REFUSES
from tests.support import extent, pki, reviews
from webhook.metrics import Metrics
from webhook.must_wait import MustWait
from webhook.serving import gunicorn_worker, review
from webhook.serving.app import create_app
from webhook.serving.connection import FREE_BYTES
from webhook.serving.gunicorn_worker import ANSWERING_SECONDS, THREAD_BYTES, THREADS, Worker
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

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.bundle.decode())

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.port, context=self.client(), timeout=20)

    def connect(self) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), 20)
        return self.client().wrap_socket(raw, server_hostname="localhost")

    def ask(self, uid: str, pod: Any = None) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = self.connection()
        connection.request(
            "POST", "/mutate", reviews.encoded(pod or reviews.pod(), uid=uid), {"Content-Type": "application/json"}
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
        self.in_threads = list[str]()
        """Their namespaces."""

    def __call__(self, asked: Review, /) -> Answer:
        in_loop = threading.current_thread() is self._loop
        self.calls.append((asked.uid, in_loop))
        if asked.uid == WAITS:
            if in_loop:
                raise MustWait
            self.in_threads.append(asked.namespace)
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


def test_a_review_waits_behind_one_of_each_other_sender_however_many_there_are(served: Served) -> None:
    begun, all_sent, answered = threading.Event(), threading.Event(), list[str]()

    def answer(environ: dict[str, Any], start: Any) -> list[bytes]:
        answered.append(environ["PATH_INFO"])
        begun.set()
        assert all_sent.wait(20)
        time.sleep(2 * ANSWERING_SECONDS)
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    with served.answering_with(answer):
        opened = [served.connection() for _ in range(13)]
        for each in opened:
            each.connect()
        for number, each in enumerate(opened):
            namespace = "asr" if number == 12 else "loud"
            each.request("POST", f"/{namespace}", reviews.as_sent(reviews.pod(), namespace=namespace))
            assert begun.wait(10)
        all_sent.set()
        assert [each.getresponse().status for each in opened] == [200] * 13
        for each in opened:
            each.close()
    assert answered.index("/asr") <= 2, answered


def test_newcomers_get_room_while_reviews_wait_on_all_connections(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the flood's connections has sent reviews ahead, so that one of them waits at any time."""
    monkeypatch.setattr(gunicorn_worker, "MAX_CONNECTIONS", 4)
    closed, stop = list[str](), threading.Event()
    served.worker.on_closed = closed.append

    def answer(_environ: dict[str, Any], start: Any) -> list[bytes]:
        stop.wait(2 * ANSWERING_SECONDS)
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    def review_of(namespace: str) -> bytes:
        body = reviews.as_sent(reviews.pod(), namespace=namespace)
        return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    with served.answering_with(answer), ExitStack() as stack:
        stack.callback(stop.set)
        flood = [stack.enter_context(served.connect()) for _ in range(4)]
        for each in flood:
            each.sendall(review_of("loud") * 200)
        eventually(lambda: all(each.queued for each in list(served.worker._connections.values())))
        newcomers = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 10)) for _ in range(2)]
        for raw in newcomers:
            client = stack.enter_context(served.client().wrap_socket(raw, server_hostname="localhost"))
            client.sendall(review_of("asr"))
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert len(served.worker._connections) <= 4
    assert closed[:2] == ["room", "room"]


def test_large_reviews_that_must_wait_do_so_one_at_a_time_and_behind_other_senders(
    served: Served, metrics: Metrics
) -> None:
    """Parsed, one can be 140 MiB, and a replica has 512."""
    respond = Respond(served.loop)
    padding = "x" * THREAD_BYTES

    def ask(namespace: str, padding: str) -> int:
        connection = served.connection()
        pod = reviews.pod()
        pod["metadata"]["annotations"]["note"] = padding
        body = reviews.as_sent(pod, uid=WAITS, namespace=namespace)
        connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        return status

    def asked() -> int:
        return sum(in_loop for _, in_loop in respond.calls)

    with served.answering_with(create_app(respond, metrics)), ThreadPoolExecutor(50) as pool:
        large = [pool.submit(ask, "loud", padding) for _ in range(5)]
        eventually(lambda: asked() == 5)
        small = [pool.submit(ask, "asr", "") for _ in range(THREADS + 8)]
        eventually(lambda: asked() == 5 + len(small))
        assert respond.in_threads == ["loud"]
        respond.read.set()
        assert {each.result(20) for each in large + small} == {200}
    assert respond.in_threads == ["loud", *["asr"] * len(small), *["loud"] * 4]


def test_where_memory_is_short_the_largest_request_gives_way(
    served: Served, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gunicorn_worker, "MAX_BUFFERED", 1024 * 1024)
    closed = list[str]()
    served.worker.on_closed = closed.append
    pod = reviews.pod()
    pod["metadata"]["annotations"]["note"] = "x" * 2 * FREE_BYTES
    ahead = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n" + b" " * 330_000

    with served.answering_with(create_app(Respond(served.loop), metrics)), ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(served.connect()).sendall(ahead)
        eventually(lambda: sum(each.buffered for each in list(served.worker._connections.values())) > 990_000)
        assert served.ask(PASSES, pod)[0] == 200
    assert closed[:1] == ["memory"]


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


def test_a_connection_of_the_check_ends_with_its_answer(served: Served, metrics: Metrics) -> None:
    """The next one may reach another replica. Alerts know nothing of it."""
    answers = dict[str, tuple[int, str | None]]()
    with served.answering_with(create_app(lambda asked: review.allowed(asked.uid, Reason.NO_SHARE), metrics)):
        for target in ("/mutate", "/check"):
            connection = served.connection()
            body = reviews.encoded(reviews.pod())
            connection.request("POST", f"{target}?timeout=3s", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answers[target] = (answer.status, answer.getheader("Connection"))
            said = answer.read().decode()
            connection.close()
    assert answers == {"/mutate": (200, "keep-alive"), "/check": (500, "close")}
    assert REFUSES in said
    counted = [each for one in metrics.requests.collect() for each in one.samples if each.name.endswith("_total")]
    assert sum(each.value for each in counted) == 1
