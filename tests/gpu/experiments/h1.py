"""H1: what NVML says about who holds how much, against what was allocated; everything else of ours rests on this."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from enforcer.attribution.procfs import CgroupAttributor
from enforcer.mps.daemon import MpsDaemon
from gpushare.errors import GpuShareError
from gpushare.quantity import MIB
from tests.gpu.kit.backend import Backend, Container
from tests.gpu.kit.client import Client
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

LISTS: Final = ("Compute", "Graphics", "MPSCompute")
LARGE_MIB: Final = 48 * 1024
SMALL_CARD: Final = {"plain": (512, 1024, 4096), "managed": 1024, "shared": 512}
LARGE_CARD: Final = {"plain": (1024, 5120, 20480), "managed": 5120, "shared": 1024}
TOLERANCE_PERCENT: Final = 2.0
GRANULE_MIB: Final = 4
"""Two allocation granules of 2 MiB: differences below are rounding."""

SAYS: Final = (
    "every CUDA process stands in a list of NVML with what it allocated (error at most 2 %), our attribution finds its "
    "container; managed memory is in the device's total alone; imported memory counts twice, for exporter and "
    "importer"
)


@dataclass(slots=True)
class Scene:
    """Everything of one run: who is there, and what was found wrong."""

    backend: Backend
    env: Mapping[str, str]
    stack: ExitStack
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def start(self) -> tuple[Client, Container | None]:
        """A client with a context, in a container of its own where there can be one."""
        try:
            container = self.stack.enter_context(self.backend.container())
        except NotMeasurable as error:
            self.figures["containers"], container = str(error), None
        client = self.stack.enter_context(self.backend.client(self.env, cgroup=container.procs if container else None))
        if not client.usable:
            raise NotMeasurable(f"a CUDA process gets no context: {client.hello}")
        return client, container


@experiment("H1", title="Attribution without MPS", hypothesis=f"Without MPS {SAYS}", limit_s=60, order=15)
def h1(backend: Backend) -> Result:
    """Plain CUDA processes."""
    with ExitStack() as stack:
        return _measure(Scene(backend, {}, stack))


@experiment(
    "H1-MPS", title="Attribution under MPS", hypothesis=f"Under MPS {SAYS}", needs=("mps",), limit_s=60, order=20
)
def h1_mps(backend: Backend) -> Result:
    """Clients of one daemon; the server's own row is a figure."""
    with backend.mps() as daemon, ExitStack() as stack:
        scene = Scene(backend, backend.daemon_env(daemon), stack)
        return _measure(scene, daemon)


def _measure(scene: Scene, daemon: MpsDaemon | None = None) -> Result:
    sizes = LARGE_CARD if scene.backend.facts.memory_mib >= LARGE_MIB else SMALL_CARD
    _plain(scene, sizes["plain"])  # type: ignore[arg-type]
    _managed(scene, int(sizes["managed"]))  # type: ignore[call-overload]
    _shared(scene, int(sizes["shared"]))  # type: ignore[call-overload]
    if daemon is not None:
        rows = lists_of(scene.backend)
        scene.figures["ran_kernels"] = _ran_kernels(scene, daemon)
        scene.figures["server"] = {pid: _everywhere(rows, pid) for pid in daemon.servers()}
    return judged(scene.wrong, "each process is listed with what it allocated", **scene.figures)


def _plain(scene: Scene, sizes: tuple[int, ...]) -> None:
    """Processes of different size at the same time, before and after they allocate."""
    started = [scene.start() for _ in sizes]
    before = lists_of(scene.backend)
    for (client, _), mib in zip(started, sizes, strict=True):
        _must(client, f"alloc {mib}")
    after = lists_of(scene.backend)
    rows = [
        _judge(scene, client, mib, before, after) | _owner(scene, client, container)
        for (client, container), mib in zip(started, sizes, strict=True)
    ]
    scene.figures["processes"] = rows
    try:
        sample = scene.backend.reader().sample(scene.backend.gpu)
        scene.figures["reader_mib"] = sorted(each.used_mib for each in sample.processes)
    except GpuShareError as error:
        scene.wrong.append(f"our reader refuses the sample: {error.message}")


def _judge(
    scene: Scene, client: Client, mib: int, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    context, held = _largest(before, client.pid), _largest(after, client.pid)
    row: dict[str, Any] = {
        "allocated_mib": mib,
        "lists": sorted(_everywhere(after, client.pid)),
        "context_mib": context,
    }
    if held is None:
        scene.wrong.append(f"a process that holds {mib} MiB is in no list with an amount")
        return row
    error = held - (context or 0) - mib
    if abs(error) > max(GRANULE_MIB, mib * TOLERANCE_PERCENT / 100):
        scene.wrong.append(f"{held} MiB is said of a process with {mib} MiB allocated and a context of {context}")
    return row | {"said_mib": held, "error_mib": error, "error_percent": round(100 * error / mib, 3)}


def _owner(scene: Scene, client: Client, container: Container | None) -> dict[str, Any]:
    if container is None:
        return {"attributed": None}
    identity = CgroupAttributor().identify(client.pid)
    right = identity is not None and identity.owner == container.owner
    if not right:
        scene.wrong.append(f"a process in a container is attributed to {identity and identity.owner}")
    return {"attributed": right}


def _managed(scene: Scene, mib: int) -> None:
    """Managed memory the GPU has written, so that it is there."""
    client, _ = scene.start()
    rows, total = lists_of(scene.backend), used_mib(scene.backend)
    answer = client.ask(f"alloc {mib} managed")
    if "error" in answer:
        scene.figures["managed"] = answer
        return
    mine = _growth(rows, lists_of(scene.backend), client.pid)
    device = used_mib(scene.backend) - total
    scene.figures["managed"] = {"allocated_mib": mib, "process_grew_mib": mine, "device_grew_mib": device}
    if mine > mib * TOLERANCE_PERCENT / 100 + GRANULE_MIB:
        scene.wrong.append(f"{mine} MiB of {mib} MiB managed memory are in the process's own figure")
    if device < mib / 2:
        scene.wrong.append(f"{mib} MiB of managed memory made the device's total grow by {device} MiB only")


def _shared(scene: Scene, mib: int) -> None:
    """One exports, the other imports: is it counted once?"""
    (exporter, _), (importer, _) = scene.start(), scene.start()
    made = _must(exporter, f"alloc {mib}")
    rows, total = lists_of(scene.backend), used_mib(scene.backend)
    exported = exporter.ask(f"export {made['id']}")
    imported = importer.ask(f"import {exported['handle']}") if "handle" in exported else exported
    if "error" in imported:
        scene.figures["shared"] = imported
        return
    now = lists_of(scene.backend)
    mine, theirs = (_growth(rows, now, client.pid) for client in (importer, exporter))
    scene.figures["shared"] = {
        "allocated_mib": mib, "importer_grew_mib": mine, "exporter_grew_mib": theirs,
        "device_grew_mib": used_mib(scene.backend) - total,
    }  # fmt: skip
    if abs(mine - mib) > mib * TOLERANCE_PERCENT / 100 + GRANULE_MIB:
        scene.wrong.append(f"{mine} MiB of {mib} MiB imported memory are counted for the importer")


def _ran_kernels(scene: Scene, daemon: MpsDaemon) -> dict[str, Any]:
    """Whom NVML names when one client of two has run kernels: without that, memory of nobody is nobody's."""
    (busy, _), (idle, _) = scene.start(), scene.start()
    # NVML's own samples are some tenths of a second apart.
    _must(busy, "gemm 512 1s" if scene.backend.name == "real" else "gemm 64 1")
    said = scene.backend.nvml("nvmlDeviceGetProcessUtilization", "@", 0)
    if not isinstance(said, list):
        return {"said": said}
    pids = {row["pid"] for row in said if row["smUtil"]}
    servers = frozenset(daemon.servers())
    return {"the client": busy.pid in pids, "another": idle.pid in pids, "the server": bool(servers & pids)}


def lists_of(backend: Backend) -> dict[str, Any]:
    """NVML's three lists, raw: name to rows, or to an error."""
    return {name: backend.nvml(f"nvmlDeviceGet{name}RunningProcesses", "@") for name in LISTS}


def used_mib(backend: Backend) -> int:
    """What the device says is used in all."""
    answer = backend.nvml("nvmlDeviceGetMemoryInfo", "@")
    return int(answer["used"]) // MIB


def _everywhere(lists: Mapping[str, Any], pid: int) -> dict[str, int | None]:
    """In which lists a process stands, with how many MiB."""
    found = {name: row for name, rows in lists.items() if isinstance(rows, list) for row in rows if row["pid"] == pid}
    return {name: None if row["usedGpuMemory"] is None else row["usedGpuMemory"] // MIB for name, row in found.items()}


def _largest(lists: Mapping[str, Any], pid: int) -> int | None:
    amounts = [mib for mib in _everywhere(lists, pid).values() if mib is not None]
    return max(amounts, default=None)


def _growth(before: Mapping[str, Any], after: Mapping[str, Any], pid: int) -> int:
    return (_largest(after, pid) or 0) - (_largest(before, pid) or 0)


def _must(client: Client, command: str) -> dict[str, Any]:
    answer = client.ask(command)
    if "error" in answer:
        raise NotMeasurable(f"{command}: {answer['name']} ({answer['error']})")
    return answer
