"""H1: what NVML says about who holds how much, against what was allocated; everything else of ours rests on this."""

import time
from collections.abc import Iterator, Mapping, Sequence
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
SETTLE_S: Final = 2.0
GRANULE_MIB: Final = 4
"""Two allocation granules of 2 MiB: differences below are rounding."""

SAYS: Final = (
    "every CUDA process stands in a list of NVML with what it allocated (error at most 2 %), our attribution finds its "
    "container; managed memory is in the device's total alone; imported memory counts for its exporter alone while "
    "that lives, and for the importer when the exporter has ended"
)
SERVER_SAYS: Final = "; the MPS server stands in a list, and of processes that ran kernels NVML names the server alone"


@dataclass(slots=True)
class Scene:
    """Everything of one run: who is there, and what was measured."""

    backend: Backend
    env: Mapping[str, str]
    stack: ExitStack
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


def judge_figures(figures: Mapping[str, Any], _: str) -> Result:
    """What is wrong of the figures of a run, old or new."""
    wrong = [*_wrong_rows(figures["processes"]), *_wrong_managed(figures["managed"]), *_wrong_shared(figures["shared"])]
    if problem := figures.get("reader_problem"):
        wrong.append(f"our reader refuses the sample: {problem}")
    if "server" in figures:
        wrong += _wrong_server(figures)
    return judged(wrong, "each process is listed with what it allocated", **figures)


@experiment(
    "H1", title="Attribution without MPS", hypothesis=f"Without MPS {SAYS}", limit_s=60, order=15, judge=judge_figures
)
def h1(backend: Backend) -> Result:
    """Plain CUDA processes."""
    with ExitStack() as stack:
        return _measure(Scene(backend, {}, stack))


@experiment(
    "H1-MPS", title="Attribution under MPS", hypothesis=f"Under MPS {SAYS}{SERVER_SAYS}", needs=("mps",), limit_s=60,
    order=20, judge=judge_figures,
)  # fmt: skip
def h1_mps(backend: Backend) -> Result:
    """Clients of one daemon, and the server's own row."""
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
    return judge_figures(scene.figures, scene.backend.facts.driver)


def _plain(scene: Scene, sizes: tuple[int, ...]) -> None:
    """Processes of different size at the same time, before and after they allocate."""
    started = [scene.start() for _ in sizes]
    before = lists_of(scene.backend)
    for (client, _), mib in zip(started, sizes, strict=True):
        _must(client, f"alloc {mib}")
    after = lists_of(scene.backend)
    scene.figures["processes"] = [
        _row(client, mib, before, after) | _owner(client, container)
        for (client, container), mib in zip(started, sizes, strict=True)
    ]
    try:
        sample = scene.backend.reader().sample(scene.backend.gpu)
        scene.figures["reader_mib"] = sorted(each.used_mib for each in sample.processes)
    except GpuShareError as error:
        scene.figures["reader_problem"] = error.message


def _row(client: Client, mib: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    context, held = _largest(before, client.pid), _largest(after, client.pid)
    row: dict[str, Any] = {
        "allocated_mib": mib,
        "lists": sorted(_everywhere(after, client.pid)),
        "context_mib": context,
    }
    if held is None:
        return row
    error = held - (context or 0) - mib
    return row | {"said_mib": held, "error_mib": error, "error_percent": round(100 * error / mib, 3)}


def _wrong_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        mib, held = row["allocated_mib"], row.get("said_mib")
        if held is None:
            yield f"a process that holds {mib} MiB is in no list with an amount"
        elif abs(row["error_mib"]) > max(GRANULE_MIB, mib * TOLERANCE_PERCENT / 100):
            yield f"{held} MiB is said of a process with {mib} MiB allocated and a context of {row['context_mib']}"
        if row["attributed"] is False:
            yield f"a process in a container is attributed to {row.get('attributed_to')}"


def _owner(client: Client, container: Container | None) -> dict[str, Any]:
    if container is None:
        return {"attributed": None}
    identity = CgroupAttributor().identify(client.pid)
    if identity is not None and identity.owner == container.owner:
        return {"attributed": True}
    return {"attributed": False, "attributed_to": str(identity and identity.owner)}


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


def _wrong_managed(figures: Mapping[str, Any]) -> Iterator[str]:
    if "error" in figures:
        return
    mib, mine, device = (figures[each] for each in ("allocated_mib", "process_grew_mib", "device_grew_mib"))
    if mine > mib * TOLERANCE_PERCENT / 100 + GRANULE_MIB:
        yield f"{mine} MiB of {mib} MiB managed memory are in the process's own figure"
    if device < mib / 2:
        yield f"{mib} MiB of managed memory made the device's total grow by {device} MiB only"


def _shared(scene: Scene, mib: int) -> None:
    """One exports, the other imports; then the exporter ends: whose is it?"""
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
    device = used_mib(scene.backend) - total
    exporter.close()
    scene.figures["shared"] = {
        "allocated_mib": mib, "importer_grew_mib": mine, "exporter_grew_mib": theirs, "device_grew_mib": device,
        "importer_grew_without_exporter_mib": _settled_growth(scene.backend, rows, importer.pid, mib),
    }  # fmt: skip


def _settled_growth(backend: Backend, before: Mapping[str, Any], pid: int, wanted_mib: int) -> int:
    """Growth of a process's row, once it is as large as wanted or ``SETTLE_S`` are over: a driver frees in its time."""
    end = time.monotonic() + SETTLE_S
    while (grown := _growth(before, lists_of(backend), pid)) < wanted_mib and time.monotonic() < end:
        time.sleep(0.05)
    return grown


def _wrong_shared(figures: Mapping[str, Any]) -> Iterator[str]:
    if "error" in figures:
        return
    mib = figures["allocated_mib"]
    slack = mib * TOLERANCE_PERCENT / 100 + GRANULE_MIB
    if abs(figures["importer_grew_mib"]) > slack:
        yield f"{figures['importer_grew_mib']} MiB of {mib} MiB imported memory are counted for the importer as well"
    after = figures.get("importer_grew_without_exporter_mib", mib)  # the first runs did not ask
    if abs(after - mib) > slack:
        yield f"{after} MiB of {mib} MiB imported memory are counted for the importer when the exporter has ended"


def _wrong_server(figures: Mapping[str, Any]) -> Iterator[str]:
    if not all(figures["server"].values()):
        yield "the MPS server stands in no list"
    ran = figures["ran_kernels"]
    if ran.get("the client") or ran.get("another"):
        yield "NVML names an MPS client among processes that ran kernels"


def _ran_kernels(scene: Scene, daemon: MpsDaemon) -> dict[str, Any]:
    """Which process NVML names when one client of two has run kernels."""
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
