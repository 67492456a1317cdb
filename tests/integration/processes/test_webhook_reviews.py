"""Raw reviews and malformed bodies against the real server: gunicorn, its worker, TLS."""

import http.client
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import reviews
from tests.support.webhook import Webhook, serving

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("webhook-reviews")]

OPERATIONS = ["CREATE", "UPDATE", "DELETE", "CONNECT"]
VERSIONS = ["v1", "v1beta1", "v2"]
SUBRESOURCES = ["", "status", "binding", "eviction", "exec", "attach", "ephemeralcontainers", "resize"]
OBJECTS = ["both", "object", "old", "neither"]


@pytest.fixture(name="webhook", scope="module")
def _webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with serving(tmp_path_factory.mktemp("webhook"), options=["--log-level", "warning"]) as running:
        workers = running.worker_pids()
        yield running
        assert running.worker_pids() == workers, "a worker died"
    assert "Traceback" not in running.log.read_text()
    assert not [line for line in running.log_lines() if line.get("reason") == "InternalError"]


@pytest.fixture(name="connection", scope="module")
def _connection(webhook: Webhook) -> Iterator[http.client.HTTPSConnection]:
    connection = webhook.connection()
    yield connection
    connection.close()


def send(connection: http.client.HTTPSConnection, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def matrix() -> Iterator[tuple[str, str, str, bool | None, str]]:
    """4 operations x 3 versions x 8 subresources x 4 sets of objects, dryRun taking turns: 384 reviews."""
    dry_runs = itertools.cycle([False, True, None])
    for operation, version, subresource, objects in itertools.product(OPERATIONS, VERSIONS, SUBRESOURCES, OBJECTS):
        yield operation, version, subresource, next(dry_runs), objects


def build(operation: str, version: str, subresource: str, dry_run: object, objects: str) -> bytes:
    pod = reviews.pod()
    body = reviews.review(
        pod if objects in {"both", "object"} else None,
        operation=operation,
        subResource=subresource or None,
        dryRun=dry_run,
        oldObject=pod if objects in {"both", "old"} else None,
    )
    return json.dumps({**body, "apiVersion": f"admission.k8s.io/{version}"}).encode()


def test_there_are_enough_raw_reviews() -> None:
    assert len(list(matrix())) >= 200


@pytest.mark.parametrize("operation", OPERATIONS)
def test_raw_reviews_are_answered_or_refused_as_calls(connection: http.client.HTTPSConnection, operation: str) -> None:
    for case in matrix():
        if case[0] != operation:
            continue
        status, body = send(connection, build(*case))
        _, version, subresource, _, objects = case
        no_object = operation in {"CREATE", "UPDATE"} and objects in {"old", "neither"}
        assert status == (400 if version != "v1" or no_object else 200), (case, body)
        if status == 200:
            response = json.loads(body)["response"]
            assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
            assert response["allowed"] is True
            assert ("patch" in response) == (operation == "CREATE" and not subresource), case


def test_a_dry_run_and_a_run_get_the_same_answer(connection: http.client.HTTPSConnection) -> None:
    answers = {send(connection, reviews.encoded(reviews.pod(), dryRun=dry)) for dry in (True, False, None)}

    assert len(answers) == 1


WRONG_VALUES: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], {}, [None], {"a": None}, [[]], "\u0000", "é" * 300]
PLACES = [
    ("metadata",),
    ("metadata", "annotations"),
    ("metadata", "annotations", "gpu-share.io/memory"),
    ("metadata", "annotations", "gpu-share.io/compute"),
    ("metadata", "labels"),
    ("spec",),
    ("spec", "containers"),
    ("spec", "containers", 0),
    ("spec", "containers", 0, "name"),
    ("spec", "containers", 0, "env"),
    ("spec", "containers", 0, "env", 0),
    ("spec", "containers", 0, "resources"),
    ("spec", "initContainers"),
    ("spec", "resourceClaims"),
    ("spec", "tolerations"),
    ("spec", "volumes"),
    ("spec", "securityContext"),
    ("spec", "runtimeClassName"),
]


def misshapen() -> Iterator[tuple[tuple[Any, ...], Any, bytes]]:
    """Pods with a wrong value in one place: well-formed calls, so each gets a verdict."""
    for place in PLACES:
        for value in WRONG_VALUES:
            pod = reviews.pod()
            parent: Any = pod
            for step in place[:-1]:
                parent = parent[step]
            parent[place[-1]] = value
            yield place, value, reviews.encoded(pod)


def test_misshapen_pods_get_a_result(connection: http.client.HTTPSConnection) -> None:
    for place, value, body in misshapen():
        status, answer = send(connection, body)
        assert status == 200, (place, value, answer)
        assert isinstance(json.loads(answer)["response"]["allowed"], bool)


def malformed() -> Iterator[bytes]:
    """Bodies that are no review: cut, garbled, too deep, of wrong types, in wrong encodings."""
    good = reviews.encoded(reviews.pod())
    chance = random.Random(20261121)
    yield from (good[: chance.randrange(1, len(good))] for _ in range(60))
    yield from (b"aaaaaa", b"{}", b"[]", b"null", b"1", b'""', b" ", b"\x00", b"\xff\xfe", b"{" * 1000, b"[" * 100_000)
    yield from (good + tail for tail in (b"x", b"{}", b"\x00", b"]", good))
    yield from (b'{"a":' * depth + b"1" + b"}" * depth for depth in (65, 500, 1000, 5000, 200_000))
    yield from (good.decode().encode(encoding) for encoding in ("utf-16", "utf-32", "utf-8-sig", "utf-16-le"))
    yield from (good.replace(b"false", word) for word in (b"NaN", b"Infinity", b"-Infinity", b"nan", b"1e999", b"0x1"))
    yield from (good.replace(b'"1"', b"9" * digits) for digits in (21, 4300, 4301, 100_000))
    yield good.replace(b'"uid"', b'"uid": "a", "uid"')
    yield good.replace(b'"name": "main"', b'"name": "main", "name": "other"')
    yield good.replace(b"model", b"\xff\xfe\xfd")
    yield good.replace(b"model", b"\\ud800")
    odd: list[Any] = [None, 1, "", [], "x", True]
    for key, value in itertools.product(("apiVersion", "kind", "request"), odd):
        yield json.dumps({**reviews.review(reviews.pod()), key: value}).encode()
    wrong = {
        "uid": (None, 1, "", [], {}, True, "x" * 254),
        "operation": (None, 1, "", [], {}, "create", "PATCH"),
        "object": (1, "", [], True, "pod", None),
        "oldObject": (1, "", [], True),
        "dryRun": (1, "", [], {}, "true"),
        "resource": (1, "", [], True, {"group": 1}, {"resource": []}),
        "userInfo": (1, "", [], True, {"username": 1}),
        "namespace": (1, [], {}, True),
        "name": (1, [], {}, True),
        "subResource": (1, [], {}, True),
    }
    for key, values in wrong.items():
        yield from (reviews.encoded(**{"obj": reviews.pod(), key: value}) for value in values if key != "object")
        yield from (reviews.encoded(value) for value in values if key == "object")
    for _ in range(60):
        garbled = bytearray(good)
        garbled[chance.randrange(len(good))] = chance.choice(b'"{}[],:\\\x00\xff')
        if not _is_json(bytes(garbled)):
            yield bytes(garbled)
    yield from (bytes(chance.randrange(256) for _ in range(size)) for size in range(1, 41))


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def test_malformed_bodies_are_refused_as_calls(connection: http.client.HTTPSConnection) -> None:
    bodies = list(malformed())
    assert len(bodies) >= 200
    for body in bodies:
        status, answer = send(connection, body)
        assert status == 400, (body[:200], answer)
        assert b"Traceback" not in answer
        assert b'File "' not in answer


def test_an_empty_body_is_a_malformed_call(webhook: Webhook) -> None:
    assert webhook.post(b"").status == 400


@pytest.mark.parametrize(
    "request_line",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 5, 6\r\n\r\n12345",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Type:application/json\r\nTransfer-Encoding:chunked\r\n\r\n2\r\n{}X0\r\n\r\n",
        b"POST /mutate HTTP/9.9\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nX: " + b"x" * 70_000,
        b"POST /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET /mutate HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=range(12),
)
def test_malformed_http_is_the_clients_fault(webhook: Webhook, request_line: bytes) -> None:
    with webhook.connect(timeout=5) as client:
        client.sendall(request_line)
        answer = client.recv(65536)
    status = int(answer.split(b" ", 2)[1])
    assert 400 <= status < 500 or status == 501, answer
    assert b"Traceback" not in answer
    assert b'File "' not in answer


def test_a_review_in_chunks_is_answered(webhook: Webhook) -> None:
    connection = webhook.connection()
    body = reviews.encoded(reviews.pod())
    pieces = (body[at : at + 100] for at in range(0, len(body), 100))
    connection.request("POST", "/mutate", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_requests_sent_ahead_are_answered_in_order(webhook: Webhook) -> None:
    def raw(uid: str) -> bytes:
        body = reviews.encoded(reviews.pod(), uid=uid)
        head = (
            f"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    with webhook.connect(timeout=10) as client:
        client.sendall(b"".join(raw(f"uid-{number}") for number in range(20)))
        received = b""
        while received.count(b'"uid":') < 20:
            received += client.recv(65536)
    found = [part.split(b'"')[0] for part in received.split(b'"uid":"')[1:]]
    assert found == [f"uid-{number}".encode() for number in range(20)]


def test_sizes_are_limited_by_length_and_in_chunks(webhook: Webhook) -> None:
    limit = 7 * 1024 * 1024
    assert webhook.post(padded(limit)).status == 200
    assert webhook.post(padded(limit + 1)).status == 413
    assert chunked(webhook, padded(limit)) == 200
    assert chunked(webhook, padded(limit + 1)) == 413


def padded(size: int) -> bytes:
    body = reviews.encoded(reviews.pod())
    return body + b" " * (size - len(body))


def chunked(webhook: Webhook, body: bytes) -> int:
    connection = webhook.connection()
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    try:
        connection.request("POST", "/mutate", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
        return connection.getresponse().status
    finally:
        connection.close()


def test_endless_chunks_are_cut_off(webhook: Webhook, tmp_path: Path) -> None:
    sent = 0
    with webhook.connect(timeout=10) as client:
        client.sendall(b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(1600):
                client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass
    assert sent < 32 * 1024 * 1024


def test_a_hundred_thousand_entries_do_not_stall_it(webhook: Webhook) -> None:
    pod = reviews.pod()
    pod["spec"]["containers"][0]["env"] = [{"name": f"V{number}"} for number in range(100_000)]

    assert webhook.post(reviews.encoded(pod)).status == 200


def test_nobody_needs_to_wait_for_a_go_ahead(webhook: Webhook) -> None:
    with webhook.connect(timeout=5) as client:
        client.sendall(b"POST /mutate HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 417 ")
