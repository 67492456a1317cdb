"""The logs of the real control daemon, seen through the enforcer's own log; and cut while it writes."""

import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from enforcer.mps.launcher import folder_of
from enforcer.mps.log_tailer import LogTail
from tests.integration.processes.mps.conftest import Make, until
from tests.support.wiring import daemons_on

pytestmark = pytest.mark.node


def told(follower: LogTail) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        follower.poll()
    return list(logs)  # type: ignore[arg-type]


def test_what_the_real_daemon_writes_is_notified_and_its_file_kept_small(
    root: Path, real: Path, make: Make, uuids: list[str]
) -> None:
    gpu, limit = uuids[0], 8 * 1024
    (root / "mps").mkdir()
    (root / "0").symlink_to(root / "mps" / folder_of(gpu))  # the fixture's name for it
    (root / "mps" / folder_of(gpu)).mkdir()
    follower = LogTail(root, daemons_on([gpu]), limit)
    daemon = make(real)
    daemon.start()
    file = root / "mps" / folder_of(gpu) / "log" / "control.log"
    until(lambda: "set_default_device_pinned_mem_limit" in file.read_text())
    said = told(follower)
    assert {each["log_level"] for each in said} >= {"info", "debug"}
    assert [each for each in said if each["log_level"] == "warning"] == []
    for number in range(60):
        daemon.control.ask("get_server_list")
        if number % 10 == 9:
            told(follower)
            assert file.stat().st_blocks * 512 <= limit
    daemon.control.ask("set_default_active_thread_percentage 37")
    until(lambda: "percentage 37" in file.read_text())
    (line,) = [each for each in told(follower) if each["log_level"] == "info"]
    assert line["line"] == "Cmd:set_default_active_thread_percentage 37"
    assert line["by"].startswith("Control ")
    assert daemon.answers()


def test_a_server_that_fails_is_a_warning(root: Path, real: Path, make: Make, uuids: list[str]) -> None:
    """Without a GPU the real one's server always does."""
    gpu = uuids[0]
    (root / "mps" / folder_of(gpu)).mkdir(parents=True)
    (root / "0").symlink_to(root / "mps" / folder_of(gpu))
    follower = LogTail(root, daemons_on([gpu]))
    daemon = make(real)
    daemon.start()
    asking = threading.Thread(target=lambda: daemon.client.start_server(0))
    asking.start()
    asking.join(15)
    file = daemon.log / "control.log"
    until(lambda: "exited with status" in file.read_text())
    failed = [each for each in told(follower) if each["log_level"] == "warning"]
    assert failed
    assert {each["log_level"] for each in failed} == {"warning"}
    assert all(each["gpu"] == gpu and "exited with status" in each["line"] for each in failed)


def test_a_tenant_that_writes_into_the_log_pipe_silences_the_log_and_nothing_else(
    root: Path, real: Path, make: Make, uuids: list[str]
) -> None:
    """535.309.01 takes what it finds there for a message of its own kind, and swallows what follows."""
    gpu = uuids[0]
    (root / "mps" / folder_of(gpu)).mkdir(parents=True)
    (root / "0").symlink_to(root / "mps" / folder_of(gpu))
    follower = LogTail(root, daemons_on([gpu]))
    daemon = make(real)
    daemon.start()
    daemon.control.ask("get_default_client_priority")
    file = daemon.log / "control.log"
    until(lambda: "Cmd:get_default_client_priority\n" in file.read_text())
    assert told(follower)
    with (daemon.pipe / "log").open("wb", buffering=0) as pipe:
        pipe.write(b"hello from a tenant\nhalf")
    daemon.control.ask("set_default_active_thread_percentage 37")
    assert daemon.control.ask("get_default_active_thread_percentage") == "37.0\n"
    lines = [each["line"] for each in told(follower) if "line" in each]
    assert not any("percentage 37" in line or "hello" in line for line in lines)
