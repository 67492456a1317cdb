"""account (H17): what the device uses beyond the rows of NVML's lists, while contexts come, grow and go.

The product takes memory that stands in no row for hidden once it stays. How large the gap is without anybody hiding
anything, and for how long, decides what it may tolerate.
"""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.h1 import LISTS
from tests.gpu.experiments.loops import asked, until
from tests.gpu.experiments.scene import Scene, Tenant
from tests.gpu.kit import raw_nvml
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

CLIENTS, BLOCK_MIB = 8, 1024
REST_S: Final = {"real": 1.0, "fake": 0.1}
"""Before what stands is read: the simulator frees at once."""
STANDING_MIB: Final = 128
"""What may stay in no row while nothing changes, beside what an idle card has."""
PASSING_MIB: Final = 64
PASSING_S: Final = 1.0
"""So long at most more than ``PASSING_MIB`` is in no row while contexts come and go."""


class Gaps:
    """Reads total and rows as fast as it can, in a thread: moment, MiB that the device uses beyond the rows, rows."""

    def __init__(self, gpu: str) -> None:
        self._gpu, self.seen = gpu, list[tuple[float, int, int]]()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.seen.append((time.monotonic(), *gap(self._gpu)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def gap(gpu: str) -> tuple[int, int]:
    """MiB that the device uses beyond the rows of processes, and how many rows there are."""
    rows: dict[int, int] = {}
    for name in LISTS:
        found = raw_nvml.call(f"nvmlDeviceGet{name}RunningProcesses", raw_nvml.MINE, gpu=gpu)
        for row in found if isinstance(found, list) else []:
            rows[row["pid"]] = max(rows.get(row["pid"], 0), row["usedGpuMemory"] or 0)
    memory = raw_nvml.call("nvmlDeviceGetMemoryInfo", raw_nvml.MINE, gpu=gpu)
    if "used" not in memory:
        raise NotMeasurable(f"the memory of the device cannot be read: {memory}")
    return (memory["used"] - sum(rows.values())) >> 20, len(rows)


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say what stayed in no row although nobody hid it."""
    wrong, said = [], []
    for way in ("MPS", "plain"):
        rows = figures[way]
        large = {moment: mib for moment, mib in rows["standing_mib"].items() if abs(mib) > STANDING_MIB}
        wrong += [f"{way}: {large} MiB stand in no row"] if large else []
        if rows["passing_s"] > PASSING_S:
            wrong.append(f"{way}: more than {PASSING_MIB} MiB for {rows['passing_s']} s")
        said.append(f"{way}: {rows['standing_mib']}, passing {rows['passing_mib']} for {rows['passing_s']} s")
    return judged(wrong, f"idle {figures['idle_mib']} MiB; MiB beyond: {'; '.join(said)}", **figures)


@experiment(
    "account",
    title="What the device uses beyond the rows of NVML (H17)",
    hypothesis=f"While nothing changes, the device uses at most {STANDING_MIB} MiB more or less than an idle card and "
    f"the rows of its processes, whatever these hold; more than {PASSING_MIB} MiB for at most {PASSING_S:g} s when "
    "contexts come and go",
    needs=("mps",),
    limit_s=60,
    order=36,
    judge=judge_figures,
)
def account(backend: Backend) -> Result:
    """One client, eight, eight that hold and compute, eight killed at once; under MPS, then plain."""
    idle = gap(backend.gpu)[0]
    figures: dict[str, Any] = {"idle_mib": idle}
    for way in ("MPS", "plain"):
        with Scene(backend) as scene, Gaps(backend.gpu) as gaps:
            figures[way] = _stations(scene, way, idle)
            time.sleep(REST_S[backend.name])
        figures[way]["after"] = gap(backend.gpu)[0] - idle
        figures[way] |= passing(gaps.seen, idle)
    return judge_figures(figures)


def _stations(scene: Scene, way: str, idle: int) -> dict[str, Any]:
    gpu, standing = scene.backend.gpu, dict[str, int]()
    daemon = scene.daemon() if way == "MPS" else None

    def stand(moment: str) -> None:
        time.sleep(REST_S[scene.backend.name])
        standing[moment] = gap(gpu)[0] - idle

    env = scene.environment(daemon)
    tenants = [scene.tenant(env)]
    stand("one client")
    tenants += scene.tenants([env] * (CLIENTS - 1))
    stand(f"{CLIENTS} clients")
    for each in tenants:
        asked(each.client, f"alloc {BLOCK_MIB}")
    stand("each holds a GiB")
    for each in tenants:
        asked(each.client, "gemm 256 4")
    stand("each has computed")
    return {"standing_mib": standing, "freed_s": _kill(tenants, gpu)}


def _kill(tenants: Sequence[Tenant], gpu: str) -> float | None:
    """Kill all at once; seconds until the list has none of them."""
    for each in tenants:
        each.client.kill()
    took = until(lambda: gap(gpu)[1] <= 1, 5.0)
    return None if took is None else round(took, 3)


def passing(seen: Sequence[tuple[float, int, int]], idle: int) -> dict[str, Any]:
    """The largest gaps either way, and for how long more than ``PASSING_MIB`` was in no row without a break."""
    gaps = [mib - idle for _, mib, _ in seen]
    longest, since = 0.0, None
    for (at, mib, _), (later, _, _) in itertools.pairwise(seen):
        since = (at if since is None else since) if mib - idle > PASSING_MIB else None
        longest = max(longest, later - since if since is not None else 0.0)
    return {
        "reads": len(seen), "passing_mib": [min(gaps), max(gaps)], "passing_s": round(longest, 3),
        "gap_mib": spread(gaps),
    }  # fmt: skip
