"""Which processes are MPS daemons: those that serve, and not the servers that they fork."""

import pytest

from tests.rehearsal import processes

NVIDIA = (b"/usr/bin/nvidia-cuda-mps-control", b"-f")
SIMULATED = (b"python", b"-m", b"tests.fakes.gpu.mps_daemon", b"-f", b"-multiuser-server")


@pytest.mark.parametrize(
    ("words", "found"),
    [(NVIDIA, True), (SIMULATED, True), (NVIDIA[:1], False), ((b"grep", b"-f"), False), ((b"",), False)],
)
def test_a_daemon_runs_in_the_foreground(words: tuple[bytes, ...], found: bool) -> None:  # noqa: FBT001 - one row
    assert processes.is_daemon(words) is found


def test_a_fork_of_a_daemon_is_its_server_also_when_the_daemon_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = {10: 10, 11: 10, 20: 20, 31: 30}
    monkeypatch.setattr(processes, "pids", lambda _: iter((*sessions, 40)))

    def read(pid: int, name: str) -> bytes:
        found = {
            "cmdline": b"\0".join(NVIDIA),
            "environ": b"A=b\0CUDA_MPS_PIPE_DIRECTORY=/pipe/%d" % (pid // 10),
            "stat": b"%d (a) b) S 1 1 %d 0" % (pid, sessions.get(pid, 0)),
        }
        return found[name] if pid in sessions else b""

    monkeypatch.setattr(processes, "read", read)
    assert processes.serving("any") == {"/pipe/1": [10], "/pipe/2": [20]}


def test_a_process_that_is_gone_leads_nothing() -> None:
    assert not processes.leads(2**30)
