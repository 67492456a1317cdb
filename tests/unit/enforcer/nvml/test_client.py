"""NVML asked from another process: what the enforcer does when that process hangs, ends, talks nonsense or stays."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.nvml import wire
from enforcer.nvml.client import MOST_LEFT, NvmlClient, NvmlTimeouts
from enforcer.nvml.types import ComputeMode, Gpu, GpuProcess, GpuSample
from enforcer.nvml.worker_handle import WorkerProcess, command
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.patience import holds_within

PROGRAM = """
import json, os, pathlib, socket, sys, time
door, script = socket.socket(fileno=0), pathlib.Path(sys.argv[1])
def told():
    try:
        return script.read_text()
    except FileNotFoundError:
        return ""
for line in door.makefile("rb"):
    asked = json.loads(line)
    while (act := told()) == "hang":
        time.sleep(0.005)
    if act.startswith("signal"):
        os.kill(os.getpid(), int(act.split()[1]))
    said = act.encode() if act else json.dumps({"n": asked["n"], "value": ["GPU-x", 100, os.getpid(), [], []]}).encode()
    door.sendall(said + b"\\n")
"""
WAITS = NvmlTimeouts(deadline=0.3, patience=0.6, restart=0.2, most_restart=0.4)
LONG = NvmlTimeouts(deadline=20.0, patience=40.0)


@pytest.fixture(name="script")
def _script(tmp_path: Path) -> Path:
    return tmp_path / "script"


@pytest.fixture(name="reader")
def _reader(script: Path) -> Iterator[Callable[[NvmlTimeouts], NvmlClient]]:
    made: list[NvmlClient] = []

    def make(waits: NvmlTimeouts) -> NvmlClient:
        made.append(NvmlClient([sys.executable, "-c", PROGRAM, str(script)], waits))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def reason(ask: Callable[[], object]) -> Reason:
    with pytest.raises(NvmlError) as caught:
        ask()
    return caught.value.reason


def pid_of(reader: NvmlClient) -> int:
    """Of the process that answers: its answers carry it."""
    return reader.sample("GPU-x").used_mib


def until_answered(reader: NvmlClient, seconds: float = 20) -> int:
    end = time.monotonic() + seconds
    while True:
        try:
            return pid_of(reader)
        except NvmlError:
            assert time.monotonic() < end
            time.sleep(0.01)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_questions_are_answered_by_one_process_of_its_own(reader: Any) -> None:
    asks = reader(LONG)
    assert pid_of(asks) == pid_of(asks) != os.getpid()


def test_a_hang_costs_a_caller_the_deadline_once_and_the_answer_after_it_is_heard(reader: Any, script: Path) -> None:
    asks = reader(NvmlTimeouts(deadline=1.0, patience=400.0))
    until_answered(asks)
    script.write_text("hang")
    # Did each wait for its deadline, this test would run into its own.
    assert {reason(lambda: pid_of(asks)) for _ in range(200)} == {Reason.NVML_HUNG}
    script.unlink()
    assert until_answered(asks) == asks._kept.pid


def test_an_answer_that_comes_late_is_never_taken_for_that_of_another_question(reader: Any, script: Path) -> None:
    asks = reader(NvmlTimeouts(deadline=0.5, patience=40.0))
    until_answered(asks)
    script.write_text("hang")
    assert reason(asks.critical_errors) is Reason.NVML_HUNG
    script.unlink()
    for _ in range(3):
        assert until_answered(asks) == asks._kept.pid


def test_one_that_stays_silent_is_killed_and_others_are_tried_meanwhile(reader: Any, script: Path) -> None:
    asks = reader(replace(WAITS, trial=0.1))
    pids = [until_answered(asks)]
    script.write_text("hang")
    while not gone(pids[0]):
        assert reason(lambda: pid_of(asks)) is Reason.NVML_HUNG
        pids += [asks._kept.pid] * (asks._kept is not None and asks._kept.pid not in pids)
    assert len(pids) > 2
    script.unlink()
    assert until_answered(asks) not in pids[:-1]
    assert holds_within(lambda: asks.problem is None and all(gone(pid) for pid in pids[:-1]), 20)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_process_that_ends_is_named_and_replaced_at_once(reader: Any, script: Path, number: int) -> None:
    asks = reader(LONG)
    old = pid_of(asks)
    script.write_text(f"signal {number}")
    with pytest.raises(NvmlError, match=f"signal {number}\\b") as caught:
        pid_of(asks)
    assert caught.value.reason is Reason.NVML_CRASHED
    script.unlink()
    assert pid_of(asks) != old


def test_one_that_ends_again_and_again_is_started_less_and_less_often(reader: Any, script: Path) -> None:
    asks = reader(NvmlTimeouts(deadline=20.0, patience=40.0, restart=30.0, most_restart=40.0))
    script.write_text("signal 11")
    started = []
    for _ in range(10):
        assert reason(lambda: pid_of(asks)) is Reason.NVML_CRASHED
        started.append(len(asks._crashes))
    assert started == [1, 2, 3, 4, 5, 6, 7, 7, 7, 7]


@pytest.mark.parametrize(
    "said", ["[]", "{", '{"n": 1}', '{"n": 1, "value": 5}', '{"n": 1, "error": "x", "reason": "Whim"}', "\0" * 9]
)
def test_nonsense_is_no_answer_and_ends_the_process(reader: Any, script: Path, said: str) -> None:
    script.write_text(said)
    asks = reader(LONG)
    assert reason(lambda: pid_of(asks)) is Reason.NVML_CRASHED
    script.unlink()
    assert pid_of(asks) > 0


def test_an_answer_to_no_question_of_now_is_passed_over(reader: Any, script: Path) -> None:
    script.write_text('{"n": 0, "value": ["GPU-x", 1, 1, [], []]}\n{"n": 1, "value": ["GPU-x", 7, 7, [], []]}')
    assert reader(LONG).sample("GPU-x").total_mib == 7


def test_an_error_of_nvml_keeps_its_reason_and_its_process(reader: Any, script: Path) -> None:
    asks = reader(LONG)
    pid = pid_of(asks)
    script.write_text('{"n": 2, "error": "fell off the bus", "reason": "GpuLost"}')
    with pytest.raises(NvmlError, match="fell off the bus") as caught:
        asks.gpus()
    assert caught.value.reason is Reason.GPU_LOST
    script.unlink()
    assert pid_of(asks) == pid


class Unkillable(WorkerProcess):
    """The kernel holds it in a driver's call: SIGKILL waits, until the driver lets go."""

    held = True

    def kill(self, seconds: float) -> bool:
        return super().kill(seconds) if not self.held else self.exited

    @property
    def exited(self) -> bool:
        return not self.held and super().exited


def test_what_cannot_be_killed_is_left_and_named_and_only_so_many_times(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Unkillable] = []

    def start(words: Sequence[str]) -> Unkillable:
        made.append(Unkillable(words))
        return made[-1]

    script.write_text("hang")
    waits = NvmlTimeouts(deadline=0.02, patience=0.02)
    monkeypatch.setattr("enforcer.nvml.client.WorkerProcess", start)
    asks = NvmlClient([sys.executable, "-c", PROGRAM, str(script)], waits)
    end = time.monotonic() + 20
    while len(asks._left) < MOST_LEFT:
        assert reason(lambda: pid_of(asks)) is Reason.NVML_HUNG
        assert time.monotonic() < end
    for _ in range(20):
        assert reason(lambda: pid_of(asks)) is Reason.NVML_HUNG
    assert len(made) == MOST_LEFT
    assert asks.problem is not None
    assert all(str(each.pid) in asks.problem for each in made)
    monkeypatch.setattr(Unkillable, "held", False)
    script.unlink()
    for each in made:
        each.kill(20)
    assert asks.problem is None
    asks._waits = LONG
    assert until_answered(asks) > 0
    asks.close()


def test_nobody_waits_longer_than_the_deadline_for_the_question_of_another(reader: Any, script: Path) -> None:
    asks = reader(NvmlTimeouts(deadline=1.0, patience=40.0))
    until_answered(asks)
    script.write_text("hang")
    said: list[Reason] = []
    others = [threading.Thread(target=lambda: said.append(reason(lambda: pid_of(asks)))) for _ in range(4)]
    for each in others:
        each.start()
    for each in others:
        each.join(20)
    assert said == [Reason.NVML_HUNG] * 4


def test_a_program_that_is_not_there_is_an_error_and_no_crash() -> None:
    with pytest.raises(NvmlError, match="cannot start the NVML worker"):
        NvmlClient(["/nowhere/python"]).gpus()


def test_closing_ends_the_process_and_the_next_question_starts_another(reader: Any) -> None:
    asks = reader(LONG)
    old = pid_of(asks)
    asks.close()
    asks.close()
    assert holds_within(lambda: asks.problem is None and gone(old), 20)
    assert pid_of(asks) != old


def test_once_stopped_no_later_question_starts_another_process(reader: Any) -> None:
    asks = reader(LONG)
    old = pid_of(asks)
    asks.stop()
    assert holds_within(lambda: asks.problem is None and gone(old), 20)
    assert reason(lambda: pid_of(asks)) is Reason.NVML_UNAVAILABLE
    assert asks._kept is None


GPU = Gpu(
    uuid="GPU-x", index=0, minor=1, model="é H100", memory_mib=5, reserved_mib=1, compute_capability=(9, 0),
    pci_bus_id="0", driver_version="1", cuda_version=(12, 4), parent="GPU-y", profile="1g.10gb",
)  # fmt: skip
SAMPLE = GpuSample(uuid="GPU-x", total_mib=5, used_mib=4, processes=(GpuProcess(1, 2), GpuProcess(3, 0)), clients=(3,))
VALUES: dict[str, list[Any]] = {
    "gpus": [(), (GPU, GPU)],
    "sample": [SAMPLE],
    "compute_mode": list(ComputeMode),
    "set_compute_mode": [None],
    "limits_cgroups": [True, False],
    "cgroup_limit_mib": [None, 0, 7],
    "set_cgroup_limit": [None],
    "ailment": [None, Reason.ECC_UNCORRECTABLE],
    "critical_errors": [[], [("GPU-x", 79)]],
    "utilization": [None, (), ((7, 50), (9, 0))],
}


def test_what_is_reported_arrives_as_it_was_meant() -> None:
    assert VALUES.keys() == wire.QUESTIONS.keys()
    for what, values in VALUES.items():
        for value in values:
            line = wire.encode_result(4, value)
            assert line.index(b"\n") == len(line) - 1
            number, found = wire.request_id(line[:-1])
            assert (number, wire.decode_value(what, found)) == (4, value)
    assert wire.decode_request(wire.encode_request(3, "sample", ("GPU-\n", 4))) == (3, "sample", ("GPU-\n", 4))


def test_the_real_process_starts_says_what_it_lacks_and_ends_with_the_enforcer(tmp_path: Path) -> None:
    asks = NvmlClient(command(tmp_path), LONG)
    with pytest.raises(NvmlError, match="no libnvidia-ml"):
        asks.gpus()
    kept = asks._kept
    assert kept is not None
    kept._socket.shutdown(2)  # as when the enforcer is killed
    assert kept._process.wait(20) == 0
    asks.close()


def test_paused_it_has_no_process_and_starts_none_until_it_is_resumed(reader: Callable[..., NvmlClient]) -> None:
    asks = reader(LONG)
    pid = pid_of(asks)
    asks.pause()
    assert holds_within(lambda: not Path(f"/proc/{pid}").exists(), 5)
    assert reason(asks.gpus) is Reason.DRIVER_UPGRADE
    assert asks._kept is None
    assert asks.resume()
    assert pid_of(asks) != pid
    assert not asks.resume(), "it was not paused"
