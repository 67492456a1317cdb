"""Pids that come round again, at every door the killer goes through.

Run in a pid namespace of its own, where ``ns_last_pid`` says which pid the next process gets. Each trial counts the
killer's steps through its doors (NVML, /proc, pidfds, the audit log, MPS); at one of them the victim ends, is reaped,
and an innocent gets its pid. Only NVML and the MPS daemon are scripted, and both know nothing but the truth. The
innocent is an MPS client as soon as one can be: not in the very step in which it is born, for the daemon is told by
number, and no look at a pidfd reaches into the daemon.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

import enforcer.mps.daemon
from enforcer.attribution.cgroup import Identity
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor, PidHandle, is_alive
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog
from enforcer.audit.record import ChainHead, Kind
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.types import Quota
from gpushare.errors import MpsError, RecordError
from gpushare.reasons import Reason
from tests.support.quotas import in_force
from tests.support.wiring import Attribution, Messages

GPU: Final = "GPU-00000000-0000-0000-0000-000000000001"
CARD: Final = Gpu(
    uuid=GPU, index=0, minor=0, model="scripted", memory_mib=16384, reserved_mib=0, compute_capability=(9, 0),
    pci_bus_id="0", driver_version="0", cuda_version=(13, 0),
)  # fmt: skip
SERVER, HELD = 4000, 9000
PER_CONTROL: Final = 10
"""A control with bare pids for every so many trials."""

NURSERY: Final = """
import os, signal, struct, sys
last = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
while order := os.read(0, 5):
    what, pid = struct.unpack("<ci", order)
    if what in b"fi":  # a process with that pid (0: any); f: one that SIGTERM does not end
        if pid:
            os.pwrite(last, str(pid - 1).encode(), 0)
        child = os.fork()
        if child == 0:
            if what == b"f":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(1, struct.pack("<i", os.getpid()))
            while True:
                signal.pause()
    elif what == b"k":
        os.kill(pid, signal.SIGKILL)
        os.write(1, struct.pack("<i", os.waitpid(pid, 0)[1]))
    else:
        os.write(1, struct.pack("<i", os.waitpid(pid, os.WNOHANG)[0]))
"""


class Nursery:
    """A process in one cgroup whose children are victims and innocents."""

    def __init__(self, cgroup: str) -> None:
        enter = f'echo $$ > "{cgroup}/cgroup.procs"; exec "$@"' if cgroup else 'exec "$@"'
        self._program = subprocess.Popen(
            ["sh", "-c", enter, "sh", sys.executable, "-I", "-S", "-c", NURSERY], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def _order(self, what: bytes, pid: int) -> int:
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(struct.pack("<ci", what, pid))
        return int(struct.unpack("<i", self._program.stdout.read(4))[0])

    def stubborn(self) -> int:
        return self._order(b"f", 0)

    def innocent(self, pid: int) -> int:
        """A process with exactly this pid, whom any signal ends."""
        got = self._order(b"i", pid)
        assert got == pid, "this kernel did not give the pid again"
        return got

    def end(self, pid: int) -> None:
        """End one and reap it; its pid is free then."""
        self._order(b"k", pid)

    def died(self, pid: int) -> bool:
        """Whether one has ended without our doing; it is reaped then."""
        return self._order(b"w", pid) == pid

    def close(self) -> None:
        assert self._program.stdin
        self._program.stdin.close()
        self._program.wait(10)


class Trial:
    """One victim, and the step of the killer at which an innocent gets its pid."""

    def __init__(self, at: int, home: Nursery, other: Nursery) -> None:
        self._at, self._home, self._other = at, home, other
        self.pid = home.stubborn()
        self.steps = 0
        self.swapped = False
        self.where = ""
        self.told = 0
        """Times the MPS daemon was told to end what was the innocent by then."""

    @property
    def connected(self) -> bool:
        """Whether the innocent is an MPS client too: it was born before the killer's last step."""
        return self.swapped and self.steps > self._at + 1

    def step(self, door: str) -> None:
        if self.steps == self._at:
            self.where = door
            self.swap()
        self.steps += 1

    def swap(self) -> None:
        if not self.swapped:
            self._home.end(self.pid)
            self._other.innocent(self.pid)
            self.swapped = True

    def hit(self) -> bool:
        """Whether the innocent was hit; what is left of this trial is cleared away."""
        self.swap()
        died = self._other.died(self.pid)
        if not died:
            self._other.end(self.pid)
        return died or self.told > 0


class World(GpuReader):
    """The killer with a counter at each of its doors."""

    def __init__(self, folder: Path, quota: Quota) -> None:
        self.quota = quota
        self.trial: Trial | None = None
        self._scribe = AuditWriter(AuditLog(folder / "audit"), "gpu-7")
        self._attributor = CgroupAttributor()
        daemon = MpsDaemon(GPU, folder / "mps", limit_mib=1024, environment={})
        daemon.control.ask = self.ask  # type: ignore[method-assign]
        self._mps = MpsManager({GPU: daemon})
        self._mps._absent.clear()
        self._watch = UsageSampler(self, Attribution(self.identify))
        self._watch.sample()

    def step(self, door: str) -> None:
        if self.trial is not None:
            self.trial.step(door)

    # NVML and the MPS daemon: the victim holds memory, and is a client, as long as it lives.
    def gpus(self) -> tuple[Gpu, ...]:
        return (CARD,)

    def sample(self, uuid: str) -> GpuSample:
        self.step("NVML asked")
        trial = self.trial
        holds = trial is not None and not trial.swapped and is_alive(trial.pid)
        found = (GpuProcess(trial.pid, HELD),) if trial is not None and holds else ()
        self.step("NVML answered")
        return GpuSample(uuid=uuid, total_mib=16384, used_mib=HELD if holds else 0, processes=found)

    def close(self) -> None:
        self._scribe.close()

    def ask(self, command: str, deadline: Deadline | None = None, moot: Callable[[], bool] | None = None) -> str:
        assert self.trial is not None
        what, *words = command.split()
        self.step(f"{what} asked")
        if moot is not None and moot():
            raise MpsError("there was no point in it any more", Reason.ALREADY_EXITED)
        answer = {"get_server_list": f"{SERVER}\n", "get_client_list": f"{self.trial.pid}\n"}.get(what, "0\n")
        if what == "terminate_client" and words[-1] == str(self.trial.pid):
            self.trial.told += self.trial.connected
            answer = "1\n" if self.trial.swapped and not self.trial.connected else answer
        self.step(f"{what} answered")
        return answer

    def identify(self, pid: int) -> Identity | None:
        self.step("/proc asked")
        found = self._attributor.identify(pid)
        self.step("/proc answered")
        return found

    def write_intent(self, fields: Mapping[str, Any]) -> ChainHead:
        self.step("INTENT begun")
        head = self._scribe.write_intent(fields)
        self.step("INTENT durable")
        return head

    def complete(self, kind: Kind, fields: Mapping[str, Any]) -> ChainHead:
        self.step(f"{kind} begun")
        head = self._scribe.complete(kind, fields)
        self.step(f"{kind} durable")
        return head

    def complete_later(self, kind: Kind, fields: Mapping[str, Any]) -> None:
        self._scribe.complete_later(kind, fields)

    def append_async(self, kind: Kind, fields: Mapping[str, Any], failed: Callable[[RecordError], object]) -> None:
        self._scribe.append_async(kind, fields, failed)

    @property
    def head(self) -> ChainHead:
        return self._scribe.head

    def run(self, trial: Trial, handles: type[PidHandle]) -> Reason:
        """One kill, as the loop would have it carried out."""
        self.trial = trial
        holders = self._watch.usages_of(self.quota)
        parts = KillDependencies(
            usage=self._watch, quotas=in_force(), audit_log=self,  # type: ignore[arg-type] # stand-in
            processes=HostProcesses(Attribution(self.identify), handles), killer=ProcessKiller(self._mps),
            events=Messages(),
        )  # fmt: skip
        verdict = KillDecision(decision=Decision.KILL, quota=self.quota, used_mib=HELD, targets=holders or ())
        reason = KillExecutor("gpu-7", parts, KillTimeouts(term=0, kill=5.0)).execute(verdict).reason
        self.trial = None
        return reason


def door(world: World, base: type[PidHandle]) -> type[PidHandle]:
    """Handles that count the killer's steps."""

    class Door(base):  # type: ignore[misc, valid-type]
        @classmethod
        def open(cls, pid: int) -> PidHandle | None:
            world.step("pidfd_open begun")
            handle: PidHandle | None = super().open(pid)
            world.step("pidfd_open done")
            return handle

        def ended(self, seconds: float = 0.0) -> bool:
            world.step("poll begun")
            found: bool = super().ended(seconds)
            world.step("poll done")
            return found

        def send(self, number: signal.Signals) -> bool:
            world.step(f"{number.name} begun")
            sent: bool = super().send(number)
            world.step(f"{number.name} done")
            return sent

    return Door


class Bare(PidHandle):
    """What a killer without pidfds has: a number."""

    def ended(self, seconds: float = 0.0) -> bool:
        until = time.monotonic() + seconds
        while is_alive(self.pid):
            if time.monotonic() >= until:
                return False
            time.sleep(0.0005)
        return True

    def send(self, number: signal.Signals) -> bool:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


class Trials:
    """Many of them, at each step in turn and with innocents in the same container and in another one."""

    def __init__(self, world: World, home: Nursery, away: Nursery) -> None:
        self._world, self._home, self._away = world, home, away
        self.tried: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def steps(self, base: type[PidHandle]) -> int:
        """How many steps a kill has that nothing comes in between of."""
        trial, reason = self._one(-1, self._home, base)
        assert reason is Reason.KILLED, reason
        trial.hit()
        return trial.steps

    def run(self, count: int, base: type[PidHandle]) -> None:
        steps = self.steps(base)
        for number in range(count):
            trial, _ = self._one(number // 2 % steps, (self._home, self._away)[number % 2], base)
            self.tried[trial.where] += 1
            self.hits[trial.where] += trial.hit()

    def _one(self, at: int, other: Nursery, base: type[PidHandle]) -> tuple[Trial, Reason]:
        handles = door(self._world, base)
        vars(enforcer.mps.daemon)["PidHandle"] = handles
        trial = Trial(at, self._home, other)
        return trial, self._world.run(trial, handles)


def main(count: int, home: str, away: str, quota: Mapping[str, Any]) -> None:
    """Print what came of so many trials, and of the control with bare pids, as one JSON object."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    folder = Path(tempfile.mkdtemp(prefix="reuse"))
    nurseries = [Nursery(home), Nursery(away)]
    try:
        world = World(folder, Quota(**quota))
        found = {}
        for name, base, trials in (("pidfd", PidHandle, count), ("bare", Bare, max(count // PER_CONTROL, 50))):
            made = Trials(world, *nurseries)
            made.run(trials, base)
            found[name] = {"tried": sum(made.tried.values()), "hits": +made.hits, "doors": made.tried}
        print(json.dumps(found))
    finally:
        for nursery in nurseries:
            nursery.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
