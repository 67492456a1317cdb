"""Test 23: whatever the MPS daemon says, SIGKILL comes after its ``0`` or after the third refusal, and on record."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from enforcer.kill.process_kill import REFUSALS, KillTimeouts
from enforcer.mps import protocol
from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon import BLOCKED_TRIES, MpsDaemon
from enforcer.mps.manager import MpsManager
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.integration.processes.containers import Container, Kubelet
from tests.safety.killing import GPU, Bench
from tests.safety.tenants import forget, started
from tests.support import extent

pytestmark = pytest.mark.node
SERVER = 4000
DEAD, HANGS = "the daemon is dead", "the daemon hangs"
RELEASED = ("0", "0\n", "Terminating client\n0\n", "  0  \n")
REFUSED = (
    "", "\n", "1\n", "46\n", "-0\n", "00\n", "0.0\n", "\u0660\n", "OK\n", "success\n", "Server not found\n",
    "Serveur introuvable\n", "0 clients terminated\n", "0\nerror: the client is still there\n",
    "Failed to terminate client: 0x0\n", DEAD,
)  # fmt: skip
ANSWERS = (*RELEASED, *REFUSED, HANGS)


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of the daemon to ``terminate_client``, on the same clock as the signals."""

    at: int
    pid: int
    released: bool


class Scripted:
    """The real client of MPS on a daemon whose answers are scripted."""

    def __init__(self, folder: Path) -> None:
        daemon = MpsDaemon(GPU, folder, limit_mib=1024, environment={})
        daemon.control.ask = self._ask  # type: ignore[method-assign]
        self.manager = MpsManager({GPU: daemon})
        self.manager._absent.clear()
        self.answer, self.clients = "", set[int]()
        self.said: list[Said] = []

    def _ask(self, command: str, deadline: Deadline | None = None, moot: Callable[[], bool] | None = None) -> str:
        if self.answer == DEAD:
            raise MpsError(protocol.NO_DAEMON)
        what, *words = command.split()
        if what != "terminate_client":
            return f"{SERVER}\n" if what == "get_server_list" else "".join(f"{pid}\n" for pid in self.clients)
        self.said.append(Said(time.monotonic_ns(), int(words[-1]), self.answer in RELEASED))
        if self.answer == HANGS:
            raise MpsError("no answer in time", Reason.MPS_CONTROL_BLOCKED)
        return self.answer


@pytest.fixture(name="bed")
def _bed(tmp_path: Path) -> Iterator["Bed"]:
    folder = Path(tempfile.mkdtemp(prefix="mps"))  # pytest's paths are too long for a daemon's
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        container = stack.enter_context(Kubelet().container())
        yield Bed(stack, tmp_path, folder, container)


class Bed:
    """A container whose processes SIGTERM does not end, one after the other."""

    def __init__(self, stack: ExitStack, folder: Path, short: Path, container: Container) -> None:
        self.mps, self.container, self.held = Scripted(short), container, list[int]()
        self.bench = Bench(
            folder, lambda: [(pid, 9000) for pid in self.held], self.mps.manager, KillTimeouts(term=0.01, kill=30)
        )
        stack.callback(self.bench.close)
        self.quota = container.quota(GPU, 4096)

    def kill(self, answer: str) -> list[int]:
        """End one; returns when the daemon spoke and when each signal went out. Checks all but the order."""
        process, pid = started(self.container, "stubborn")
        self.mps.answer, self.mps.clients, self.held = answer, {pid}, [pid]
        attempts = REFUSALS if answer in REFUSED else 1
        for _ in range(attempts - 1):
            assert self.bench.kill(self.quota).reason is Reason.TERMINATE_FAILED
            assert not [each for each in self.bench.sent if each.pid == pid], "a signal before the override"
        assert self.bench.kill(self.quota).reason is Reason.KILLED
        self.held = []
        forget(self.container, process)
        said = [each for each in self.mps.said if each.pid == pid]
        assert [each.released for each in said] == expected(answer)
        steps = self.bench.last("OUTCOME")["targets"][0]["steps"]
        first = {True: "terminate_client", False: "terminate_client refused"}[answer in RELEASED]
        assert steps == f"{'MpsControlBlocked' if answer == HANGS else first},SIGTERM,SIGKILL"
        sent = [each for each in self.bench.sent if each.pid == pid]
        assert [each.number.name for each in sent] == ["SIGTERM", "SIGKILL"]
        return [*(each.at for each in said), *(each.at for each in sent)]


def expected(answer: str) -> list[bool]:
    """What the daemon says of itself in one kill: released or not, each time it is asked to release."""
    if answer == DEAD:
        return []
    return [False] * BLOCKED_TRIES if answer == HANGS else [False] * REFUSALS if answer in REFUSED else [True]


def test_sigkill_comes_after_the_daemons_0_or_after_the_last_refusal(bed: Bed) -> None:
    count = extent.trials(2 * len(ANSWERS), 1_000)
    for number in range(count):
        moments = bed.kill(ANSWERS[number % len(ANSWERS)])
        assert moments == sorted(moments), "out of order"
    assert bed.bench.whole()
    signals = len(bed.bench.sent)
    assert signals == 2 * count
    text = f"{count:,} in {count:,}, over {len(ANSWERS)} answers"
    extent.figure("23", "kills whose SIGKILL came after `0`, or after the last of its refusals", text)


def test_who_is_no_client_is_not_waited_for(bed: Bed) -> None:
    _, pid = started(bed.container, "stubborn")
    bed.mps.answer, bed.held = "1\n", [pid]
    assert bed.bench.kill(bed.quota).reason is Reason.KILLED
    assert bed.mps.said == []
    assert bed.bench.records("OUTCOME")[0]["targets"][0]["steps"] == "SIGTERM,SIGKILL"
