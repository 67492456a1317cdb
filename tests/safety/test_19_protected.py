"""Test 19: whoever is not a process of the container over its quota is never touched, whatever lists and names say."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ContainerProcess
from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.record import GENESIS, ChainHead, Kind
from enforcer.detection.targets import select_targets
from enforcer.detection.types import Decision, KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.kill.report import KillResult
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason
from tests.integration.processes.containers import Kubelet, wait_for
from tests.safety.killing import GPU, Bench
from tests.safety.reuse import CARD
from tests.safety.tenants import program
from tests.support import extent
from tests.support.quotas import in_force
from tests.support.wiring import Attribution, Messages
from tests.unit.enforcer.made import CONTAINER, NEIGHBOUR, POD, quota

OURS = ContainerRef(POD, CONTAINER)
OTHERS = (
    None,
    ContainerRef(POD, NEIGHBOUR),  # the sandbox, or another container of the pod
    ContainerRef(POD.replace("0a", "ff"), CONTAINER),
    ContainerRef(POD.replace("0a", "fe"), NEIGHBOUR),  # the MPS daemons' own pod, a neighbour
)
SPOOFED = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "kubelet", "systemd", "[kworker]", "gpu-share")


@dataclass(eq=False)
class Process:
    """One line of a table."""

    identity: Identity
    mib: int
    fair: bool
    """Whether it may be ended: a process of the container, and nobody who is protected."""
    alive: bool = True
    signals: list[signal.Signals] = field(default_factory=list)


class Handle(PidHandle):
    def __init__(self, process: Process) -> None:
        super().__init__(process.identity.pid, -1)
        self.process = process

    def ended(self, seconds: float = 0.0) -> bool:
        return not self.process.alive

    def ignores(self, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
        return self.pid % 2 == 0

    def duplicate(self) -> "Handle":
        return Handle(self.process)

    def send(self, number: signal.Signals) -> bool:
        if self.process.alive:
            self.process.signals.append(number)
            self.process.alive = self.pid % 3 == 0 and number is signal.SIGTERM
            return True
        return False


class Table(GpuReader):
    """A random machine: the container's processes, everybody else's, and NVML listing them all with huge numbers."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.seen, self.named = chance, list[Process](), list[Process]()
        self.now: dict[int, Process] = {}
        for pid in chance.sample(range(2, 4_000_000), chance.randint(1, 5)):
            self._add(pid, OURS, fair=True)
        for pid in chance.sample(range(2, 4_000_000), chance.randint(1, 8)):
            owner = chance.choice(OTHERS)
            kernel = chance.random() < 0.2
            self._add(pid, OURS if kernel else owner, fair=False, kernel=kernel)
        for pid in chance.sample([os.getpid(), os.getppid(), 1, 0], chance.randint(0, 4)):
            self._add(pid, chance.choice((OURS, *OTHERS)), fair=False)
        self.swaps = chance.random() < 0.5
        """Whether pids change hands while the killer is at it."""

    def _add(self, pid: int, owner: ContainerRef | None, *, fair: bool, kernel: bool = False) -> None:
        identity = Identity(pid=pid, start=self.chance.randint(1, 3), owner=owner, cgroup_inode=7, kernel_thread=kernel)
        self.now[pid] = Process(identity, self.chance.choice((0, 1, 3000, 9000, 80_000)), fair)
        self.seen.append(self.now[pid])

    def _swap(self) -> None:
        """Let a pid of the container's come round to somebody else, who is never fair game."""
        pid, process = self.chance.choice(sorted(self.now.items()))
        if self.swaps and process.fair and self.chance.random() < 0.2:
            process.alive = False
            self._add(pid, self.chance.choice(OTHERS), fair=False)

    def identify(self, pid: int) -> Identity | None:
        self._swap()
        process = self.now.get(pid)
        return process.identity if process is not None and process.alive else None

    def pin(self, pid: int) -> PidHandle | None:
        self._swap()
        process = self.now.get(pid)
        return Handle(process) if process is not None and process.alive else None

    def processes_of(self, container: ContainerRef) -> list[ContainerProcess]:
        found = [each for each in self.now.values() if each.alive and each.identity.owner == container]
        return [ContainerProcess(each.identity, (each.identity.pid, index + 1)) for index, each in enumerate(found)]

    def leads_namespace(self, pid: int) -> bool:
        return pid % 2 == 0

    def terminate(self, pid: int, gpu: str | None, ended: object) -> bool | None:
        self.named.append(self.now[pid])
        return self.chance.choice((True, True, None, False))

    def gpus(self) -> tuple[Gpu, ...]:
        return (CARD,)

    def sample(self, uuid: str) -> GpuSample:
        found = [GpuProcess(pid, each.mib) for pid, each in self.now.items() if each.alive]
        return GpuSample(uuid=GPU, total_mib=10**6, used_mib=sum(each.used_mib for each in found), processes=(*found,))


class Notes:
    """A audit log in memory: durability is another test's matter."""

    head = GENESIS

    def write_intent(self, fields: Mapping[str, Any]) -> ChainHead:
        self.head = replace(self.head, seq=self.head.seq + 1)
        return self.head

    def complete(self, kind: Kind, fields: Mapping[str, Any]) -> ChainHead:
        return self.write_intent(fields)

    def append_async(self, kind: Kind, fields: Mapping[str, Any], failed: object) -> None:
        self.write_intent(fields)


def kill(table: Table) -> tuple[KillResult, Quota, bool]:
    """Have a table's container ended; by the judge's targets, or by a verdict that names everybody."""
    about = quota(on_exceed=table.chance.choice((OnExceed.KILL, OnExceed.KILL_CONTAINER)))
    watch = UsageSampler(table, Attribution(table.identify))
    watch.sample()
    holders = watch.usages_of(about) or ()
    chosen, mad = select_targets(about, holders), table.chance.random() < 0.3
    if mad:
        chosen = tuple(ProcessUsage(each.identity, each.mib) for each in table.now.values())
    verdict = KillDecision(decision=Decision.KILL, quota=about, used_mib=total_mib(holders), targets=chosen)
    parts = KillDependencies(
        usage=watch, quotas=in_force(), processes=table, audit_log=Notes(),  # type: ignore[arg-type] # a stand-in
        killer=ProcessKiller(table), events=Messages(),
    )  # fmt: skip
    return KillExecutor("gpu-7", parts, KillTimeouts(term=0, kill=0)).execute(verdict), about, mad


def test_nobody_but_the_containers_own_is_touched_in_random_tables() -> None:
    count, hits, killed = extent.trials(2_000, 10_000), 0, 0
    for seed in range(count):
        table = Table(Random(seed))
        result, _, _ = kill(table)
        touched = [*table.named, *(each for each in table.seen if each.signals)]
        hits += sum(not each.fair for each in touched)
        killed += result.reason is Reason.KILLED
        assert not [each for each in touched if not each.fair], f"in table {seed}"
    assert killed > count // 10, "the tables are such that somebody is to be ended"
    extent.figure(
        "19", "protected or foreign processes signalled, or named to MPS, in random tables", told(hits, count)
    )


def told(hits: int, count: int) -> str:
    return f"{hits:,} in {count:,}"


@pytest.mark.node
def test_a_tenant_named_like_the_mps_server_is_caught_like_any_other(tmp_path: Path) -> None:
    caught, kubelet = 0, Kubelet()
    for name in SPOOFED:
        with kubelet.container() as container:
            copy = tmp_path / name
            shutil.copy(program(), copy)
            process = subprocess.Popen(
                [copy, "quiet", container.cgroup / "cgroup.procs"], stdout=subprocess.PIPE, text=True
            )
            container.processes.append(process)
            wait_for(lambda process=process, container=container: process.pid in container.pids(), 30)  # type: ignore[misc]
            assert Path(f"/proc/{process.pid}/comm").read_text().strip() == name[:15]
            bench = Bench(tmp_path / f"log{caught}", lambda pid=process.pid: [(pid, 9000)])  # type: ignore[misc]
            assert bench.kill(container.quota(GPU, 4096)).acted
            assert process.wait(30) == -signal.SIGTERM
            bench.close()
            caught += 1
    extent.figure(
        "19", "tenants named like the MPS server and others nobody ends: caught", f"{caught} of {len(SPOOFED)}"
    )


@pytest.mark.node
def test_a_result_over_the_machines_own_processes_ends_none_of_them(tmp_path: Path) -> None:
    attributor = CgroupAttributor()
    with Kubelet().container() as container, subprocess.Popen(["sleep", "60"]) as ours:
        found = [attributor.identify(pid) for pid in (1, 2, os.getpid(), os.getppid(), ours.pid)]
        machines = tuple(ProcessUsage(each, 9000) for each in found if each is not None)
        bench = Bench(tmp_path, lambda: [(each.identity.pid, 9000) for each in machines])
        about = container.quota(GPU, 4096)
        verdict = KillDecision(decision=Decision.KILL, quota=about, used_mib=9000, targets=machines)
        assert len(machines) >= 3
        assert not bench.executor.execute(verdict).acted
        assert (bench.signals(), bench.records(), ours.poll()) == ([], [], None)
        bench.close()
        ours.kill()
