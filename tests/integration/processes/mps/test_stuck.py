"""Daemons that do not answer: stopped, with a full log pipe, or hung."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.manager import MpsManager
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.state import MpsFault, Sim
from tests.integration.processes.mps.conftest import Make, daemons_of, until

pytestmark = pytest.mark.node


def running(make: Make, binary: Path, incidents: IncidentLog) -> tuple[MpsDaemon, int]:
    daemon = make(binary, incidents=incidents)
    daemon.start()
    (pid,) = daemon.pids()
    return daemon, pid


def test_a_stopped_daemon_is_set_going_again(binary: Path, make: Make) -> None:
    incidents = IncidentLog()
    daemon, pid = running(make, binary, incidents)
    os.kill(pid, signal.SIGSTOP)
    assert daemon.client.percentage(Deadline(5)) == 100.0
    assert daemon.pids() == {pid}
    assert incidents.counts == {(daemon.gpu, Reason.MPS_HUNG): 1}


def test_a_stopped_server_is_set_going_again_at_the_next_question_that_hangs(
    stand_in: Path, make: Make, sim: Sim
) -> None:
    daemon = make(stand_in, server_uid=0)
    daemon.start()
    (server,) = daemon.servers()
    os.kill(server, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{server}/stat").read_text().split()[2] == "T")
    sim.fail_mps(MpsFault(command="get_server_status", hang_ms=1000))
    daemon.health()
    assert Path(f"/proc/{server}/stat").read_text().split()[2] != "T"
    sim.fail_mps()


def fill(pipe: Path) -> None:
    """Write nonsense until nobody takes it any more, as any user can."""
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    last = time.monotonic()
    while time.monotonic() - last < 1.0:
        try:
            os.write(descriptor, b"\xff" * 512)
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.02)
        except BrokenPipeError:
            break
    os.close(descriptor)


def test_a_daemon_whose_log_pipe_is_full_answers_when_it_was_emptied(real: Path, make: Make) -> None:
    """Nonsense in the pipe ends the thread that reads it; then the daemon waits for room (observed on 535.309.01)."""
    incidents = IncidentLog()
    daemon, pid = running(make, real, incidents)
    fill(daemon.pipe / "log")
    assert daemon.client.percentage(Deadline(5)) == 100.0
    assert daemon.pids() == {pid}
    assert incidents.counts[daemon.gpu, Reason.MPS_HUNG] > 0


def test_a_log_pipe_that_nobody_reads_is_emptied_before_it_is_full(real: Path, make: Make) -> None:
    incidents = IncidentLog()
    daemon, _ = running(make, real, incidents)
    fill(daemon.pipe / "log")
    daemon.health()
    assert incidents.counts[daemon.gpu, Reason.MPS_HUNG] == 1
    daemon.health()
    assert incidents.counts[daemon.gpu, Reason.MPS_HUNG] == 1


def test_a_link_in_the_place_of_the_log_pipe_is_not_followed(stand_in: Path, make: Make, root: Path) -> None:
    daemon, _ = running(make, stand_in, IncidentLog())
    os.mkfifo(root / "elsewhere")
    (daemon.pipe / "log").unlink(missing_ok=True)
    (daemon.pipe / "log").symlink_to(root / "elsewhere")
    holder = os.open(root / "elsewhere", os.O_RDWR)
    os.write(holder, b"x" * 60_000)
    assert not daemon._watched.drain_log_pipe(blocked=False)
    os.close(holder)


def test_a_daemon_that_hangs_with_nobody_in_its_way_is_replaced_at_the_second_look(
    stand_in: Path, make: Make, sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.mps.control_program.Deadline.__init__.__defaults__", (3.0,))
    monkeypatch.setattr("enforcer.mps.watchdog.STILL_SECONDS", 1.0)
    monkeypatch.setattr("enforcer.mps.daemon.HUNG_SECONDS", 5.0)
    incidents = IncidentLog()
    daemon, pid = running(make, stand_in, incidents)
    sim.fail_mps(MpsFault(command="get_default_device_pinned_mem_limit", hang_ms=60_000))
    with pytest.raises(MpsError) as caught:
        daemon.health()
    assert (caught.value.reason, Path(f"/proc/{pid}").exists()) == (Reason.MPS_CONTROL_BLOCKED, True)
    with pytest.raises(MpsError, match="so the enforcer ended it") as caught:
        daemon.health()
    assert caught.value.reason is Reason.MPS_UNREACHABLE
    sim.fail_mps()
    daemon.start()
    assert daemon.pids() != {pid}
    assert daemon.control.hung_for() == 0


def test_one_that_is_lowered_up_by_somebody_is_not_taken_to_hang(
    binary: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.mps.watchdog.PATIENCE", 60.0)
    monkeypatch.setattr("enforcer.mps.watchdog.STILL_SECONDS", 0.5)
    daemon, pid = running(make, binary, IncidentLog())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(daemon.pipe / "control"))
        with pytest.raises(MpsError) as caught:
            daemon.client.percentage(Deadline(2.5))
        assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
        assert daemon.control.hung_for() == 0
    assert daemon.pids() == {pid}


def test_beside_a_daemon_that_not_even_sigkill_ends_none_is_started(
    stand_in: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits in the driver; the signals are kept from this one. Its door is as shut as theirs."""
    daemon, pid = running(make, stand_in, IncidentLog())
    (daemon.pipe / "control").unlink()
    manager = MpsManager({daemon.gpu: daemon})
    with monkeypatch.context() as hindered:
        hindered.setattr("enforcer.mps.daemon.STOP_SECONDS", 0.1)
        hindered.setattr(PidHandle, "send", lambda *_: True)
        for _ in range(2):
            said = manager.start()[daemon.gpu].message
            assert f"(process {pid}) still runs after SIGKILL" in said
            assert (daemons_of(daemon.directory), daemon.noted) == ([pid], True)
        with pytest.raises(MpsError, match="still runs after SIGKILL"):
            daemon.stop()
        assert daemon.noted
    assert manager.start() == {}
    (after,) = daemon.pids()
    assert (after != pid, daemons_of(daemon.directory)) == (True, [after])
