"""12, 30 and 50 models on one GPU, each with requests of its own: how long does a request take (SAP's experiment)?

The pause between the requests of a model is worked out on the spot, so that 30 models keep the GPU busy for most of the
time. An MPS server takes 48 clients: of 50 models two are refused.
"""

import statistics
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
    """So many models; each has requests, with pauses by which ``loaded`` models load the GPU to ``load``."""

    models: tuple[int, ...] = (12, 30, 50)
    loaded: int = 30
    load: float = 0.7
    clients: int = 48
    request: str = "gemm 1024 10"
    mib: int = 256
    seconds: float = 6.0
    wave: int = 8
    target_ms: float = TARGET_MS


PLANS = {
    "real": Plan(),
    "fake": Plan(models=(3,), loaded=3, request="gemm 32 1", mib=16, seconds=0.4, target_ms=150.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What requests took, in milliseconds; ``served`` of ``models`` got a context, ``hurt`` fell out."""

    way: str
    models: int
    served: int
    hurt: int
    requests: tuple[float, ...]
    seconds: float = 1.0

    @property
    def p99_ms(self) -> float:
        return percentile(self.requests, 99) if self.requests else float("inf")


@experiment(
    "models",
    title="Many models: how long a request takes",
    hypothesis="At a load of 70 % by 30 models under MPS, 99 % of their requests are answered within "
    f"{TARGET_MS:g} ms; of 50 models 48 are served",
    limit_s=280,
    group="bench",
    order=20,
)
def models(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Every number of models, first under MPS where there is one, then under time slicing."""
    pause = _pause(backend, plan)
    ways = (SLICED,) if "mps" in backend.facts.missing else (MPS, SLICED)
    runs = [_run(backend, plan, way, count, pause) for count in plan.models for way in ways]
    return judge_runs(plan, runs, backend.facts.missing.get("mps", ""), pause)


def _pause(backend: Backend, plan: Plan) -> float:
    """Seconds between a model's requests by which ``loaded`` of them keep the GPU busy for ``load`` of the time."""
    with Scene(backend) as scene:
        tenant = scene.tenant(scene.environment(None))
        turn(tenant.client, plan.request)
        alone = [turn(tenant.client, plan.request) for _ in range(5)]
    if any(each.wrong for each in alone):
        raise NotMeasurable(f"one model alone did not compute: {alone[-1].wrong}")
    busy = statistics.median(each.gpu_ms / 1000 for each in alone)
    took = statistics.median(each.seconds for each in alone)
    return max(0.0, plan.loaded * busy / plan.load - took)


def _run(backend: Backend, plan: Plan, way: str, count: int, pause: float) -> Run:
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
            loops.append(scene.loop(tenant, plan.request, pause))
            time.sleep(pause / count)
        settle(loops, 20.0)
        begun = time.monotonic()
        time.sleep(plan.seconds)
        turns = [each for loop in loops for each in loop.stop() if each.at > begun]
    good = tuple(round(each.seconds * 1000, 3) for each in turns if each.wrong is None)
    return Run(
        way=way, models=count, served=len(served), hurt=sum(loop.wrong is not None for loop in loops), requests=good,
        seconds=time.monotonic() - begun,
    )  # fmt: skip


def _models(scene: Scene, env: dict[str, str], plan: Plan, count: int) -> list[Tenant]:
    """Start them some at a time: fifty contexts at once are a test of its own."""
    served: list[Tenant] = []
    for first in range(0, count, plan.wave):
        wave = [scene.start(env) for _ in range(min(plan.wave, count - first))]
        served += [tenant for tenant in wave if refused(tenant.client) is None]
    return served


def judge_runs(plan: Plan, runs: list[Run], no_mps: str = "", pause: float = 0.0) -> Result:
    """The number that loads the GPU decides; without MPS there is only something to show."""
    figures: dict[str, Any] = {"pause_s": round(pause, 4)}
    for run in runs:
        rate = round(len(run.requests) / run.seconds, 2)
        row = {"served": run.served, "hurt": run.hurt, "request_ms": spread(run.requests), "per_second": rate}
        figures.setdefault(run.way, {})[str(run.models)] = row
    shared = [run for run in runs if run.way == MPS]
    if not shared:
        return not_measured(f"only time slicing could be measured: {no_mps}", **figures)
    wrong = [
        f"{run.served} of {run.models} models were served, {run.hurt} of them fell out"
        for run in shared if run.served < min(run.models, plan.clients) or run.hurt
    ]  # fmt: skip
    loaded = next((run for run in shared if run.models == plan.loaded), shared[-1])
    beside = next((run for run in runs if run.way == SLICED and run.models == loaded.models), None)
    if loaded.p99_ms > plan.target_ms:
        wrong.append(f"{loaded.models} models: 99 % within {loaded.p99_ms:g} ms")
    sliced = "" if beside is None else f"; time-sliced within {beside.p99_ms:g} ms"
    return judged(wrong, f"{loaded.models} models under MPS: 99 % within {loaded.p99_ms:g} ms{sliced}", **figures)
