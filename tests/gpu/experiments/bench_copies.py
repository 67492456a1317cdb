"""1, 3, 5 and 7 copies of a small model on one GPU: time slicing against MPS with our limits (nos's experiment)."""

import statistics
from dataclasses import dataclass
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from tests.gpu.experiments.figures import ratio
from tests.gpu.experiments.loops import asked, wrong
from tests.gpu.experiments.scene import Scene, Tenant
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged, not_measured

HUNDRED = 100
TARGET = 1.5
SLICED, MEMORY, BOTH = "time slicing", "MPS, memory limited", "MPS, memory and compute limited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``size``: a model small enough that one copy leaves most of the GPU idle."""

    copies: tuple[int, ...] = (1, 3, 5, 7)
    size: int = 256
    seconds: float = 4.0


PLANS = {"real": Plan(), "fake": Plan(copies=(1, 3), size=32, seconds=0.3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """So many copies side by side: products a second of all together, and the median of one in milliseconds."""

    way: str
    copies: int
    per_second: float
    median_ms: float
    p99_ms: float


@experiment(
    "copies",
    title="Copies of a small model: time slicing and MPS",
    hypothesis=f"At the largest number of copies, MPS with our memory limits gets at least {TARGET:g} times the work "
    "of time slicing out of the GPU",
    limit_s=240,
    group="bench",
    order=10,
)
def copies(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Every number of copies in every way; the ways take turns so that all meet the same card."""
    ways = (SLICED,) if "mps" in backend.facts.missing else (SLICED, MEMORY, BOTH)
    runs = [_run(backend, plan, way, count) for count in plan.copies for way in ways]
    return judge_runs(runs, backend.facts.missing.get("mps", ""))


def _run(backend: Backend, plan: Plan, way: str, count: int) -> Run:
    with Scene(backend) as scene:
        daemon = None if way == SLICED else scene.daemon()
        tenants = scene.tenants([_environment(scene, daemon, way, count)] * count)
        for tenant in tenants:
            asked(tenant.client, f"gemm {plan.size} 2")
        return summed(way, side_by_side(tenants, f"gemm {plan.size} {plan.seconds:g}s", plan.seconds), plan.seconds)


def _environment(scene: Scene, daemon: MpsDaemon | None, way: str, count: int) -> dict[str, str]:
    share = scene.backend.facts.memory_mib // (count + 1)
    return scene.environment(daemon, limit_mib=share, percent=max(1, HUNDRED // count) if way == BOTH else None)


def side_by_side(tenants: list[Tenant], command: str, seconds: float) -> list[dict[str, Any]]:
    """All at once. Raises ``NotMeasurable`` where one does not compute."""
    for tenant in tenants:
        tenant.client.send(command)
    answers = [tenant.client.receive(20 + 4 * seconds) for tenant in tenants]
    for answer in answers:
        if (why := wrong(answer)) is not None or not answer.get("repeats"):
            raise NotMeasurable(f"a copy did not compute: {why or answer}")
    return answers


def summed(way: str, answers: list[dict[str, Any]], seconds: float) -> Run:
    """All copies together; work is what was done in the time they all had."""
    work = sum(answer["repeats"] for answer in answers)
    return Run(
        way=way, copies=len(answers), per_second=round(work / seconds, 2),
        median_ms=round(statistics.median(answer["median_ms"] for answer in answers), 4),
        p99_ms=round(max(answer["p99_ms"] for answer in answers), 4),
    )  # fmt: skip


def judge_runs(runs: list[Run], no_mps: str = "") -> Result:
    """Compare at the largest number of copies; without MPS there is nothing to compare, but something to show."""
    figures: dict[str, Any] = {
        way: _row([run for run in runs if run.way == way]) for way in dict.fromkeys(run.way for run in runs)
    }
    if MEMORY not in figures:
        return not_measured(f"only time slicing could be measured: {no_mps}", **figures)
    most = max(run.copies for run in runs)
    gains = {
        str(count): {way: ratio(_of(runs, way, count), _of(runs, SLICED, count), 2) for way in (MEMORY, BOTH)}
        for count in sorted({run.copies for run in runs})
    }
    gain = gains[str(most)][MEMORY]
    said = f"{gain:g} times the work of time slicing at {most} copies"
    return judged([said] if gain < TARGET else [], said, **figures, gain_over_time_slicing=gains)


def _row(runs: list[Run]) -> dict[str, Any]:
    return {
        str(run.copies): {"per_second": run.per_second, "median_ms": run.median_ms, "p99_ms": run.p99_ms}
        for run in runs
    }


def _of(runs: list[Run], way: str, count: int) -> float:
    return next(run.per_second for run in runs if (run.way, run.copies) == (way, count))
