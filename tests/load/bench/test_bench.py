"""The benchmarks run, and what they report is what they measured."""

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load.bench import api, compare, plot, report, soak
from tests.load.bench.candidates import FLASK, GO, OURS, WSGI, left_out
from tests.load.bench.client import HOST, Load, drive
from tests.load.bench.pods import pods
from tests.support import pki
from tests.testbed.cluster.need import require_binaries

HANDLED = 0.05
"""Seconds that the server of these tests takes for an answer; the tenth it refuses."""


@pytest.fixture(name="ca_and_port")
def _server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    authority = pki.Authority()
    pki.write(tmp_path, authority.issue())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    answered = 0

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def handle(self) -> None:
            nonlocal answered
            while self.rfile.readline():
                while self.rfile.readline().strip():
                    pass
                self.rfile.read(2)
                time.sleep(HANDLED)
                answered += 1
                status = "500 Broken" if answered == 10 else "200 OK"
                self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: 14\r\n\r\n".encode() + b'"allowed":true')

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield authority.bundle.decode(), server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_paced_client_counts_from_when_a_request_was_due_and_counts_refusals(ca_and_port: tuple[str, int]) -> None:
    """Twice the rate that one connection is served at: the last request waits for about half of the time."""
    ca, port = ca_and_port
    measured = drive(Load(port=port, ca=ca, body=b"{}", connections=1, seconds=0.8, rate=2 / HANDLED))
    assert measured.quantile(0.0) >= HANDLED
    assert measured.latencies[-1] > 4 * HANDLED
    assert measured.failures == 1
    assert "500 Broken" in measured.first_failure
    with pytest.raises(RuntimeError, match=r"1 of \d+ requests failed.*500 Broken"):
        measured.without_failures()


def test_every_server_is_measured_and_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(compare, "PICTURES", tmp_path)
    monkeypatch.setattr(compare, "CONNECTIONS", (2,))
    monkeypatch.setattr(compare, "pods", lambda: {"typical": pods()["typical"]})
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- make bench: webhook -->\nold\n<!-- end -->\nafter\n")
    assert compare.main(["--rounds=1", "--seconds=0.1", f"--write={page}"]) == 0
    found = json.loads((tmp_path / "results" / "webhook.json").read_text())
    servers = {OURS, WSGI, FLASK, GO} - left_out().keys()
    assert {row["server"] for row in found["rows"]} == servers
    assert all(row[name] > 0 for row in found["rows"] for name in compare.FIGURES)
    text = page.read_text()
    assert text.startswith("before\n<!-- make bench: webhook -->\n| pod |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert all(f"| {server} |" in text for server in servers)
    assert "HAMi is left out" in text
    assert OURS in (tmp_path / plot.NAME).read_text()


def test_a_soak_holds_its_rate_and_then_opens_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(soak, "MANY", 40)
    monkeypatch.setattr(soak, "RATE", 50.0)
    assert soak.main(["--seconds=0.4"]) == 0
    paced, many = json.loads((tmp_path / "results" / "soak.json").read_text())["rows"]
    assert 10 <= paced["requests"] <= 20
    assert paced["failures"] == 0
    assert (many["connections"], many["failures"]) == (40, 0)
    assert many["requests"] >= 40


def test_a_page_without_marks_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path / "results")
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match=r"page\.md has no line '<!-- make bench: soak -->'"):
        report.publish({"bench": "soak", "when": "", "machine": report.machine(), "settings": {}, "rows": []}, {}, page)


@pytest.mark.controlplane
@pytest.mark.timeout(180)
def test_admission_is_measured_at_an_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_binaries()
    monkeypatch.setattr(report, "FOLDER", tmp_path / "results")
    assert api.main(["--rounds=1", "--seconds=0.4"]) == 0
    none, floor, ours = json.loads((tmp_path / "results" / "api.json").read_text())["rows"]
    assert none["webhook_cpu_ms"] == 0 < floor["webhook_cpu_ms"]
    assert ours["webhook_cpu_ms"] > 0
    assert ours["added"]["api_cpu_ms"] == pytest.approx(ours["api_cpu_ms"] - none["api_cpu_ms"])
