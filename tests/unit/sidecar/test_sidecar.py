"""The sidecar as a process: what it prints, serves and survives, how fast it stops and what it weighs."""

import contextlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.http_server import MAX_CONNECTIONS
from sidecar.main import SILENT_SECONDS, Watcher, main
from sidecar.pod_status import MAX_BYTES

RSS_LIMIT_KIB = 30 * 1024
BUSY = 5.0
"""Seconds for what takes less than one, on a machine that does other things besides."""


def write(folder: Path, content: object) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "new").write_bytes(data)
    (folder / "new").rename(folder / "status.json")


SHIPPED = ("-m", "gpushare_cli", "sidecar")
WAITING = ("-c", "import sys, sidecar.main as m; m.LAST_WORDS = 6.0; sys.exit(m.main(sys.argv[1:]))")
"""Gives the enforcer more time to say what came of a kill than a busy machine may take to write it."""


class Sidecar:
    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", program: Sequence[str] = SHIPPED) -> None:
        command = [sys.executable, *program, "--status", str(folder), "--listen", listen]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        assert self.process.stdout is not None
        self.out = self.process.stdout
        self.first = self.line()
        self.port = int(found.group(1)) if (found := re.search(r"port (\d+)", self.first)) else 0

    def line(self, seconds: float = 10) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self.out, selectors.EVENT_READ)
            assert selector.select(seconds), "the sidecar says nothing"
        return self.out.readline().decode().rstrip("\n")

    def get(self, path: str = "/metrics") -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as client:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get()[1], re.MULTILINE)
        assert found, name
        return float(found.group(1))

    def until(self, name: str, value: float) -> None:
        deadline = time.monotonic() + 10
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} does not become {value}"
            time.sleep(0.05)

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1))  # type: ignore[union-attr]

    def stop(self) -> tuple[int, float]:
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10)
        return code, time.monotonic() - started


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    yield from lent(Sidecar(tmp_path))


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Sidecar]:
    yield from lent(Sidecar(tmp_path, program=WAITING))


def lent(running: Sidecar) -> Iterator[Sidecar]:
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait(10)
    running.out.close()


def message(number: int, text: str = "over quota") -> dict[str, str]:
    return {"time": f"2026-11-20T22:16:{number:02}Z", "text": text}


def test_messages_are_printed_once_as_they_appear_and_made_harmless(sidecar: Sidecar, tmp_path: Path) -> None:
    write(tmp_path, {"ready": True, "messages": [message(1)]})
    assert sidecar.line() == "the share of the GPU is ready"
    assert sidecar.line() == "2026-11-20T22:16:01Z over quota"
    write(tmp_path, {"ready": True, "messages": [message(1), message(2, "killed\x1b[0m\nfake line")]})
    assert sidecar.line() == r"2026-11-20T22:16:02Z killed\x1b[0m\nfake line"
    sidecar.until("gpu_share_messages_total", 2)


def test_metrics_tell_use_and_quota_in_bytes(sidecar: Sidecar, tmp_path: Path) -> None:
    assert sidecar.metric("gpu_share_status_readable") == 0
    assert sidecar.metric("gpu_share_ready") == 0
    use = {"container": "m", "gpu": "GPU-1", "usedMiB": 3, "quotaMiB": 4, "state": "Warned"}
    gpu = {"uuid": "GPU-1", "memoryMiB": 100, "usedByOthersMiB": 50}
    write(tmp_path, {"time": "2026-11-20T22:16:05Z", "ready": True, "containers": [use], "gpus": [gpu]})
    sidecar.until("gpu_share_ready", 1)
    assert sidecar.metric('gpu_share_container_memory_used_bytes{container="m",gpu="GPU-1"}') == 3 * 2**20
    assert sidecar.metric('gpu_share_container_memory_quota_bytes{container="m",gpu="GPU-1"}') == 4 * 2**20
    assert sidecar.metric('gpu_share_container_state{container="m",gpu="GPU-1",state="Warned"}') == 1
    assert sidecar.metric('gpu_share_gpu_memory_usable_bytes{gpu="GPU-1"}') == 100 * 2**20
    assert sidecar.metric('gpu_share_gpu_memory_used_by_others_bytes{gpu="GPU-1"}') == 50 * 2**20
    assert sidecar.metric("gpu_share_status_timestamp_seconds") == 1795212965


def test_use_that_nobody_can_tell_is_no_figure(sidecar: Sidecar, tmp_path: Path) -> None:
    use = {"container": "m", "gpu": "GPU-1", "usedMiB": None, "quotaMiB": 4, "state": "Unknown"}
    write(tmp_path, {"ready": True, "containers": [use], "gpus": [{"uuid": "GPU-1", "memoryMiB": 100}]})
    sidecar.until("gpu_share_ready", 1)
    assert "gpu_share_container_memory_used_bytes{" not in sidecar.get()[1]
    assert "held_by_others_bytes{" not in sidecar.get()[1]
    assert sidecar.metric('gpu_share_container_state{container="m",gpu="GPU-1",state="Unknown"}') == 1


def test_what_the_pod_may_hold_is_reported_when_it_is_ready(tmp_path: Path) -> None:
    said: list[str] = []
    watcher = Watcher(str(tmp_path / "status.json"), said.append)
    write(tmp_path, {"ready": True, "containers": [{"container": "m", "gpu": "GPU-1", "quotaMiB": 4096}]})
    watcher.look()
    assert said == ["the share of the GPU is ready: m 4096 MiB on GPU-1"]


def test_a_share_that_is_no_longer_ready_is_reported_to_be(tmp_path: Path) -> None:
    said: list[str] = []
    watcher = Watcher(str(tmp_path / "status.json"), said.append)
    for content in ({"ready": True}, {"waiting": "GPU-1 cannot be read"}, {"waiting": "still"}, {"ready": True}):
        write(tmp_path, content)
        watcher.look()
    assert said == [
        "the share of the GPU is ready",
        "the share of the GPU is no longer ready: GPU-1 cannot be read",
        "the share of the GPU is ready",
    ]


def test_an_enforcer_that_falls_silent_is_reported_to_be_and_so_is_its_return(tmp_path: Path) -> None:
    said: list[str] = []
    now = [1795212965.0]
    watcher = Watcher(str(tmp_path / "status.json"), said.append, lambda: now[0])
    write(tmp_path, {"time": "2026-11-20T22:16:05Z"})
    for later in (0, SILENT_SECONDS - 1, 2, 2):
        now[0] += later
        watcher.look()
    assert said == ["the enforcer has not updated the status for 60 s: the pod runs on without quota enforcement"]
    write(tmp_path, {"time": "2026-11-20T22:17:06Z"})
    watcher.look()
    assert said[1:] == ["the enforcer is back"]


def test_a_file_that_vanishes_is_not_ready_and_its_messages_are_not_said_again(
    sidecar: Sidecar, tmp_path: Path
) -> None:
    write(tmp_path, {"ready": True, "messages": [message(1)]})
    sidecar.until("gpu_share_ready", 1)
    (tmp_path / "status.json").unlink()
    sidecar.until("gpu_share_ready", 0)
    write(tmp_path, {"ready": True, "messages": [message(1)]})
    sidecar.until("gpu_share_ready", 1)
    assert sidecar.metric("gpu_share_messages_total") == 1


def sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


def link_to_ready(file: Path) -> None:
    """What a link leads to is believed by nobody, even where it says what one hopes for."""
    (file.parent / "elsewhere").write_text('{"ready": true}')
    file.symlink_to(file.parent / "elsewhere")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "torn": lambda file: file.write_bytes(b'{"ready": true, "mess'),
    "huge": lambda file: file.write_bytes(b'{"ready": true}' + b" " * MAX_BYTES),
    "sparse": sparse,
    "deep": lambda file: file.write_bytes(b"[" * 200_000),
    "many keys": lambda file: file.write_bytes(b"{" + b",".join(b'"%d":0' % n for n in range(20_000)) + b"}"),
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a link to endless bytes": lambda file: file.symlink_to("/dev/zero"),
    "a link to itself": lambda file: file.symlink_to(file),
    "a link to another file": link_to_ready,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.timeout(10)
def test_nothing_else_in_the_files_place_is_believed(tmp_path: Path, make: Callable[[Path], object]) -> None:
    said: list[str] = []
    watcher = Watcher(str(tmp_path / "status.json"), said.append)
    make(tmp_path / "status.json")
    watcher.look()
    assert not (watcher.status and watcher.status.ready)
    assert said == []


def test_what_fills_the_file_to_the_brim_does_not_end_it_or_swell_it(sidecar: Sidecar, tmp_path: Path) -> None:
    texts = [message(1, f"{n:05} {chr(0x1F600) * 50}") for n in range(900)]
    data = json.dumps({"ready": True, "messages": texts}).encode()
    write(tmp_path, data[: MAX_BYTES - 100])
    time.sleep(1.2)
    write(tmp_path, json.dumps({"ready": True, "messages": texts[:300]}).encode())
    sidecar.until("gpu_share_ready", 1)
    assert sidecar.rss_kib() < RSS_LIMIT_KIB


def test_it_stops_soon_and_prints_what_came_last(sidecar: Sidecar, tmp_path: Path) -> None:
    sidecar.metric("gpu_share_ready")
    write(tmp_path, {"messages": [message(9, "killed")]})
    code, seconds = sidecar.stop()
    assert code == 0
    assert seconds < BUSY
    assert sidecar.line() == "2026-11-20T22:16:09Z killed"


def test_it_waits_a_moment_for_the_outcome_of_a_kill_that_is_under_way(waiting: Sidecar, tmp_path: Path) -> None:
    use = {"container": "m", "gpu": "GPU-1", "usedMiB": 9, "quotaMiB": 4, "state": "Killing"}
    write(tmp_path, {"ready": True, "containers": [use]})
    waiting.until("gpu_share_ready", 1)
    waiting.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    write(tmp_path, {"ready": True, "containers": [{**use, "state": "Within"}], "messages": [message(9, "killed")]})
    assert waiting.process.wait(30) == 0
    assert [waiting.line(), waiting.line()][1] == "2026-11-20T22:16:09Z killed"


@pytest.mark.parametrize(
    "content",
    [
        {"containers": [{"container": "m", "gpu": "GPU-1", "usedMiB": 96, "quotaMiB": 100, "state": "Within"}]},
        {
            "containers": [{"container": "m", "gpu": "GPU-1", "usedMiB": 6, "quotaMiB": 100, "state": "Within"}],
            "gpus": [{"uuid": "GPU-1", "memoryMiB": 1000, "usedByOthersMiB": 950}],
        },
    ],
    ids=["quota", "GPU"],
)
def test_where_memory_was_short_it_waits_a_moment_for_why_a_container_failed(
    waiting: Sidecar, tmp_path: Path, content: dict[str, object]
) -> None:
    write(tmp_path, {"ready": True, **content})
    waiting.until("gpu_share_ready", 1)
    write(tmp_path, {"ready": True})
    waiting.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    write(tmp_path, {"ready": True, "messages": [message(9, "QuotaReached")]})
    assert waiting.process.wait(30) == 0
    assert [waiting.line(), waiting.line()][1] == "2026-11-20T22:16:09Z QuotaReached"


def test_an_outcome_that_never_comes_does_not_hold_it_up_for_long(sidecar: Sidecar, tmp_path: Path) -> None:
    use = {"container": "m", "gpu": "GPU-1", "usedMiB": 9, "quotaMiB": 4, "state": "Killing"}
    write(tmp_path, {"ready": True, "containers": [use]})
    sidecar.until("gpu_share_ready", 1)
    code, seconds = sidecar.stop()
    assert (code, seconds < BUSY) == (0, True)


def test_it_weighs_less_than_thirty_mebibytes(sidecar: Sidecar) -> None:
    assert sidecar.get()[0] == 200
    assert 0 < sidecar.metric("process_resident_memory_bytes") < RSS_LIMIT_KIB * 1024
    assert sidecar.rss_kib() < RSS_LIMIT_KIB


def test_silent_and_slow_clients_hold_up_nobody(sidecar: Sidecar) -> None:
    silent = [socket.create_connection(("127.0.0.1", sidecar.port)) for _ in range(MAX_CONNECTIONS + 30)]
    try:
        assert sidecar.get()[0] == 200
    finally:
        for client in silent:
            client.close()


def test_other_pages_are_404(sidecar: Sidecar) -> None:
    assert sidecar.get("/else")[0] == 404


def test_a_port_that_is_taken_costs_the_metrics_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Sidecar(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        assert running.first.startswith("/metrics is not available: cannot listen")
        write(tmp_path, {"ready": True})
        assert running.line() == "the share of the GPU is ready"
        assert running.stop()[0] == 0
        running.out.close()


@pytest.mark.parametrize("listen", ["", "x", "127.0.0.1:", "127.0.0.1:65536", ":80", "127.0.0.1:٣"])
def test_a_wrong_address_is_wrong_use(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--listen", listen]) == 2
    assert "--listen" in capsys.readouterr().err
