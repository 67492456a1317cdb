"""H5: how much memory a tenant without a pinned limit gets hold of, and for how long, under our enforcer."""

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.guard import Guard, Sampler
from tests.gpu.experiments.loops import asked, until
from tests.gpu.experiments.scene import Scene, allocate, seen_by_nvml
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

MEDIAN_S, WORST_S = 0.75, 1.0
TARGET_POLL = 0.5
ENOUGH = 5
"""Trials from which a median says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``trials`` at each of ``polls``. The tenant has ``quota_mib`` and fills the card in steps of ``step_mib``."""

    trials: int = 9
    polls: tuple[float, ...] = (0.25, 0.5, 1.0)
    quota_mib: int = 4096
    step_mib: int = 512
    patience_s: float = 30.0


PLANS = {"real": Plan(), "fake": Plan(trials=1, polls=(0.25, 0.5), quota_mib=1024, patience_s=2.2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Seconds between the stations of one excess. ``None``: it did not get that far."""

    poll: float
    noticed_s: float | None = None
    """From crossing the ceiling to the first look that saw it."""
    decided_s: float | None = None
    """From there to the first thing done about it: three looks in a row are wanted, 80 ms apart."""
    freed_s: float | None = None
    """From the first thing done to the memory being back."""
    exposed_s: float | None = None
    """From crossing to the memory being back."""
    overshoot_mib: int = 0
    gib_seconds: float = 0.0
    steps: tuple[str, ...] = ()


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say whether the target was met at the poll it is set for."""
    aimed = figures[f"poll {TARGET_POLL:g} s"]
    exposed, over = aimed["exposed_s"], aimed["overshoot_mib"]
    if not over.get("max"):
        raise NotMeasurable("the tenant never got beyond its kill threshold, so there was nothing to end")
    wrong = []
    if (kept := over["n"] - exposed["n"]) > 0:
        wrong.append(f"{kept} of {over['n']} did not end")
    if exposed["n"] and exposed["max"] > WORST_S:
        wrong.append(f"worst of {exposed['n']}: {exposed['max']} s")
    if exposed["n"] >= ENOUGH and exposed["p50"] > MEDIAN_S:
        wrong.append(f"half of {exposed['n']} took {exposed['p50']} s or more")
    if not figures["audit_log_verifies"]:
        wrong.append("the audit log does not verify")
    said = f"worst of {exposed['n']}: {exposed.get('max')} s, median {exposed.get('p50')} s"
    return judged(wrong, f"{said}, {over['max']} MiB over its kill threshold at the peak", **figures)


@experiment(
    "H5",
    title="Exposure to a tenant that takes all it can",
    hypothesis=f"At a poll of {TARGET_POLL:g} s and no grace, the memory of a tenant that fills the card at full speed "
    f"is back within {WORST_S:g} s of crossing its kill threshold, half of the times within {MEDIAN_S:g} s",
    limit_s=110,
    order=60,
    judge=judge_figures,
)
def h5(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let tenants overrun their quota under our enforcer, at every poll."""
    trials: list[Trial] = []
    with Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        sampler = scene.stack.enter_context(Sampler(backend.reader(), backend.gpu))
        for number, poll in enumerate(plan.polls):
            with Scene(backend) as inner:
                guard = inner.guard(daemon, poll=poll, name=f"guard-{number}")
                guard.start()
                trials += [_trial(inner, guard, daemon, sampler, plan) for _ in range(plan.trials)]
                kind, verified = guard.members.kind, guard.verified()
                if not verified:
                    break
    figures = {f"poll {poll:g} s": about([each for each in trials if each.poll == poll]) for poll in plan.polls}
    how = "MPS clients" if daemon is not None else "plain processes, as there is no MPS here"
    return judge_figures({**figures, "tenants": how, "attribution": kind, "audit_log_verifies": verified})


def _trial(scene: Scene, guard: Guard, daemon: MpsDaemon | None, sampler: Sampler, plan: Plan) -> Trial:
    tenant = scene.tenant(scene.environment(daemon), guard)
    allocate(tenant, plan.step_mib)
    if not seen_by_nvml(scene.backend, tenant.pid):
        raise NotMeasurable("NVML does not show our own processes here, so the enforcer would be blind")
    quota = tenant.quota(scene.backend.gpu, plan.quota_mib)
    guard.quotas[:] = [quota]
    begun = time.monotonic()
    filling = threading.Thread(
        target=asked, args=(tenant.client, f"fill {plan.step_mib}", plan.patience_s), daemon=True
    )
    filling.start()
    until(lambda: not tenant.client.alive and _held(sampler, tenant.pid) == 0, plan.patience_s)
    tenant.client.kill()
    filling.join(plan.patience_s)
    until(lambda: bool(guard.records("OUTCOME")), 2.0)
    return _stations(guard, sampler, tenant.pid, quota.ceiling_mib, begun)


def _held(sampler: Sampler, pid: int) -> int:
    return sampler.seen[-1][1].get(pid, 0) if sampler.seen else 0


def _stations(guard: Guard, sampler: Sampler, pid: int, ceiling: int, begun: float) -> Trial:
    seen = [(at, held.get(pid, 0)) for at, held, _ in list(sampler.seen) if at >= begun]
    over = [(at, mib) for at, mib in seen if mib > ceiling]
    if not over:
        return Trial(poll=guard.poll)
    crossed, last = over[0][0], over[-1][0]
    back = next((at for at, _ in seen if at > last), None)
    noticed, acted = guard.reader.above(pid, ceiling), guard.journal.first(pid)
    return Trial(
        poll=guard.poll, noticed_s=between(crossed, noticed), decided_s=between(noticed, acted),
        freed_s=between(acted, back), exposed_s=between(crossed, back),
        overshoot_mib=max(mib for _, mib in over) - ceiling, gib_seconds=round(_area(seen, ceiling), 3),
        steps=tuple(each.what for each in guard.journal.entries if each.pid == pid),
    )  # fmt: skip


def between(before: float | None, after: float | None) -> float | None:
    """Seconds from one station to the next, never below zero: two clocks' grains may cross."""
    return None if before is None or after is None else round(max(0.0, after - before), 4)


def _area(seen: list[tuple[float, int]], ceiling: int) -> float:
    """GiB over the ceiling times seconds."""
    steps = itertools.pairwise(seen)
    return sum(max(0, mib - ceiling) / 1024 * (later - at) for (at, mib), (later, _) in steps)


def about(trials: list[Trial]) -> dict[str, Any]:
    """Figures at one poll."""
    names = ("noticed_s", "decided_s", "freed_s", "exposed_s", "overshoot_mib", "gib_seconds")
    rows = [asdict(trial) for trial in trials]
    found: dict[str, Any] = {name: spread([row[name] for row in rows if row[name] is not None]) for name in names}
    return {**found, "steps": sorted({", ".join(trial.steps) for trial in trials})}
