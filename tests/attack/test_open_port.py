"""Whoever reaches the webhook's port without credentials: what it can make the webhook do, and what it can learn.

The webhook is a process of its own. It watches an API server on loopback, which counts the namespaces that are read.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.integration.processes.test_webhook_server import eventually
from tests.support import reviews
from tests.support.webhook import Reply, Webhook, serving
from webhook.claim_templates.controller import ADMISSION_WAIT

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("webhook-server")]

NAMESPACES: Final = "/api/v1/namespaces"
GET_SECONDS: Final = 0.1
REVIEWS: Final = 500
THREADS: Final = 16
BURST: Final = 10
NEW_SIZES: Final = 32
A_SECOND: Final = 2
EXISTING: Final = {
    "kind": "Namespace",
    "metadata": {"name": "outside", "annotations": {"gpu-share.io/max-memory": "7Gi"}},
}
OPTED_IN: Final = {"kind": "Namespace", "metadata": {"name": "team", "labels": {"gpu-share.io/enabled": "true"}}}


class ApiServer(ThreadingHTTPServer):
    """Lists one opted-in namespace, keeps watches open, and knows one more namespace, which did not opt in."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.closed = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def kubeconfig(self, folder: Path) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
            "users": [{"name": "x", "user": {"token": "none"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(json.dumps(content))
        return file

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.closed.set()
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, *_: object) -> None:
        """Keep the test's output quiet."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if "sendInitialEvents" in where.query:
            self._answer(422, {"kind": "Status", "message": "lists are not streamed here"})
        elif "watch=true" in where.query:
            self._watch()
        elif "labelSelector" in where.query or not where.path.startswith(NAMESPACES):
            items = [OPTED_IN] if where.path == NAMESPACES else []
            self._answer(200, {"items": items, "metadata": {"resourceVersion": "1"}})
        else:
            self._namespace(where.path.removeprefix(NAMESPACES).strip("/"))

    def _namespace(self, name: str) -> None:
        self.server.read[name] += 1
        time.sleep(GET_SECONDS)
        found = name == "outside"
        self._answer(200 if found else 404, EXISTING if found else {"kind": "Status", "message": f"{name} not found"})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.server.closed.wait()


@dataclass(frozen=True, slots=True)
class Site:
    api: ApiServer
    webhook: Webhook

    def ask(self, namespace: str, memory: str = "4Gi") -> Reply:
        pod = reviews.pod()
        pod["metadata"]["annotations"]["gpu-share.io/memory"] = memory
        return self.webhook.post(reviews.encoded(pod, namespace=namespace))

    def ask_all(self, namespaces: list[str]) -> list[Reply]:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self.ask, namespaces))


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Site]:
    api = ApiServer()
    options = [f"--kubeconfig={api.kubeconfig(tmp_path)}"]
    with api.serving(), serving(tmp_path, options=options, watching=True) as webhook:
        yield Site(api, webhook)


@pytest.mark.parametrize("name", ["unknown", "unknown-{}"], ids=["same", "different"])
def test_reviews_of_unknown_namespaces_cost_the_api_server_little(site: Site, name: str) -> None:
    started = time.monotonic()
    answers = site.ask_all([name.format(number) for number in range(REVIEWS)])

    assert {answer.status for answer in answers} == {500}
    assert sum(site.api.read.values()) <= BURST + A_SECOND * (time.monotonic() - started)


def test_known_namespaces_are_answered_meanwhile(site: Site) -> None:
    stop = threading.Event()

    def flood(thread: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            site.ask(f"unknown-{thread}-{number}")

    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood, thread) for thread in range(4)]
        try:
            answers = [site.ask("team") for _ in range(50)]
        finally:
            stop.set()
        for each in floods:
            each.result()

    assert [answer.json()["response"]["allowed"] for answer in answers] == [True] * 50


def test_reviews_that_wait_for_claim_templates_wait_beside_each_other(site: Site) -> None:
    """This API server creates none, so each size that is new is waited for in full."""
    sizes = [f"{1024 + number}Mi" for number in range(NEW_SIZES)]
    began = time.monotonic()
    with ThreadPoolExecutor(NEW_SIZES) as pool:
        answers = list(pool.map(partial(site.ask, "team"), sizes))

    assert [answer.json()["response"]["allowed"] for answer in answers] == [True] * NEW_SIZES
    assert ADMISSION_WAIT < time.monotonic() - began < NEW_SIZES * ADMISSION_WAIT / 2


def test_a_stranger_does_not_learn_which_namespaces_exist(site: Site) -> None:
    """The namespace that exists has a policy, which may not show either: 900Gi are above it."""
    answers = {name: site.ask(name, "900Gi") for name in ("outside", "missing")}

    assert site.api.read == {"outside": 1, "missing": 1}
    assert len({(each.status, each.body.decode().replace(name, "NAME")) for name, each in answers.items()}) == 1
    refused = 'gpu_share_admission_requests_total{operation="CREATE",reason="NamespaceUnknown",result="errored"}'
    assert site.webhook.metric(refused) == 2


@pytest.mark.parametrize(
    "name", ["", "..", "a/../team", "Team", "x" * 100_000], ids=["none", "up", "path", "case", "long"]
)
def test_what_cannot_be_a_namespace_is_neither_read_nor_given_a_share(site: Site, name: str) -> None:
    answer = site.ask(name)

    assert answer.status == 500
    assert not site.api.read
    eventually(lambda: "review errored" in site.webhook.log.read_text())
    assert max(len(line) for line in site.webhook.log.read_text().splitlines()) < 4000
