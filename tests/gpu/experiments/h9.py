"""H9: what our enforcer's looking costs those who compute, in a large GEMM and in small requests."""

import statistics
from dataclasses import dataclass
from typing import Any

from tests.gpu.experiments.figures import loss_percent, noise_percent, spread
from tests.gpu.experiments.loops import asked, wrong
from tests.gpu.experiments.scene import Scene, Tenant
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged, not_measured

TARGET_PERCENT = 0.5
TARGET_POLL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Turns of ``turn_s``, alternately without and with our enforcer, all in one run of the same client."""

    rounds: int = 2
    polls: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    turn_s: float = 1.2
    loads: tuple[tuple[str, int], ...] = (("large GEMM", 2048), ("small requests", 128))
    tolerance_percent: float = TARGET_PERCENT
    """More than the target where a machine is simulated: what varies there is the host."""


PLANS = {
    "real": Plan(),
    "fake": Plan(rounds=2, polls=(0.5,), turn_s=0.4, loads=(("small requests", 32),), tolerance_percent=35.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: products a second, and how long the slowest percent of them took. ``poll`` 0: nobody looked."""

    load: str
    poll: float
    per_second: float
    p99_ms: float


@experiment(
    "H9",
    title="What looking costs",
    hypothesis=f"Our enforcer looking every {TARGET_POLL:g} s costs a GEMM loop at most {TARGET_PERCENT:g} % of its "
    "throughput",
    limit_s=90,
    order=70,
)
def h9(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let one client compute; turn our enforcer on and off beside it."""
    turns: list[Turn] = []
    looks: dict[float, list[float]] = {poll: [] for poll in plan.polls}
    with Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        tenant = scene.tenant(scene.environment(daemon))
        for load, size in plan.loads:
            _turn(tenant, load, size, 0.0, plan.turn_s)  # warm
            for number in range(plan.rounds):
                for poll in plan.polls:
                    turns.append(_turn(tenant, load, size, 0.0, plan.turn_s))
                    with Scene(backend) as inner:
                        guard = inner.guard(daemon, poll=poll, name=f"guard-{size}-{number}-{poll}")
                        guard.quotas[:] = [tenant.quota(backend.gpu, backend.facts.memory_mib)]
                        guard.start()
                        turns.append(_turn(tenant, load, size, poll, plan.turn_s))
                    looks[poll] += [seconds * 1000 for seconds in guard.reader.took]
    return judge_turns(plan, turns, {f"poll {poll:g} s": spread(took) for poll, took in looks.items()})


def _turn(tenant: Tenant, load: str, size: int, poll: float, seconds: float) -> Turn:
    answer = asked(tenant.client, f"gemm {size} {seconds:g}s", 20 + 2 * seconds)
    if (why := wrong(answer)) is not None:
        raise NotMeasurable(f"the client did not compute: {why}")
    # By the time on the GPU: so many products a turn would be too coarse a measure.
    rate = answer["repeats"] / answer["ms"] * 1000 if answer["ms"] else 0.0
    return Turn(load=load, poll=poll, per_second=rate, p99_ms=answer.get("p99_ms", 0.0))


def judge_turns(plan: Plan, turns: list[Turn], looks: dict[str, Any]) -> Result:
    """Compare turns with and without; what is smaller than the noise of the turns without says nothing."""
    figures: dict[str, Any] = {
        load: about([t for t in turns if t.load == load]) for load in dict.fromkeys(t.load for t in turns)
    }
    worst, noise = max(
        (each[f"poll {TARGET_POLL:g} s"]["loss_percent"], each["noise_percent"]) for each in figures.values()
    )
    figures["nvml_ms"] = looks
    said = f"{worst:g} % at a poll of {TARGET_POLL:g} s, turns without differ by {noise:g} %"
    if worst > plan.tolerance_percent and noise >= worst:
        return not_measured(f"too noisy here: {said}", **figures)
    return judged([f"it cost {said}"] if worst > plan.tolerance_percent else [], said, **figures)


def losses(turns: list[Turn], poll: float) -> list[float]:
    """What each turn at this poll lost against the turns without right before and after it, in percent."""
    found: list[float] = []
    for number, turn in enumerate(turns):
        if turn.poll == poll:
            beside = [each for each in turns[max(0, number - 1) : number + 2] if each.poll == 0]
            found.append(loss_percent([each.per_second for each in beside], [turn.per_second]))
    return found


def about(turns: list[Turn]) -> dict[str, Any]:
    """Figures of one load."""
    without = [turn.per_second for turn in turns if turn.poll == 0]
    found: dict[str, Any] = {
        "per_second_without": round(statistics.median(without), 2), "noise_percent": noise_percent(without),
        "p99_ms_without": round(statistics.median(turn.p99_ms for turn in turns if turn.poll == 0), 4),
    }  # fmt: skip
    for poll in sorted({turn.poll for turn in turns} - {0.0}):
        along = [turn for turn in turns if turn.poll == poll]
        found[f"poll {poll:g} s"] = {
            "per_second": round(statistics.median(turn.per_second for turn in along), 2),
            "loss_percent": round(statistics.median(losses(turns, poll)), 3),
            "p99_ms": round(statistics.median(turn.p99_ms for turn in along), 4),
        }
    return found
