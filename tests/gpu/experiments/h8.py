"""H8: how many clients an MPS server takes, what the next one gets, and who serves a client of another user."""

import time
from dataclasses import dataclass
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from gpushare.contract import MAX_CLIENTS
from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.loops import turn
from tests.gpu.experiments.scene import Scene, Tenant, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import Client
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

NOBODY = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Clients are started ``wave`` at a time, until one is refused or ``most`` are there."""

    most: int = MAX_CLIENTS + 4
    wave: int = 8
    wait_s: float = 20.0
    queue_s: float = 8.0
    """So long a client of another user is watched."""
    command: str = "gemm 256 2"


PLANS = {"real": Plan(), "fake": Plan(wave=13, wait_s=6.0, queue_s=1.0, command="gemm 32 1")}


@experiment(
    "H8",
    title="Clients and users one server takes",
    hypothesis=f"An MPS server takes {MAX_CLIENTS} clients; the next one gets an error at once, the others go on; a "
    "client of another user is served beside them, and by a single-user server gets nothing while they are there",
    needs=("mps", "root"),
    limit_s=90,
    order=700,
)
def h8(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Fill a server up, look at who is in, then let another user come."""
    with Scene(backend) as scene:
        daemon = scene.daemon()
        inside, outside = _fill(scene, scene.environment(daemon), plan)
        if not inside:
            raise NotMeasurable(f"no MPS client was served: {outside}")
        well = [turn(tenant.client, plan.command).wrong or "well" for tenant in inside]
    with Scene(backend) as scene:
        other = _other_user(scene, plan, scene.daemon(name="users"))
    with Scene(backend) as scene:
        single = _other_user(scene, plan, scene.daemon(name="user", single_user=True))
    return judge_clients(inside, outside, well, other, single)


def _fill(scene: Scene, env: dict[str, str], plan: Plan) -> tuple[list[Tenant], list[str]]:
    """Those that were served, and what the others got and after how many seconds."""
    inside: list[Tenant] = []
    outside: list[str] = []
    while not outside and len(inside) < plan.most:
        wave = [scene.start(env) for _ in range(min(plan.wave, plan.most - len(inside)))]
        for tenant in wave:
            begun = time.monotonic()
            why = refused(tenant.client, plan.wait_s)
            if why is None:
                inside.append(tenant)
            else:
                outside.append(why if time.monotonic() - begun < plan.wait_s else f"waiting: {why}")
                tenant.client.kill()
    return inside, outside


def _other_user(scene: Scene, plan: Plan, daemon: MpsDaemon) -> dict[str, Any]:
    """One client of ours and one of another user: what it gets meanwhile, and once ours is gone."""
    first = scene.tenant(scene.environment(daemon))
    second = scene.start(scene.environment(daemon), uid=NOBODY)
    meanwhile = refused(second.client, plan.queue_s)
    first.client.close()
    begun = time.monotonic()
    after = _later(second.client, plan) if meanwhile is not None else None
    return {
        "meanwhile": meanwhile or "served", "afterwards": after or "served",
        "served_after_s": round(time.monotonic() - begun, 2), "first_user": spread([first.client.hello["context_ms"]]),
    }  # fmt: skip


def _later(client: Client, plan: Plan) -> str | None:
    return refused(client, plan.wait_s) if client.alive else "it had ended with an error"


def judge_clients(
    inside: list[Tenant], outside: list[str], well: list[str], other: dict[str, Any], single: dict[str, Any]
) -> Result:
    """Put the numbers beside what the product promises to the scheduler."""
    hurt = [each for each in well if each != "well"]
    hung = [each for each in outside if each.startswith("waiting")]
    wrong: list[str] = []
    if len(inside) != MAX_CLIENTS:
        wrong.append(f"{len(inside)} clients were served, {MAX_CLIENTS} were expected")
    if hung:
        wrong.append(f"{len(hung)} of those too many were left waiting")
    if hurt:
        wrong.append(f"{len(hurt)} of those inside were hurt: {hurt[0]}")
    if other["meanwhile"] != "served":
        wrong.append(f"a client of another user was not served beside the first: {other['meanwhile']}")
    if single["meanwhile"] == "served":
        wrong.append("a client of another user was served beside the first by a single-user server")
    right = (
        f"{len(inside)} served, the next got {outside[0] if outside else 'nothing'}; another user: "
        f"{other['meanwhile']}, by a single-user server: {single['meanwhile']}"
    )
    context = spread([tenant.client.hello["context_ms"] for tenant in inside])
    return judged(
        wrong, right, served=len(inside), refused=outside, hurt=hurt, other_user=other, single_user=single,
        context_ms=context,
    )  # fmt: skip
