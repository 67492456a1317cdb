"""``python -m tests.load.bench.limits``: what proving limits costs a node of 8 GPUs and 64 containers.

The processes and their environments are real, and so is NVIDIA's MPS control daemon, one for each GPU; without a GPU it
has no server, so its list of servers is asked for a second time instead of the list of clients. NVML is the simulated
library behind nvidia-ml-py.
"""

import argparse
import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import read_stat
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.build import LIMIT_EVERY
from enforcer.limits.applier import LimitApplier
from enforcer.limits.backend import RequestedBackend
from enforcer.limits.cgroup_paths import CgroupFolders
from enforcer.limits.verifier import LimitVerifier, NodeEvidence
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import Gpu, GpuSample
from enforcer.quota.types import Quota
from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_MEMORY_LIMIT
from tests.fakes.gpu import mps_binary
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import ENV, Machine, MachineGpu, Sim
from tests.support.wiring import Messages, Quotas, fixed_modes, sampler

GPUS, CONTAINERS, MIB, INTERVAL = 8, 64, 1024, 30.0
BUDGET: Final = 1.0
"""Percent of a core."""
COLUMNS = "{:<46} {:>12} {:>14}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench.limits", description=__doc__)
    parser.add_argument("--looks", type=int, default=20, help="looks to take the mean of (default 20)")
    options = parser.parse_args(argv)
    if ENV not in os.environ:
        return _again(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="b")))
        node = Node(folder, stack)
        print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {GPUS} GPUs, {CONTAINERS} containers")
        print(COLUMNS.format("", "ms of CPU", "% of a core"))
        worst = max(
            node.measure(wanted, options.looks) for wanted in (RequestedBackend.MPS_V2, RequestedBackend.DRIVER_CGROUP)
        )
    print(f"budget {BUDGET} %: {'kept' if worst <= BUDGET else 'exceeded'}")
    return int(worst > BUDGET)


def _again(argv: list[str]) -> int:
    """The loader reads LD_LIBRARY_PATH before a program begins."""
    with tempfile.TemporaryDirectory() as name:
        cards = tuple(
            MachineGpu(
                uuid=f"GPU-be000000-0000-4000-8000-{n:012}", name="NVIDIA H200", memory_mib=143771, cc="9.0", minor=n
            )
            for n in range(GPUS)
        )
        sim = Sim.create(Path(name), Machine(driver="615.71.09", nvml="13.615.71.09", cuda=13040, gpus=cards))
        command = [sys.executable, "-m", "tests.load.bench.limits", *argv]
        return subprocess.run(command, env={**os.environ, **sim.environment(need_library())}, check=False).returncode


class Node:
    """Daemons, processes with environments, cgroups."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._reader = NvmlReader()
        stack.callback(self._reader.close)
        self._gpus = self._reader.gpus()
        self._daemons = {gpu.uuid: stack.enter_context(_daemon(gpu, folder)) for gpu in self._gpus}
        self._cgroups = folder / "cgroup"
        self._cgroups.mkdir()
        (self._cgroups / "cgroup.controllers").touch()
        self._holders: dict[str, list[ProcessUsage]] = {gpu.uuid: [] for gpu in self._gpus}
        self._quotas = [self._container(number, stack) for number in range(CONTAINERS)]

    def measure(self, wanted: RequestedBackend, looks: int) -> float:
        """Percent of a core that proving and limiting take together."""
        limiter = LimitApplier(self._reader, CgroupFolders(self._cgroups), wanted, fixed_modes())
        limiter.apply(self._gpus, self._quotas)
        evidence = NodeEvidence(limiter, MpsManager(self._daemons), fixed_modes())
        watch, checkpoint = sampler(self._views), Quotas(lambda: self._quotas)
        prover = LimitVerifier(evidence, watch, checkpoint, Messages(), None, INTERVAL)
        prover.verify_all()
        assert len(prover.proven) == CONTAINERS, prover.proven
        assert {each.state for each in prover.proven.values()} == {"InForce"}, prover.proven
        look, turn = cpu(prover.verify_all, looks), cpu(lambda: limiter.apply(self._gpus, self._quotas), looks)
        shares = look / INTERVAL * 100, turn / LIMIT_EVERY * 100
        print(COLUMNS.format(f"{wanted}: a look every {INTERVAL:.0f} s", f"{look * 1000:.1f}", f"{shares[0]:.3f}"))
        print(
            COLUMNS.format(f"{wanted}: a turn of setting limits every second", f"{turn * 1000:.2f}", f"{shares[1]:.3f}")
        )
        return sum(shares)

    def _container(self, number: int, stack: ExitStack) -> Quota:
        gpu = self._gpus[number % GPUS].uuid
        owner = ContainerRef(f"00000000-0000-4000-8000-{number:012}", f"{number:064x}")
        (self._cgroups / "kubepods" / "burstable" / f"pod{owner.pod_uid}" / owner.container_id).mkdir(parents=True)
        env = {**os.environ, MPS_MEMORY_LIMIT: f"0={MIB}M", CUDA_VISIBLE_DEVICES: gpu}
        process = stack.enter_context(subprocess.Popen(["sleep", "600"], env=env))
        stack.callback(process.kill)
        stat = read_stat(Path(f"/proc/{process.pid}/stat"))
        assert stat is not None
        self._holders[gpu].append(ProcessUsage(Identity(pid=process.pid, start=stat.start, owner=owner), MIB // 2))
        return Quota(
            claim_uid=f"claim-{number}", namespace="bench", pod=f"pod-{number}", pod_uid=owner.pod_uid,
            container="main", container_id=owner.container_id, gpu=gpu, memory_mib=MIB,
        )  # fmt: skip

    def _views(self) -> list[GpuSnapshot]:
        """What the loop saw last: taking it is the loop's own cost."""
        return [
            GpuSnapshot(
                gpu=gpu,
                sample=GpuSample(uuid=gpu.uuid, total_mib=gpu.memory_mib, used_mib=0, processes=()),
                holders=tuple(self._holders[gpu.uuid]),
            )
            for gpu in self._gpus
        ]


class Eyes(NodeEvidence):
    """Asks each daemon as often as one with a server is asked; everybody is a client."""

    def clients(self, gpus: Collection[str]) -> Mapping[str, Collection[int]]:
        super().clients(gpus)
        super().clients(gpus)
        return {gpu: range(2**22) for gpu in gpus}


@contextmanager
def _daemon(gpu: Gpu, folder: Path) -> Iterator[MpsDaemon]:
    daemon = MpsDaemon(
        gpu.uuid, folder / str(gpu.index), mps_binary.mps_control(), limit_mib=gpu.memory_mib // 1024 * 1024
    )
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def cpu(work: Callable[[], object], times: int) -> float:
    """Mean seconds of CPU of one call, the programs it starts included."""
    before = _spent()
    for _ in range(times):
        work()
    return (_spent() - before) / times


def _spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
