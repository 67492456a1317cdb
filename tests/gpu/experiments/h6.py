"""H6: who is hurt by an illegal access of one MPS client, and how long nobody can use the GPU afterwards."""

import time
from dataclasses import dataclass
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from tests.gpu.experiments.guard import Guard
from tests.gpu.experiments.h4 import statuses
from tests.gpu.experiments.loops import Loop, asked, settle, turn, until, wrong
from tests.gpu.experiments.scene import Scene, Tenant, allocate, leave, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

TARGET_S = 10.0
FAULT = "FAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``linger_s``: how long hurt clients are left as they are, to see whether the server gets over them."""

    clients: int = 4
    command: str = "gemm 1024 10"
    mib: int = 256
    pause_s: float = 0.0
    linger_s: float = 5.0
    newcomer_s: float = 5.0
    target_s: float = TARGET_S


PLANS = {
    "real": Plan(),
    "fake": Plan(clients=3, command="gemm 64 2", mib=64, pause_s=0.01, linger_s=0.3, newcomer_s=1.0, target_s=2.0),
}


@experiment(
    "H6",
    title="An illegal access in one client",
    hypothesis="A fault in one client ends the work of the clients of that GPU's server and of nobody else, and the "
    f"server takes clients again within {TARGET_S:g} s of the end of the last that was hurt",
    needs=("mps",),
    limit_s=90,
    order=900,
)
def h6(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let a client fault twice: first with nobody watching, then under our enforcer."""
    alone = _episode(backend, plan, watched=False)
    watched = _episode(backend, plan, watched=True)
    return judge_episodes(plan, alone, watched)


def _episode(backend: Backend, plan: Plan, *, watched: bool) -> dict[str, Any]:
    with Scene(backend) as scene:
        daemon = scene.daemon(name="watched" if watched else "alone")
        guard = scene.guard(daemon, name="guard-watched" if watched else "guard-alone")
        crew = scene.tenants([scene.environment(daemon)] * plan.clients, guard)
        bystander = scene.tenant(scene.environment(None), guard)
        for tenant in crew:
            allocate(tenant, plan.mib)
        guard.quotas[:] = [tenant.quota(backend.gpu, 16 * plan.mib) for tenant in crew]
        if watched:
            guard.start()
        neighbours = [scene.loop(tenant, plan.command, plan.pause_s) for tenant in crew[1:]]
        if not settle(neighbours, 20.0, 2):
            raise NotMeasurable("clients that should compute side by side did not")
        return {**_fault(scene, daemon, crew, neighbours, plan), **_beside(bystander, guard, plan)}


def _beside(bystander: Tenant, guard: Guard, plan: Plan) -> dict[str, Any]:
    """A plain process on the same GPU is nobody's client; and did our enforcer end anybody?"""
    return {
        "bystander": turn(bystander.client, plan.command).wrong or "unhurt",
        "ended_by_enforcer": len(guard.records("OUTCOME")),
    }


def _fault(scene: Scene, daemon: MpsDaemon, crew: list[Tenant], neighbours: list[Loop], plan: Plan) -> dict[str, Any]:
    before, begun = statuses(daemon), time.monotonic()
    culprit = wrong(asked(crew[0].client, "fault")) or "no error"
    until(lambda: all(loop.wrong for loop in neighbours), plan.newcomer_s)
    found: dict[str, Any] = {
        "culprit": culprit, "neighbours": [loop.wrong or "unhurt" for loop in neighbours], "status_before": before,
        "status_after": statuses(daemon), "newcomer_meanwhile": _newcomer(scene, daemon, plan),
    }  # fmt: skip
    found["cleared_with_all_lingering_s"] = cleared(daemon, plan.linger_s)
    for loop in neighbours:
        loop.stop()
    leave(tenant.client for tenant in crew[1:])
    for tenant in crew[1:]:
        tenant.client.close()
    found["cleared_with_culprit_lingering_s"] = cleared(daemon, plan.linger_s)
    found["fault_s"] = round(time.monotonic() - begun, 2)
    crew[0].client.kill()
    crew[0].client.close()
    ended = time.monotonic()
    found["cleared_after_all_ended_s"] = cleared(daemon, plan.target_s)
    found["newcomer_afterwards"] = _served_within(scene, daemon, plan, ended)
    found["served_again_s"] = round(time.monotonic() - ended, 2)
    return found


def _newcomer(scene: Scene, daemon: MpsDaemon, plan: Plan) -> str:
    """What a new client gets; it does not stay."""
    tenant = scene.start(scene.environment(daemon))
    why = refused(tenant.client, plan.newcomer_s)
    why = turn(tenant.client, plan.command).wrong if why is None else why
    tenant.client.kill()
    tenant.client.close()
    return why or "served"


def _served_within(scene: Scene, daemon: MpsDaemon, plan: Plan, since: float) -> str:
    """Try until a new client is served or the target has passed."""
    while (found := _newcomer(scene, daemon, plan)) != "served" and time.monotonic() - since < plan.target_s:
        time.sleep(0.1)
    return found


def cleared(daemon: MpsDaemon, seconds: float) -> float | None:
    """How long until no server says FAULT; ``None`` where one still does then."""
    took = until(lambda: FAULT not in statuses(daemon).values(), seconds, 0.1)
    return None if took is None else round(took, 2)


def judge_episodes(plan: Plan, alone: dict[str, Any], watched: dict[str, Any]) -> Result:
    """The vendor's promise decides; what our enforcer changes is said beside it."""
    wrong_: list[str] = []
    for name, found in (("unwatched", alone), ("watched", watched)):
        if found["culprit"] == "no error":
            raise NotMeasurable("the illegal access was not noticed by CUDA")
        if found["bystander"] != "unhurt":
            wrong_.append(f"{name}: a process that is no MPS client was hurt: {found['bystander']}")
        if found["newcomer_afterwards"] != "served" or found["served_again_s"] > plan.target_s + plan.newcomer_s:
            wrong_.append(f"{name}: not served again after all had ended: {found['newcomer_afterwards']}")
        if found["ended_by_enforcer"]:
            wrong_.append(f"{name}: our enforcer ended {found['ended_by_enforcer']} that were within their quota")
    unhurt = alone["neighbours"].count("unhurt")
    if unhurt:
        wrong_.append(f"{unhurt} of {len(alone['neighbours'])} neighbours were not hurt: faults are contained here")
    left = [_lingering(found["cleared_with_culprit_lingering_s"], plan) for found in (alone, watched)]
    said = (
        f"all {len(alone['neighbours'])} neighbours hurt; with a client that will not leave the server is {left[0]}, "
        f"with our enforcer {left[1]}; served {alone['served_again_s']:g} s after the last had ended"
    )
    return judged(wrong_, said, unwatched=alone, watched=watched)


def _lingering(clears: float | None, plan: Plan) -> str:
    return f"still in FAULT after {plan.linger_s:g} s" if clears is None else f"clear after {clears:g} s"
