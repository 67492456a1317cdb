"""borrow: one program takes more and more of what nobody reserved, while another grows into what it reserved."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from enforcer.detection.lending import SLACK_MIB
from gpushare.reasons import Reason
from tests.gpu.experiments.guard import Guard, Sampler, ended_pids
from tests.gpu.experiments.loops import asked, until, wrong
from tests.gpu.experiments.scene import Scene, Tenant, allocate, held_mib
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

RATE = 512
"""MiB a second: as fast as docs/reference/kills.md lets all borrowers of a GPU grow together."""
STEP_MIB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The first reserves ``own_mib`` and borrows ``loan_mib``, or what there is. The second reserves ``other_mib``."""

    own_mib: int = 2048
    loan_mib: int = 60 * 1024
    other_mib: int = 12 * 1024
    patience_s: float = 20.0


PLANS = {"real": Plan(), "fake": Plan(other_mib=5120, patience_s=5.0)}


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say whether the second was refused nothing, and whether the first had to pay for that, and nobody else."""
    if figures["borrowed_mib"] <= 0:
        raise NotMeasurable("the first program never held more than it reserved, so there was nothing to give back")
    bad = [f"the second was refused memory: {why}"] if (why := figures["second_refused"]) else []
    if figures["second_ended"]:
        bad.append("the second was ended within its reservation")
    if not figures["reclaimed"]:
        bad.append("the first was not ended, though it took what the second had reserved")
    if not figures["audit_log_verifies"]:
        bad.append("the audit log does not verify")
    said = f"{figures['borrowed_mib']} MiB borrowed, all of it back; {figures['least_spare_mib']} MiB left at the least"
    return judged(bad, said, **figures)


@experiment(
    "borrow",
    title="Borrowed memory while its owner grows",
    hypothesis="A program has borrowed 60 GiB (or what a smaller card has beyond all reservations but 4 GiB) and takes "
    f"{RATE} MiB a second more. Another grows into its reservation at {RATE} MiB a second and sees no CUDA error; our "
    "enforcer ends the first and nobody else",
    limit_s=110,
    order=70,
    judge=judge_figures,
)
def borrow(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let both grow under our enforcer."""
    card = backend.facts.memory_mib
    loan = min(plan.loan_mib, card - plan.own_mib - plan.other_mib - SLACK_MIB)
    if loan <= 0:
        raise NotMeasurable(f"{card} MiB are too few to borrow any beside {plan.other_mib} MiB of another")
    with Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        guard = scene.guard(daemon)
        first, second = scene.tenants([scene.environment(daemon)] * 2, guard)
        allocate(second, STEP_MIB)
        allocate(first, plan.own_mib + loan - _held(scene, first, STEP_MIB))
        guard.quotas[:] = [
            first.quota(backend.gpu, plan.own_mib, limit_mib=card), second.quota(backend.gpu, plan.other_mib),
        ]  # fmt: skip
        sampler = scene.stack.enter_context(Sampler(backend.reader(), backend.gpu))
        guard.start()
        refused = _grow_both(scene, first, second, plan)
        until(lambda: not first.client.alive, plan.patience_s)
        until(lambda: bool(guard.records("OUTCOME")), 5.0)
        return judge_figures(_figures(guard, sampler, first, second, plan, card) | {"second_refused": refused})


def _held(scene: Scene, tenant: Tenant, more: int = 0) -> int:
    """What it holds once it has taken so much more. Raises ``NotMeasurable`` where NVML does not show it."""
    allocate(tenant, more) if more else None
    if (held := held_mib(scene.backend, tenant.pid)) is None:
        raise NotMeasurable("NVML does not show our own processes here, so the enforcer would be blind")
    return held


def _grow_both(scene: Scene, first: Tenant, second: Tenant, plan: Plan) -> str:
    """Let the first grow until it is ended, the second into its reservation; returns what went wrong with that one."""
    missing = plan.other_mib - _held(scene, second)
    borrower = threading.Thread(target=_grow, args=(first, lambda: True), daemon=True)
    borrower.start()
    steps = iter(range(missing // STEP_MIB))
    found = _grow(second, lambda: next(steps, None) is not None)
    borrower.join(plan.patience_s)
    return found


def _grow(tenant: Tenant, goes_on: Callable[[], bool]) -> str:
    """Take a step as often as the rate says; returns the first thing that was wrong, or nothing."""
    due = time.monotonic()
    while goes_on():
        if (found := wrong(asked(tenant.client, f"alloc {STEP_MIB}"))) is not None:
            return found
        due += STEP_MIB / RATE
        time.sleep(max(0.0, due - time.monotonic()))
    return ""


def _figures(
    guard: Guard, sampler: Sampler, first: Tenant, second: Tenant, plan: Plan, card: int
) -> dict[str, Any]:  # fmt: skip
    seen = list(sampler.seen)
    ended = ended_pids(guard.records("OUTCOME"))
    spare = [card - used - max(0, plan.other_mib - held.get(second.pid, 0)) for _, held, used in seen]
    intents = [each for each in guard.records("INTENT") if each.get("cause") == Reason.RECLAIMED]
    return {
        "borrowed_mib": max((held.get(first.pid, 0) for _, held, _ in seen), default=0) - plan.own_mib,
        "least_spare_mib": min(spare, default=0),
        "reclaimed": bool(intents) and first.pid in ended,
        "second_ended": second.pid in ended or not second.client.alive,
        "noticed": len(guard.records("RECLAIM_NOTICE")),
        "loans": [each["borrowedMiB"] for each in guard.records("LENT")],
        "attribution": guard.members.kind,
        "audit_log_verifies": guard.verified(),
    }
