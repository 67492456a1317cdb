"""12, 30 and 45 models on one GPU, each with requests of its own: how long does a request take (SAP's experiment)?"""

import time
from dataclasses import dataclass
from typing import Any

from tests.gpu.experiments.figures import percentile, spread
from tests.gpu.experiments.loops import settle, turn
from tests.gpu.experiments.scene import Scene, Tenant, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged, not_measured

TARGET_MS = 500.0
SLICED, MPS = "time slicing", "MPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """So many models; each has a request, and ``pause_s`` after its answer the next."""

    mps: tuple[int, ...] = (12, 30, 45)
    sliced: tuple[int, ...] = (12, 30, 45, 50)
    request: str = "gemm 512 10"
    mib: int = 256
    pause_s: float = 0.25
    seconds: float = 6.0
    wave: int = 8
    target_ms: float = TARGET_MS


PLANS = {
    "real": Plan(),
    "fake": Plan(mps=(3,), sliced=(3,), request="gemm 32 1", mib=16, pause_s=0.02, seconds=0.4, target_ms=150.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What requests took, in milliseconds; ``served`` of ``models`` got a context, ``hurt`` fell out."""

    way: str
    models: int
    served: int
    hurt: int
    requests: tuple[float, ...]

    @property
    def p99_ms(self) -> float:
        return percentile(self.requests, 99) if self.requests else float("inf")


@experiment(
    "models",
    title="Many models: how long a request takes",
    hypothesis=f"With as many models under MPS as it takes, 99 % of requests are answered within {TARGET_MS:g} ms",
    limit_s=280,
    group="bench",
    order=20,
)
def models(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Every number of models, first under MPS where there is one, then under time slicing."""
    runs = [] if "mps" in backend.facts.missing else [_run(backend, plan, MPS, count) for count in plan.mps]
    runs += [_run(backend, plan, SLICED, count) for count in plan.sliced]
    return judge_runs(plan, runs, backend.facts.missing.get("mps", ""))


def _run(backend: Backend, plan: Plan, way: str, count: int) -> Run:
    with Scene(backend) as scene:
        daemon = scene.daemon() if way == MPS else None
        served = _models(scene, scene.environment(daemon), plan, count)
        if not served:
            raise NotMeasurable(f"no model of {count} got a context ({way})")
        for tenant in served:
            turn(tenant.client, f"alloc {plan.mib}")
            turn(tenant.client, plan.request)
        loops = []
        for tenant in served:
            # Not all at the same moment: requests come when they come.
            loops.append(scene.loop(tenant, plan.request, plan.pause_s))
            time.sleep(plan.pause_s / count)
        settle(loops, 20.0)
        begun = time.monotonic()
        time.sleep(plan.seconds)
        turns = [each for loop in loops for each in loop.stop() if each.at > begun]
    good = tuple(round(each.seconds * 1000, 3) for each in turns if each.wrong is None)
    return Run(
        way=way, models=count, served=len(served), hurt=sum(loop.wrong is not None for loop in loops), requests=good
    )


def _models(scene: Scene, env: dict[str, str], plan: Plan, count: int) -> list[Tenant]:
    """Start them some at a time: fifty contexts at once are a test of its own."""
    served: list[Tenant] = []
    for first in range(0, count, plan.wave):
        wave = [scene.start(env) for _ in range(min(plan.wave, count - first))]
        served += [tenant for tenant in wave if refused(tenant.client) is None]
    return served


def judge_runs(plan: Plan, runs: list[Run], no_mps: str = "") -> Result:
    """The largest number under MPS decides; without MPS there is only something to show."""
    figures: dict[str, Any] = {}
    for run in runs:
        row = {"served": run.served, "hurt": run.hurt, "request_ms": spread(run.requests)}
        figures.setdefault(run.way, {})[str(run.models)] = row
    shared = [run for run in runs if run.way == MPS]
    if not shared:
        return not_measured(f"only time slicing could be measured: {no_mps}", **figures)
    last = max(shared, key=lambda run: run.models)
    wrong: list[str] = []
    if last.served < last.models or last.hurt:
        wrong.append(f"{last.served} of {last.models} models were served, {last.hurt} of them fell out")
    if last.p99_ms > plan.target_ms:
        wrong.append(f"{last.models} models: 99 % within {last.p99_ms:g} ms")
    return judged(wrong, f"{last.models} models under MPS: 99 % within {last.p99_ms:g} ms", **figures)
