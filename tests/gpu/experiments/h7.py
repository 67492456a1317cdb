"""H7: can a plain CUDA process take a card in EXCLUSIVE_PROCESS before the MPS server does?"""

import os
import time
from dataclasses import dataclass
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.protocol import start_server
from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.h4 import servers
from tests.gpu.experiments.loops import until
from tests.gpu.experiments.scene import Scene, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``trials`` without a server, ``eager`` with one that was started before anybody came."""

    trials: int = 3
    eager: int = 10
    wait_s: float = 15.0
    short_s: float = 5.0


PLANS = {"real": Plan(), "fake": Plan(trials=1, eager=2, wait_s=3.0, short_s=1.5)}


@experiment(
    "H7",
    title="Lock-out by a plain CUDA process",
    hypothesis="Once an MPS server was started before the first client, no plain CUDA process can take a card in "
    "EXCLUSIVE_PROCESS, and MPS clients are served",
    needs=("mps", "mode-change"),
    limit_s=120,
    order=800,
)
def h7(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Let plain processes try, first at a card whose server has not started yet, then at one whose has."""
    with Scene(backend) as scene:
        daemon = scene.daemon(exclusive=True, name="late")
        late = [_late(scene, daemon, plan) for _ in range(plan.trials)]
    with Scene(backend) as scene:
        daemon = scene.daemon(exclusive=True, name="eager")
        asked_at = time.monotonic()
        daemon.control.ask(start_server(os.getuid()))
        if until(lambda: bool(servers(daemon)), plan.wait_s) is None:
            raise NotMeasurable("start_server started no server")
        started = round(time.monotonic() - asked_at, 3)
        eager = [_plain(scene, plan) for _ in range(plan.eager)]
        served = _mps(scene, daemon, plan.wait_s)
    return judge_trials(late, eager, served, {"server_start_s": started})


def _plain(scene: Scene, plan: Plan) -> str:
    """What a process without MPS gets; it does not stay."""
    tenant = scene.start(scene.environment(None))
    why = refused(tenant.client, plan.wait_s)
    tenant.client.close()
    return why or "the card"


def _mps(scene: Scene, daemon: MpsDaemon, seconds: float) -> str:
    """What an MPS client gets; it does not stay."""
    tenant = scene.start(scene.environment(daemon))
    why = refused(tenant.client, seconds)
    tenant.client.kill()
    tenant.client.close()
    return why or "served"


def _late(scene: Scene, daemon: MpsDaemon, plan: Plan) -> dict[str, Any]:
    """A plain process comes first, then a client; when it goes, how long until clients are served?"""
    intruder = scene.start(scene.environment(None))
    why = refused(intruder.client, plan.wait_s)
    meanwhile = _mps(scene, daemon, plan.short_s)
    intruder.client.close()
    gone = time.monotonic()
    while (after := _mps(scene, daemon, plan.wait_s)) != "served" and time.monotonic() - gone < plan.wait_s:
        time.sleep(0.2)
    for server in servers(daemon):
        # The next trial, too, begins without a server.
        daemon.control.ask(f"shutdown_server {server} -f")
    until(lambda: not servers(daemon), plan.short_s)
    return {
        "plain": why or "the card", "client_meanwhile": meanwhile, "client_afterwards": after,
        "served_again_s": round(time.monotonic() - gone, 3),
    }  # fmt: skip


def judge_trials(late: list[dict[str, Any]], eager: list[str], served: str, figures: dict[str, Any]) -> Result:
    """Say whether the eager server keeps the card; what happens without is there to compare with."""
    taken = sum(each == "the card" for each in eager)
    wrong = (
        [f"with a server already there a plain process took the card {taken} of {len(eager)} times"] if taken else []
    )
    if served != "served":
        wrong.append(f"an MPS client was not served: {served}")
    lost = sum(each["plain"] == "the card" for each in late)
    compared = f"without one it took it {lost} of {len(late)} times"
    times = spread([each["served_again_s"] for each in late])
    return judged(
        [*wrong, compared] if wrong else [], f"refused {len(eager)} of {len(eager)} times; {compared}", late=late,
        eager=eager, client_beside=served, served_again_s=times, **figures,
    )  # fmt: skip
