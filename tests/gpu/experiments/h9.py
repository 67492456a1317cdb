"""H9: what reading NVML costs programs that compute, in a large product and in small requests.

At our rate a cost is far below what a measurement can tell. So it is measured at rates that are much higher, in short
turns that take turns, and scaled down.
"""

import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from enforcer.nvml.reader import NvmlReader
from gpushare.errors import NvmlError
from tests.gpu.experiments.figures import loss_percent, noise_percent, spread
from tests.gpu.experiments.loops import asked, wrong
from tests.gpu.experiments.scene import Scene, Tenant
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged, not_measured

TARGET_PERCENT = 0.5
OURS = {"every 0.5 s": 2.0, "every 80 ms": 12.5}
"""Reads a second of a GPU: by the enforcer always, and while a kill may come on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``rounds`` of turns of ``turn_s`` at each of ``rates`` (reads a second), forwards and backwards alternately."""

    rounds: int = 8
    rates: tuple[float, ...] = (0.0, 50.0, 200.0)
    turn_s: float = 0.8
    loads: tuple[tuple[str, int], ...] = (("large GEMM", 2048), ("small requests", 128))
    tolerance_percent: float = TARGET_PERCENT
    """More than the target where a machine is simulated: what varies there is the host."""


PLANS = {
    "real": Plan(),
    "fake": Plan(rounds=3, rates=(0.0, 20.0), turn_s=0.2, loads=(("small requests", 32),), tolerance_percent=35.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: reads a second meanwhile, products a second, and the slowest percent of products."""

    load: str
    rate: float
    per_second: float
    p99_ms: float


class Looking:
    """Reads a GPU so many times a second, in a thread; ``took`` are milliseconds of each read."""

    def __init__(self, reader: NvmlReader, gpu: str, rate: float) -> None:
        self._reader, self._gpu, self._rate, self.took = reader, gpu, rate, list[float]()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.is_set():
            begun = time.monotonic()
            with suppress(NvmlError):  # a client that ends between list and total makes them contradict each other
                self._reader.sample(self._gpu)
                self.took.append((time.monotonic() - begun) * 1000)
            self._stopped.wait(max(0.0, 1 / self._rate - (time.monotonic() - begun)))

    def __enter__(self) -> Self:
        if self._rate:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        if self._rate:
            self._thread.join()


@experiment(
    "H9",
    title="What looking costs",
    hypothesis=f"Reading NVML every 80 ms costs a GEMM loop at most {TARGET_PERCENT:g} % of its throughput",
    limit_s=90,
    order=70,
)
def h9(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let one client compute while NVML is read more or less often."""
    turns: list[Turn] = []
    took: list[float] = []
    with Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        tenant, reader = scene.tenant(scene.environment(daemon)), backend.reader()
        for load, size in plan.loads:
            _turn(tenant, load, size, 0.0, plan.turn_s)  # warm
            for number in range(plan.rounds):
                for rate in plan.rates if number % 2 else plan.rates[::-1]:
                    with Looking(reader, backend.gpu, rate) as looking:
                        turns.append(_turn(tenant, load, size, rate, plan.turn_s))
                    took += looking.took
    return judge_turns(plan, turns, {"nvml_ms": spread(took)})


def _turn(tenant: Tenant, load: str, size: int, rate: float, seconds: float) -> Turn:
    answer = asked(tenant.client, f"gemm {size} {seconds:g}s", 20 + 2 * seconds)
    if (why := wrong(answer)) is not None:
        raise NotMeasurable(f"the client did not compute: {why}")
    # By the time on the GPU: so many products a turn would be too coarse a measure.
    per_second = answer["repeats"] / answer["ms"] * 1000 if answer["ms"] else 0.0
    return Turn(load=load, rate=rate, per_second=per_second, p99_ms=answer.get("p99_ms", 0.0))


def judge_turns(plan: Plan, turns: list[Turn], more: Mapping[str, Any]) -> Result:
    """Scale the cost at the highest rate down to ours; loss and noise together bound what it can be."""
    top = max(plan.rates)
    figures: dict[str, Any] = {
        load: about([turn for turn in turns if turn.load == load]) for load in dict.fromkeys(t.load for t in turns)
    }
    losses = {load: each[f"{top:g} a second"]["loss_percent"] for load, each in figures.items()}
    worst = max(losses, key=lambda load: losses[load])
    loss, noise = losses[worst], figures[worst]["noise_percent"]
    most = {name: round((max(0.0, loss) + noise) * rate / top, 4) for name, rate in OURS.items()}
    figures |= {**more, "at_most_percent": most}
    said = (
        f"{loss:g} % at {top:g} reads a second ({worst}; turns without differ by {noise:g} %), so at most "
        + ", ".join(f"{percent:g} % {name}" for name, percent in most.items())
    )
    if max(most.values()) <= plan.tolerance_percent:
        return judged([], said, **figures)
    if noise >= loss:
        return not_measured(f"cannot tell: {said}", **figures)
    return judged([f"it cost {said}"], said, **figures)


def about(turns: list[Turn]) -> dict[str, Any]:
    """Figures of one load, by reads a second."""
    without = [turn.per_second for turn in turns if turn.rate == 0]
    found: dict[str, Any] = {
        "per_second_without": round(statistics.median(without), 2), "noise_percent": noise_percent(without),
        "p99_ms_without": round(statistics.median(turn.p99_ms for turn in turns if turn.rate == 0), 4),
    }  # fmt: skip
    for rate in sorted({turn.rate for turn in turns} - {0.0}):
        along = [turn for turn in turns if turn.rate == rate]
        found[f"{rate:g} a second"] = {
            "per_second": round(statistics.median(turn.per_second for turn in along), 2),
            "loss_percent": loss_percent(without, [turn.per_second for turn in along]),
            "p99_ms": round(statistics.median(turn.p99_ms for turn in along), 4),
        }
    return found
