"""``python -m tests.bench.enforcer``: what the node agent costs: 64 GPU processes among 500, a look every 0.5 s.

CPU and memory are those of the agent and of the process that asks NVML for it, from /proc; beside them the same agent
where no process uses a GPU. The simulated library reads a file per process and call, which a driver does not: what it
takes is told apart by asking it alone. Wants root (cgroups) and a C compiler.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enforcer.driver_root import HERE
from enforcer.killing.scribe import Scribe
from enforcer.killlog.audit import KillLog
from enforcer.loop import Agent, Parts
from enforcer.metrics import Metrics
from enforcer.model import Quota
from enforcer.nvml.kept import command
from enforcer.nvml.remote import RemoteReader
from enforcer.outlet import log_to_stderr
from enforcer.proc import CgroupAttributor
from enforcer.side import LoggedNotices
from enforcer.watch import Watch
from tests.bench.__main__ import cpu_seconds, resident_mib
from tests.node.containers import wait_for
from tests.node.enforcing import Node

CONTAINERS: Final = 16
EACH: Final = 4
PROCESSES: Final = 500
HELD_MIB: Final = 200
POLL: Final = 0.5
COLUMNS: Final = "{:<28} {:>12} {:>12} {:>12}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Share of one core, MiB resident, and MiB with what is shared divided among its users; of one process."""

    core: float
    rss: float
    pss: float


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def cost(pids: list[int], seconds: float) -> list[Cost]:
    """Of these processes while they go about their work for so long."""
    before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    spent = [cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
    return [Cost(cpu / passed, resident_mib(pid), pss_mib(pid)) for pid, cpu in zip(pids, spent, strict=True)]


@contextmanager
def crowd(stack: ExitStack, node: Node) -> Iterator[list[Quota]]:
    """Five hundred processes, 64 of them in sixteen containers with GPU memory."""
    others = [subprocess.Popen(["sleep", "86400"]) for _ in range(PROCESSES - CONTAINERS * EACH)]
    quotas = []
    for _ in range(CONTAINERS):
        container = node.container()
        for _ in range(EACH):
            node.sim.register(container.spawn("sleep", "86400").pid, node.gpu, HELD_MIB, "mps")
        quotas.append(container.quota(node.gpu, HELD_MIB * EACH))
    try:
        yield quotas
    finally:
        for each in others:
            each.kill()
            each.wait()


def running(node: Node, seconds: float) -> list[Cost]:
    """Cost of the agent and of its child, after it has settled."""
    node.start("--poll", str(POLL))
    assert node.enforcer is not None
    agent = node.enforcer.pid
    wait_for(lambda: len(children(agent)) == 1, 20)
    time.sleep(3 * POLL)
    try:
        return cost([agent, *children(agent)], seconds)
    finally:
        node.stop()


def decisions(folder: Path, quotas: list[Quota], polls: int) -> list[float]:
    """Seconds that each turn of the loop takes, from the question to NVML to the status written, slowest last."""
    reader, took = RemoteReader(command(HERE)), []
    kill_log = KillLog(folder / "audit")
    kill_log.open()
    parts = Parts(
        watch=Watch(reader, CgroupAttributor()), quotas=lambda: quotas, executor=None,  # type: ignore[arg-type] # nobody is over
        kill_log=Scribe(kill_log, "gpu-7"), sink=LoggedNotices(), metrics=Metrics(),
    )  # fmt: skip
    agent = Agent("gpu-7", folder, parts)
    for _ in range(polls):
        began = time.monotonic()
        agent.poll()
        took.append(time.monotonic() - began)
        time.sleep(0.02)
    agent.close()
    kill_log.close()
    reader.close()
    return sorted(took)


def library_alone(node: Node, looks: int = 50) -> float:
    """CPU seconds the simulated library takes for one look, asked without nvidia-ml-py."""
    program = (
        "import ctypes, time\n"
        "nvml = ctypes.CDLL('libnvidia-ml.so.1'); nvml.nvmlInitWithFlags(0); gpu = ctypes.c_void_p()\n"
        f"nvml.nvmlDeviceGetHandleByUUID({node.gpu.encode()!r}, ctypes.byref(gpu))\n"
        "room = (ctypes.c_byte * (24 * 4096))(); info = (ctypes.c_byte * 64)(); began = time.process_time()\n"
        f"for _ in range({looks}):\n"
        "    for kind in ('Compute', 'Graphics', 'MPSCompute'):\n"
        "        ask = getattr(nvml, f'nvmlDeviceGet{kind}RunningProcesses_v3')\n"
        "        ask(gpu, ctypes.byref(ctypes.c_uint(0)), None); ask(gpu, ctypes.byref(ctypes.c_uint(4096)), room)\n"
        "    nvml.nvmlDeviceGetMemoryInfo(gpu, info)\n"
        f"print((time.process_time() - began) / {looks})\n"
    )
    environment = {**os.environ, **node.sim.environment(node.library)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return float(said.stdout)


def row(name: str, costs: list[Cost], of: Callable[[Cost], float], form: str) -> str:
    agent, child = (of(each) for each in costs)
    return COLUMNS.format(name, *(form.format(value) for value in (agent, child, agent + child)))


def table(idle: list[Cost], busy: list[Cost], simulator: float) -> None:
    print(COLUMNS.format("", "AGENT", "NVML", "TOGETHER"))
    for name, costs in (("no GPU process", idle), ("64 of 500", busy)):
        print(row(f"{name}: CPU", costs, lambda each: 100 * each.core, "{:.2f} %"))
        print(row(f"{name}: RSS", costs, lambda each: each.rss, "{:.1f} MiB"))
        print(row(f"{name}: PSS", costs, lambda each: each.pss, "{:.1f} MiB"))
    total = sum(each.core for each in busy)
    less = total - simulator / POLL
    print(f"the simulated library takes {100 * simulator / POLL:.2f} % of that; without it {100 * less:.2f} %")
    print(f"ratio to the idle loop: {total / sum(each.core for each in idle):.1f}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.enforcer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each measurement (default 30)")
    parser.add_argument("--polls", type=int, default=500, help="turns of the loop that are timed (default 500)")
    options = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before; a look every {POLL} s")
    log_to_stderr("error")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        node = Node(folder, stack)
        stack.callback(node.end)
        os.environ.update(node.sim.environment(node.library))
        idle = running(node, options.seconds)
        with crowd(stack, node) as quotas:
            node.allow(*quotas)
            table(idle, running(node, options.seconds), library_alone(node))
            own = folder / "own"
            own.mkdir(mode=0o700)
            took = decisions(own, quotas, options.polls)
    shown = {share: took[min(len(took) - 1, int(len(took) * share))] * 1e3 for share in (0.5, 0.99, 1.0)}
    print(
        "one turn: "
        + ", ".join(f"{'max' if share == 1 else f'p{share * 100:.0f}'} {ms:.1f} ms" for share, ms in shown.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
