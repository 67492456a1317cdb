"""The running server: certificates that change under it, slow and silent clients, health, how it ends."""

import itertools
import json
import os
import signal
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import pki, reviews
from tests.support.webhook import Webhook, serving
from tests.testbed.cluster.ports import free_ports

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("webhook-server")]

SLOW_CLIENTS = 200
HEAD = b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture(name="webhook")
def _webhook(tmp_path: Path) -> Iterator[Webhook]:
    with serving(tmp_path) as running:
        yield running


def serial(webhook: Webhook) -> str:
    with webhook.connect() as client:
        certificate = client.getpeercert()
    assert certificate
    return str(certificate["serialNumber"]).lower().lstrip("0")


def eventually(what: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def test_a_new_pair_is_taken_up_without_a_restart(webhook: Webhook) -> None:
    kept, workers = webhook.connection(), webhook.worker_pids()
    kept.request("GET", "/")
    kept.getresponse().read()
    fresh = webhook.authority.issue()
    pki.write(webhook.certs, fresh)

    eventually(lambda: serial(webhook) == fresh.serial.lstrip("0"))

    assert webhook.worker_pids() == workers
    assert webhook.metric('gpu_share_cert_reloads_total{result="loaded"}') == 2
    kept.request("GET", "/")
    assert kept.getresponse().status == 404
    kept.close()


@pytest.mark.parametrize("fault", ["torn", "unreadable", "missing", "expired", "not_yet_valid"])
def test_a_broken_pair_keeps_the_last_good_one(webhook: Webhook, fault: str) -> None:
    before = serial(webhook)
    other, issue = webhook.authority.issue(), webhook.authority.issue
    good = webhook.certs / "tls.crt"
    match fault:
        case "torn":
            pki.write(webhook.certs, pki.Pair(other.certificate, issue().key))
        case "unreadable":
            pki.write(webhook.certs, pki.Pair(other.certificate[:200], other.key))
        case "missing":
            good.unlink()
        case "expired":
            pki.write(webhook.certs, issue(begins=-2, ends=-1))
        case _:
            pki.write(webhook.certs, issue(begins=1, ends=2))
    counted = "unreadable" if fault == "missing" else fault

    eventually(lambda: serial(webhook) and webhook.metric(f'gpu_share_cert_reloads_total{{result="{counted}"}}') == 1)

    assert serial(webhook) == before
    assert webhook.post(reviews.encoded(reviews.pod())).status == 200

    def rejected() -> list[str]:
        return [line["result"] for line in webhook.log_lines() if line.get("reason") == "CertificateRejected"]

    eventually(rejected)
    assert rejected() == [counted]


def test_it_mends_itself_when_a_good_pair_follows(webhook: Webhook) -> None:
    pki.write(webhook.certs, pki.Pair(webhook.authority.issue().certificate, webhook.authority.issue().key))
    eventually(lambda: serial(webhook) and webhook.metric('gpu_share_cert_reloads_total{result="torn"}') == 1)
    good = webhook.authority.issue()
    pki.write(webhook.certs, good)

    eventually(lambda: serial(webhook) == good.serial.lstrip("0"))


def test_it_waits_for_its_first_certificate(tmp_path: Path) -> None:
    with serving(tmp_path, certificate=False) as webhook:
        assert webhook.admin("/readyz").status == 503
        assert b"certificate" in webhook.admin("/readyz").body
        with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
            webhook.connect(timeout=5)

        pki.write(webhook.certs, webhook.authority.issue())

        eventually(lambda: webhook.admin("/readyz").status == 200)
        assert webhook.post(reviews.encoded(reviews.pod())).status == 200


def test_only_tls_1_3_is_spoken(webhook: Webhook) -> None:
    old = webhook.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        webhook.connect(old)

    with webhook.connect() as client:
        assert client.version() == "TLSv1.3"


def test_plain_http_gets_no_answer(webhook: Webhook) -> None:
    with socket.create_connection(("127.0.0.1", webhook.port), 5) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"HTTP" not in client.recv(1000)


def half_a_handshake(webhook: Webhook) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", webhook.port), 10)
    client.sendall(b"\x16\x03\x01\x02\x00\x01")
    return client


def silence(webhook: Webhook) -> socket.socket:
    return socket.create_connection(("127.0.0.1", webhook.port), 10)


def half_a_head(webhook: Webhook) -> socket.socket:
    client = webhook.connect()
    client.sendall(HEAD)
    return client


def half_a_body(webhook: Webhook) -> socket.socket:
    client = webhook.connect()
    client.sendall(HEAD + b"Content-Length: 5000\r\n\r\n{")
    return client


def idle(webhook: Webhook) -> socket.socket:
    return webhook.connect()


def refused_and_silent(webhook: Webhook) -> socket.socket:
    client = webhook.connect()
    client.sendall(HEAD + b"Content-Length: 99999999\r\n\r\n")
    return client


SLOW = [silence, half_a_handshake, half_a_head, half_a_body, idle, refused_and_silent]


@contextmanager
def crowd(webhook: Webhook, kind: Callable[[Webhook], socket.socket]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(kind(webhook)) for _ in range(SLOW_CLIENTS)]


def answered(webhook: Webhook) -> float:
    """Seconds until a small review is answered."""
    started = time.monotonic()
    assert webhook.post(reviews.encoded(reviews.pod())).status == 200
    return time.monotonic() - started


@pytest.mark.parametrize("kind", SLOW, ids=[kind.__name__ for kind in SLOW])
def test_slow_clients_hold_nobody_up(webhook: Webhook, kind: Callable[[Webhook], socket.socket]) -> None:
    with crowd(webhook, kind):
        took = [answered(webhook) for _ in range(30)]

    assert statistics.median(took) < 2, "those who are held up wait for more than that"


def test_clients_that_trickle_hold_nobody_up(webhook: Webhook) -> None:
    stop = threading.Event()

    def trickle(clients: list[socket.socket]) -> None:
        for client in itertools.cycle(clients):
            if stop.is_set():
                return
            try:
                client.send(b"x")
            except OSError:
                continue
            time.sleep(0.001)

    with crowd(webhook, half_a_body) as clients:
        thread = threading.Thread(target=trickle, args=(clients,))
        thread.start()
        try:
            assert statistics.median(answered(webhook) for _ in range(50)) < 2
        finally:
            stop.set()
            thread.join()


def test_a_request_that_does_not_arrive_is_given_up(webhook: Webhook) -> None:
    with half_a_body(webhook) as client, half_a_handshake(webhook) as other:
        client.settimeout(25)
        other.settimeout(25)
        assert client.recv(1) == b""
        assert other.recv(1) == b""
    assert webhook.metric('gpu_share_connections_closed_total{reason="deadline"}') == 2


def test_a_request_that_trickles_in_is_given_up(webhook: Webhook) -> None:
    started = time.monotonic()
    with half_a_body(webhook) as client:
        client.settimeout(0.1)
        while time.monotonic() - started < 25:
            try:
                client.send(b" ")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    assert 9 < time.monotonic() - started < 20


def test_unfinished_requests_cannot_take_all_memory(webhook: Webhook) -> None:
    size = 7 * 1024 * 1024 - 1
    with ExitStack() as stack:
        for _ in range(24):
            client = stack.enter_context(webhook.connect())
            try:
                client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (size + 1) + b" " * size)
            except OSError:
                continue
        assert webhook.post(reviews.encoded(reviews.pod())).status == 200
        assert webhook.metric('gpu_share_connections_closed_total{reason="memory"}') >= 10
        assert resident_mib(webhook) < 256


def test_large_reviews_at_once_are_taken_in_turn(webhook: Webhook) -> None:
    padding = ",".join(['{"aaa":"bbb"}'] * 399_000)
    body = reviews.encoded(reviews.pod())[:-1] + f', "extra": [{padding}]}}'.encode()
    with ThreadPoolExecutor(6) as pool:
        began = time.monotonic()
        large = [pool.submit(webhook.post, body) for _ in range(6)]
        took = []
        while not all(one.done() for one in large):
            took.append(answered(webhook))
        lasted = time.monotonic() - began
    assert {one.result().status for one in large} == {200}
    assert statistics.median(took) < max(0.5, lasted / 4), "a slow machine takes longer for all of it"
    assert resident_mib(webhook, "VmHWM") < 400


def resident_mib(webhook: Webhook, which: str = "VmRSS") -> float:
    status = Path(f"/proc/{webhook.worker_pids()[0]}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) / 1024


def test_new_clients_find_room_among_idle_ones(tmp_path: Path) -> None:
    with serving(tmp_path) as webhook, ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(silence(webhook))
        assert webhook.post(reviews.encoded(reviews.pod())).status == 200
        assert webhook.metric('gpu_share_connections_closed_total{reason="room"}') >= 100


def test_readiness_and_metrics_are_on_a_port_of_their_own(webhook: Webhook) -> None:
    webhook.post(reviews.encoded(reviews.pod()))

    assert webhook.admin("/readyz").status == 200
    assert webhook.admin("/mutate").status == 404
    text = webhook.admin("/metrics").body.decode()
    assert 'gpu_share_admission_requests_total{operation="CREATE",reason="Applied",result="patched"} 1.0' in text
    assert 'gpu_share_build_info{python="' in text
    assert webhook.metric("gpu_share_serving_cert_expiry_timestamp_seconds") > time.time()


def test_a_request_in_hand_is_answered_before_it_ends(webhook: Webhook) -> None:
    body = reviews.encoded(reviews.pod())
    with webhook.connect() as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
        time.sleep(0.2)
        os.kill(webhook.process.pid, signal.SIGTERM)
        time.sleep(0.5)
        client.sendall(body[-1:])
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert webhook.process.wait(20) == 0


def test_standard_error_that_nobody_reads_stalls_no_answer(tmp_path: Path) -> None:
    pipe = tmp_path / "webhook.log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)  # or the webhook could not open its end
    received = bytearray()

    def drain() -> None:
        while chunk := os.read(reader, 65536):
            received.extend(chunk)
            if b"\nend\n" in received:
                return

    thread = threading.Thread(target=drain)
    try:
        with serving(tmp_path) as webhook:
            connection = webhook.connection(timeout=10)
            for _ in range(3000):  # a line each
                connection.request("POST", "/mutate", b"{}", {"Content-Type": "application/json"})
                assert connection.getresponse().read()
            connection.close()
            assert webhook.metric("gpu_share_log_lines_dropped_total") > 100
            thread.start()
    finally:
        os.write(reader, b"\nend\n")
        thread.join()
        os.close(reader)
    lines = [json.loads(line) for line in received.partition(b"\nend")[0].splitlines()]
    assert sum(line["event"] == "review errored" for line in lines) >= 1000


def test_wrong_options_are_named_and_end_with_2(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is not an address"), serving(tmp_path, options=["--bind", "nowhere"]):
        pass


def test_the_effective_configuration_is_logged(webhook: Webhook) -> None:
    first = webhook.log_lines()[0]

    assert first["event"] == "effective configuration"
    assert first["bind"] == ["127.0.0.1", webhook.port]
    assert first["settings"]["image"]


def test_a_port_that_is_taken_ends_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports(1)[0]))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(AssertionError, match="Address already in use"),
            serving(tmp_path, options=["--admin", address]),
        ):
            pass
