"""compute, priority, context: what a percentage of SMs is worth alone and beside others, and what a context costs."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cuda_context import WORKSPACE_MIB, context_mib
from tests.gpu.experiments.loops import asked, settle, wrong
from tests.gpu.experiments.scene import Scene, Tenant, held_mib
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged, not_measured

PERCENTAGES = (100, 75, 50, 25, 10, 5)
NO_SPEEDS = "the simulator plays no speeds by percentage or priority"
SLACK, MORE = 1.6, 0.03
"""So many times its percentage, and so much more, a client may do: alone it does not share power, clocks and memory
bandwidth, and the driver rounds to whole groups of SMs (5 % of 132 are 8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A product of ``size``, ``seconds`` for each measurement; ``small`` for kernels that do not fill the card."""

    size: int = 2048
    small: int = 256
    seconds: float = 1.5


PLANS = {"real": Plan(), "fake": Plan(size=32, small=16, seconds=0.1)}


def judge_compute(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say whether the percentages bind."""
    alone = [(int(each), part) for each, part in figures["alone_of_plain"].items()]
    wrong_ones = [
        f"{each} % does {part} of plain"
        for each, part in alone
        if each < PERCENTAGES[0] and part > SLACK * each / 100 + MORE
    ]
    parts = [part for _, part in sorted(alone)]
    if parts != sorted(parts):
        wrong_ones.append(f"not less with each lower percentage: {figures['alone_of_plain']}")
    for name in ("50 beside 25", "75 beside 25"):
        first, second = figures["pairs"][name][:2]
        if first <= second:
            wrong_ones.append(f"{name}: {first} : {second}")
    capped, *others = figures["pairs"]["25 beside three without"]
    beside = f"25 % beside three without does {capped} of plain, those {min(others)} to {max(others)}"
    return judged(wrong_ones, f"alone {figures['alone_of_plain']}; {beside}", **figures)


@experiment(
    "compute",
    title="Percentages of SMs, alone and in pairs",
    hypothesis="A percentage binds: a client alone does at most 1.6 times its percentage of what a plain process does "
    "(and 0.03 more: SMs come in groups), and less with each lower one; of two clients the one with the larger "
    "percentage does more",
    needs=("mps",),
    limit_s=90,
    order=75,
    judge=judge_compute,
)
def compute(backend: Backend) -> Result:
    """One client for each percentage; a plain process to compare with."""
    plan = PLANS[backend.name]
    with Scene(backend) as scene:
        daemon = scene.daemon()
        capped = {each: scene.tenant(scene.environment(daemon, percent=each)) for each in PERCENTAGES}
        free = [scene.tenant(scene.environment(daemon)) for _ in range(3)]
        plain = scene.tenant(scene.environment(None))
        base = _alone(plain, plan)
        figures: dict[str, Any] = {
            "per_second_plain": round(base, 2),
            "alone_of_plain": {str(each): round(_alone(one, plan) / base, 3) for each, one in capped.items()},
            "pairs": {
                name: _together(scene, tenants, plan, base)
                for name, tenants in {
                    "50 beside 25": [capped[50], capped[25]],
                    "75 beside 25": [capped[75], capped[25]],
                    "25 beside three without": [capped[25], *free],
                    "three without": free,
                }.items()
            },
        }
    return judge_compute(figures) if backend.name == "real" else not_measured(NO_SPEEDS, **figures)


def judge_priority(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say whether one of them got more than the other."""
    parts = {name: round(first / (first + second), 3) for name, (first, second) in figures.items()}
    odd = [f"{name}: the normal one does {part} of it" for name, part in parts.items() if not 0.4 <= part <= 0.6]
    return judged(odd, f"the normal one does {parts} of the work", **figures)


@experiment(
    "priority",
    title="The priority of MPS clients",
    hypothesis="CUDA_MPS_CLIENT_PRIORITY=1 has no effect that shows: beside a client of normal priority each does 40 "
    "to 60 % of their work, with large kernels and with small ones",
    needs=("mps",),
    limit_s=60,
    order=76,
    judge=judge_priority,
)
def priority(backend: Backend) -> Result:
    """A normal client beside one that gives way, each with large and with small kernels."""
    plan = PLANS[backend.name]
    with Scene(backend) as scene:
        daemon = scene.daemon()
        env = scene.environment(daemon)
        normal, low = scene.tenant(env), scene.tenant(env | {"CUDA_MPS_CLIENT_PRIORITY": "1"})
        figures: dict[str, Any] = {
            f"{name} kernels": _together(scene, [normal, low], Plan(size=size, seconds=plan.seconds), None)
            for name, size in (("large", plan.size), ("small", plan.small))
        }
    return judge_priority(figures) if backend.name == "real" else not_measured(NO_SPEEDS, **figures)


def judge_context(rows: Mapping[str, Any], _: str = "") -> Result:
    """Compare with the product's own formula, of the SMs that CUDA reports for a client."""
    large = [
        f"{each} %: {row['context_mib']} MiB, kept are {kept}"
        for each, row in rows.items()
        if row["context_mib"] > (kept := context_mib(row["sms"]) + WORKSPACE_MIB)
    ]
    sizes = [rows[each]["context_mib"] for each in sorted(rows, key=int)]
    if sizes != sorted(sizes):
        large.append(f"not less with fewer SMs: {sizes}")
    shown = {each: row["context_mib"] for each, row in rows.items()}
    return judged(large, f"MiB by percentage: {shown}", **rows)


@experiment(
    "context",
    title="What a context costs by percentage",
    hypothesis="The context of a client takes less with fewer SMs, and never more than what a share keeps for it",
    needs=("mps",),
    limit_s=60,
    order=22,
    judge=judge_context,
)
def context(backend: Backend) -> Result:
    """Rows of NVML for one client of each percentage, before and after a product."""
    plan = PLANS[backend.name]
    with Scene(backend) as scene:
        daemon = scene.daemon()
        rows = {
            str(each): _context(scene, scene.tenant(scene.environment(daemon, percent=each)), plan)
            for each in PERCENTAGES
        }
    return judge_context(rows)


def _context(scene: Scene, tenant: Tenant, plan: Plan) -> dict[str, int]:
    bare, sms = held_mib(scene.backend, tenant.pid), asked(tenant.client, "attributes").get("sm_count", 0)
    if bare is None:
        raise NotMeasurable("NVML does not show our own processes here")
    asked(tenant.client, f"gemm {plan.small} 2")
    return {"sms": sms, "context_mib": bare, "with_product_mib": held_mib(scene.backend, tenant.pid) or 0}


def _alone(tenant: Tenant, plan: Plan) -> float:
    answer = asked(tenant.client, f"gemm {plan.size} {plan.seconds:g}s", 20 + 2 * plan.seconds)
    if (why := wrong(answer)) is not None or not answer["ms"]:
        raise NotMeasurable(f"a client did not compute: {why}")
    return float(answer["repeats"] / answer["ms"] * 1000)


def _together(scene: Scene, tenants: Sequence[Tenant], plan: Plan, base: float | None) -> list[float]:
    """Products a second of each while all compute, by the time of the host; as parts of ``base`` where there is one."""
    loops = [scene.loop(tenant, f"gemm {plan.size} 4") for tenant in tenants]
    settle(loops, 20.0, 2)
    begun = [len(loop.turns) for loop in loops]
    time.sleep(plan.seconds)
    rates = []
    for loop, first in zip(loops, begun, strict=True):
        turns = loop.stop()[first:]
        if len(turns) < 2 or loop.wrong is not None:
            raise NotMeasurable(f"a client did not compute beside others: {loop.wrong}")
        rates.append(4 / statistics.median(turn.seconds for turn in turns))
    return [round(rate / base, 3) if base else round(rate, 2) for rate in rates]
