"""One enforcer per state directory."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from enforcer.runtime import lock
from gpushare.errors import ConfigError
from gpushare.reasons import Reason

HOLDER = """
import sys, pathlib
from enforcer.runtime import lock
with lock.acquire_lock(pathlib.Path(sys.argv[1]), wait="wait" in sys.argv):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(state: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the directory, or waits for it."""
    command = [sys.executable, "-c", HOLDER, str(state), *how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_one_process_holds_a_state_directory(tmp_path: Path) -> None:
    with holder(tmp_path / "state") as other:
        assert line(other) == "held\n"
        with (
            pytest.raises(ConfigError, match=rf"another enforcer \(pid {other.pid}\)") as refused,
            lock.acquire_lock(tmp_path / "state"),
        ):
            pytest.fail("held twice")
        assert refused.value.reason is Reason.CONFLICT
    with lock.acquire_lock(tmp_path / "state"):
        assert (tmp_path / "state" / lock.NAME).read_text() == f"{os.getpid()}\n"


def test_who_waits_has_it_as_soon_as_the_other_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path / "state") as first:
        assert line(first) == "held\n"
        with holder(tmp_path / "state", "wait") as second:
            assert f"another enforcer (pid {first.pid})" in line(second)
            first.kill()
            assert line(second) == "held\n"


@pytest.mark.parametrize("whole", [False, True])
def test_a_lock_taken_away_is_seen_to_be_and_nobody_else_has_it_before_its_holder_ends(
    tmp_path: Path, *, whole: bool
) -> None:
    state = tmp_path / "state"
    with ExitStack() as stack:
        with lock.acquire_lock(state) as first:
            second = stack.enter_context(holder(state, "wait"))
            assert f"another enforcer (pid {os.getpid()})" in line(second)
            first.stop_when_lost(stopped := threading.Event())
            assert (first.lost(), stopped.is_set()) == (None, False)
            state.rename(tmp_path / "aside") if whole else (state / lock.NAME).unlink()
            assert "removed or replaced" in (first.lost() or "")
            first.stop_when_lost(stopped)
            assert stopped.is_set()
            third = stack.enter_context(holder(state, "wait"))
            assert line(third) == "held\n" if whole else "another enforcer (pid unknown)" in line(third)
        third.kill()  # else either of the two may be first
        assert "held\n" in iter(partial(line, second), "")
        assert (state / lock.NAME).read_text() == f"{second.pid}\n"


def test_a_disk_that_fails_takes_no_lock_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with lock.acquire_lock(tmp_path / "state") as hold:
        monkeypatch.setattr(Path, "lstat", fails)
        hold.stop_when_lost(stopped := threading.Event())
        assert (hold.lost(), stopped.is_set()) == (None, False)


def test_a_state_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match=r"--state .* cannot be opened"), lock.acquire_lock(tmp_path / "state"):
        pytest.fail("held a file")
