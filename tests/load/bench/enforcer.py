"""``python -m tests.load.bench.enforcer``: what the enforcer costs: 64 GPU processes among 500, a look every 0.5 s.

CPU and memory are those of the enforcer and of its NVML process, from /proc; beside them the same enforcer
where no process uses a GPU. NVML's library is the simulator's, answering from memory: what a driver takes for its
answer is not in here. A decision is one turn of the loop, from the question to NVML to the status written; as other
work on the machine stretches it, the same turn's own CPU time stands beside it, and how long the machine takes for as
much pure computing. ``--write`` puts the figures into docs/design/safety.md. Wants root (cgroups) and a C compiler.
"""

import argparse
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.loop import EnforcementLoop
from enforcer.nvml.client import NvmlClient
from enforcer.nvml.driver_root import HERE
from enforcer.nvml.worker_handle import command
from enforcer.quota.types import Quota
from enforcer.runtime.logs import configure_logging
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder
from enforcer.status.metrics import Metrics
from enforcer.status.pod_status_files import PodStatusWriter
from tests.integration.processes.containers import wait_for
from tests.integration.processes.enforcing import Node
from tests.load.bench.library import remembering
from tests.load.bench.usage import children, cpu_seconds
from tests.safety.__main__ import write
from tests.support.wiring import loop_parts

EACH: Final = 4
"""Clients of one container."""
PROCESSES: Final = 500
HELD_MIB: Final = 200
POLL: Final = 0.5
MOST_GPUS: Final = 8
"""``remembered.c`` remembers no more."""
MEMORY: Final = "/dev/shm"
"""As /run is: files of pods are no files of a disk."""
WINDOWS: Final = 6
"""The least disturbed of them is what the enforcer takes; the machine's other work adds cold caches and page faults."""
FILE: Final = 5
"""Words of a line of smaps before the file's path."""
DEVELOPMENT: Final = ("rich", "grpc_tools")
PAUSE: Final = 0.02
COLUMNS: Final = "{:<28} {:>12} {:>12} {:>12}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process: share of one core in the window that was least disturbed and in the middle one; MiB resident.

    ``own``: of no file; ``pss``: what is shared is divided among its users; ``both``: see ``together``.
    """

    core: float
    middle: float
    rss: float
    own: float
    pss: float
    both: float


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds, fastest first: that each turn of the loop took, its CPU time, and as much pure computing."""

    took: list[float]
    cpu: list[float]
    computing: list[float]


def mib(pid: int, file: str, name: str) -> float:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def files(pid: int) -> dict[str, float]:
    """MiB resident of each part of a file that a process has mapped, without what it wrote there."""
    found: dict[str, float] = {}
    part = ""
    for words in (line.split() for line in Path(f"/proc/{pid}/smaps").read_text().splitlines()):
        if not words[0].endswith(":"):
            part = f"{words[2]} {words[5]}" if len(words) > FILE else ""  # the offset and the path
        elif part and words[0] in {"Rss:", "Anonymous:"}:
            found[part] = found.get(part, 0.0) + int(words[1]) / (1024 if words[0] == "Rss:" else -1024)
    return found


def together(pids: list[int]) -> float:
    """MiB that these processes take where nobody else has their libraries: what they share counts once."""
    mapped = [files(pid) for pid in pids]
    parts = {part for each in mapped for part in each}
    return sum(mib(pid, "status", "RssAnon") for pid in pids) + sum(max(f.get(x, 0.0) for f in mapped) for x in parts)


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def window(pids: list[int], seconds: float) -> list[float]:
    """Share of one core that each takes for so long."""
    before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return [(cpu_seconds(pid) - was) / passed for pid, was in zip(pids, before, strict=True)]


def cost(pids: list[int], seconds: float) -> list[Cost]:
    """Of these processes while they go about their work for so long, in windows."""
    windows = sorted((window(pids, seconds / WINDOWS) for _ in range(WINDOWS)), key=sum)
    least, middle, both = windows[0], windows[WINDOWS // 2], together(pids)
    return [
        Cost(
            least[at], middle[at], mib(pid, "status", "VmRSS"), mib(pid, "status", "RssAnon"),
            mib(pid, "smaps_rollup", "Pss"), both,
        )
        for at, pid in enumerate(pids)
    ]  # fmt: skip


@contextmanager
def crowd(stack: ExitStack, node: Node, clients: int) -> Iterator[list[Quota]]:
    """Five hundred processes, so many of them for each GPU in containers of four with GPU memory."""
    gpus = [each.uuid for each in node.sim.machine.gpus]
    others = [subprocess.Popen(["sleep", "86400"]) for _ in range(PROCESSES - len(gpus) * clients)]
    quotas = []
    for gpu in gpus * (clients // EACH):
        container = node.container()
        for _ in range(EACH):
            node.sim.register(container.spawn("sleep", "86400").pid, gpu, HELD_MIB, "mps")
        quotas.append(container.quota(gpu, HELD_MIB * EACH))
    try:
        yield quotas
    finally:
        for each in others:
            each.kill()
            each.wait()


def running(node: Node, run: Path, seconds: float) -> list[Cost]:
    """Cost of the enforcer and of its child, after it has settled."""
    node.start("--poll-seconds", str(POLL), "--run", str(run))
    assert node.enforcer is not None
    enforcer = node.enforcer.pid
    wait_for(lambda: len(children(enforcer)) == 1, 20)
    time.sleep(6 * POLL)
    try:
        return cost([enforcer, *children(enforcer)], seconds)
    finally:
        node.stop()


def decisions(folder: Path, run: Path, quotas: list[Quota], polls: int) -> Turns:
    """Time the loop's turns. Each is followed by pure computing that takes as much CPU time, timed too."""
    reader = NvmlClient(command(HERE))
    audit_log = AuditLog(folder / "audit")
    audit_log.open()
    events = EventRecorder(None, "gpu-7", ApiWriter())
    parts = loop_parts(
        watch=UsageSampler(reader, CgroupAttributor()), quotas=lambda: quotas, executor=None,  # nobody is over
        audit_log=AuditWriter(audit_log, "gpu-7"), events=events, metrics=Metrics(),
        pods=PodStatusWriter(run, events, bool),
    )  # fmt: skip
    enforcer = EnforcementLoop("gpu-7", folder, parts)
    enforcer.poll()
    gc.collect()
    gc.freeze()  # as the enforcer does
    timed = []
    for _ in range(polls):
        time.sleep(PAUSE)
        turn = timing(enforcer.poll)
        time.sleep(PAUSE)
        timed.append((*turn, timing(partial(compute, turn[1]))[0]))
    enforcer.close()
    audit_log.close()
    reader.close()
    return Turns(*(sorted(each) for each in zip(*timed, strict=True)))


def timing(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of CPU, that something takes."""
    began, cpu = time.monotonic(), time.process_time()
    work()
    return time.monotonic() - began, time.process_time() - cpu


def compute(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def megabytes(mebibytes: float) -> str:
    return f"{mebibytes * 1.048576:.1f} MB"


def row(name: str, costs: list[Cost], of: Callable[[Cost], float], form: str) -> str:
    enforcer, child = (of(each) for each in costs)
    return COLUMNS.format(name, *(form.format(value) for value in (enforcer, child, enforcer + child)))


def table(idle: list[Cost], busy: list[Cost], what: str) -> None:
    print(COLUMNS.format("", "ENFORCER", "NVML", "TOGETHER"))
    for name, costs in (("no GPU process", idle), (what, busy)):
        print(row(f"{name}: CPU", costs, lambda each: 100 * each.core, "{:.2f} %"))
        print(row(f"{name}: middle window", costs, lambda each: 100 * each.middle, "{:.2f} %"))
        print(row(f"{name}: RSS", costs, lambda each: each.rss, "{:.1f} MiB"))
        print(row(f"{name}: RSS, no file's", costs, lambda each: each.own, "{:.1f} MiB"))
        print(row(f"{name}: PSS", costs, lambda each: each.pss, "{:.1f} MiB"))
        print(f"{name}: together, what they share counted once: {costs[0].both:.1f} MiB")


def figures(idle: list[Cost], busy: list[Cost], turns: Turns, what: str) -> list[tuple[str, str]]:
    """What docs/design/safety.md says: what was measured, and what was found."""
    core, none = (sum(each.core for each in costs) for costs in (busy, idle))
    middle = sum(each.middle for each in busy)
    wall, cpu, computing = (at(each, 0.99) * 1e3 for each in (turns.took, turns.cpu, turns.computing))
    rss, own, pss = (sum(each) for each in zip(*((each.rss, each.own, each.pss) for each in busy), strict=True))
    both = f"{megabytes(busy[0].both)}, what they share counted once; of no file {megabytes(own)}"
    return [
        (
            f"{what}, a sample every 0.5 s: CPU",
            f"{100 * core:.2f} % of a core, {100 * middle:.2f} % in the middle window; {core / none:.1f} times idle",
        ),
        ("... memory, both processes", f"{both}; PSS here {megabytes(pss)}; RSS {megabytes(rss)}"),
        ("... one decision, p99", f"{wall:.1f} ms; its CPU {cpu:.1f} ms; as much pure computing {computing:.1f} ms"),
    ]


def as_in_the_image(folder: Path) -> None:
    """Hide what the image does not have, as libraries would load it; compile what it has, as compiling takes memory."""
    for name in DEVELOPMENT:
        (folder / f"{name}.py").write_text("raise ImportError\n")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONOPTIMIZE": "2"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-P", "-c", "import enforcer.main, enforcer.nvml.worker"], check=True)


def many(node: Node, gpus: int) -> None:
    """Give the simulated machine so many GPUs like its one."""
    (gpu,) = node.sim.machine.gpus
    copies = (
        replace(gpu, uuid=f"{gpu.uuid[:-2]}{minor:02x}", minor=minor, pci=f"00000000:{minor + 1:02x}:00.0")
        for minor in range(gpus)
    )
    node.sim.become(replace(node.sim.machine, gpus=tuple(copies)))


def measured(
    folder: Path, stack: ExitStack, seconds: float, polls: int, gpus: int, clients: int
) -> list[tuple[str, str]]:
    node, run = Node(folder, stack), Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
    stack.callback(node.end)
    many(node, gpus)
    node.library = remembering(folder)
    os.environ.update(node.sim.environment(node.library))
    as_in_the_image(folder)
    idle = running(node, run, seconds)
    what = f"{gpus * clients} GPU processes of {PROCESSES}" + (f" on {gpus} GPUs" if gpus > 1 else "")
    with crowd(stack, node, clients) as quotas:
        for quota in quotas:
            (run / "status" / quota.pod_uid).mkdir(parents=True)
        node.allow(*quotas)
        busy = running(node, run, seconds)
        table(idle, busy, what)
        own = folder / "own"
        own.mkdir(mode=0o700)
        return figures(idle, busy, decisions(own, run, quotas, polls), what)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench.enforcer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement (default 60)")
    parser.add_argument("--polls", type=int, default=500, help="turns of the loop that are timed (default 500)")
    parser.add_argument("--gpus", type=int, choices=range(1, MOST_GPUS + 1), default=1, help="GPUs (1)")
    parser.add_argument("--clients", type=int, choices=range(EACH, 65, EACH), default=64, help="of each GPU (64)")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/design/safety.md")
    options = parser.parse_args(argv)
    load, python = os.getloadavg()[0], platform.python_version()
    machine = f"{os.cpu_count()} cores, load average {load:.1f} before, Python {python}"
    print(f"{machine}; a look every {POLL} s")
    configure_logging("error")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        found = measured(Path(place), stack, options.seconds, options.polls, options.gpus, options.clients)
    for what, figure in found:
        print(f"{what}: {figure}")
    if options.write:
        write([("31", what, f"{figure}; {machine}") for what, figure in found])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
