"""H4: who is hurt when one of eight MPS clients is taken away in the middle of its work."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from enforcer.mps.daemon import MpsDaemon
from gpushare.errors import MpsError
from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.guard import Guard
from tests.gpu.experiments.loops import Loop, asked, settle, until, wrong
from tests.gpu.experiments.scene import Scene, Tenant, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

START_S = 20.0
ATTEMPTS = 3
SIGKILL, LADDER = "SIGKILL alone", "terminate_client, SIGTERM, SIGKILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``trials`` of each way. A neighbour that gives no right answer within ``watch_s`` counts as hurt."""

    trials: int = 20
    clients: int = 8
    command: str = "gemm 1024 20"
    mib: int = 256
    pause_s: float = 0.0
    watch_s: float = 8.0
    within_s: float = 0.3
    """The kill comes at a random moment of this length."""
    budget_s: float = 110.0
    """No trial is begun after that: what was measured so far counts."""


PLANS = {
    "real": Plan(),
    "fake": Plan(trials=1, clients=4, command="gemm 64 2", mib=64, pause_s=0.01, watch_s=2.0, within_s=0.05),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one kill did. ``hurt``: by neighbour what went wrong; ``servers``: pid to status afterwards."""

    way: str
    hurt: list[str]
    servers: dict[str, str]
    same_server: bool
    gone_s: float | None
    recovery_s: float | None
    longest_s: float | None = None
    """The longest that a neighbour's computation took meanwhile."""
    ended: bool = True

    @property
    def harmless(self) -> bool:
        well = set(self.servers.values()) <= {"ACTIVE", "unknown"}
        return self.ended and not self.hurt and self.same_server and well and self.recovery_s is not None


@dataclass(slots=True)
class Crew:
    """Clients that all compute; who falls out is replaced before the next trial."""

    scene: Scene
    daemon: MpsDaemon
    guard: Guard
    plan: Plan
    members: list[tuple[Tenant, Loop]] = field(default_factory=list)

    def refill(self) -> bool:
        """Have as many as there should be, all computing rightly. False where that cannot be had."""
        for _ in range(ATTEMPTS):
            for hurt in [member for member in self.members if member[1].wrong]:
                self._drop(hurt)
                self.members.remove(hurt)
            fresh = (self._one() for _ in range(self.plan.clients - len(self.members)))
            self.members += [member for member in fresh if member is not None]
            if len(self.members) == self.plan.clients and settle((each[1] for each in self.members), self.plan.watch_s):
                return True
        return False

    def _one(self) -> tuple[Tenant, Loop] | None:
        tenant = self.scene.start(self.scene.environment(self.daemon), self.guard)
        if refused(tenant.client, START_S) or wrong(asked(tenant.client, f"alloc {self.plan.mib}")):
            tenant.client.kill()
            tenant.client.close()
            return None
        return tenant, self.scene.loop(tenant, self.plan.command, self.plan.pause_s)

    def remove(self, way: str) -> Trial:
        """Take one away, put a new one in its place, and look at the others."""
        victim = self.members.pop(random.randrange(len(self.members)))
        before = servers(self.daemon)
        time.sleep(random.uniform(0, self.plan.within_s))
        begun = time.monotonic()
        ended = self._end(victim[0], way)
        gone = until(lambda: not is_client(self.daemon, victim[0].pid), self.plan.watch_s)
        since, newcomer = time.monotonic(), self._one()
        well = newcomer is not None and settle([newcomer[1]], self.plan.watch_s)
        recovery = newcomer[1].turns[0].at - begun if newcomer is not None and well else None
        longest = self._longest(begun)
        hurt = self._hurt(since)
        self._drop(victim)
        if newcomer is not None:
            self.members.append(newcomer)
        return Trial(
            way=way, hurt=hurt, servers=statuses(self.daemon), same_server=servers(self.daemon) == before, gone_s=gone,
            recovery_s=recovery, longest_s=longest, ended=ended,
        )  # fmt: skip

    def _end(self, victim: Tenant, way: str) -> bool:
        if way == SIGKILL:
            victim.client.kill()
        else:
            self.guard.end_now(victim.quota(self.daemon.gpu, 0, tolerance_mib=0), victim.pid)
        return until(lambda: not victim.client.alive, self.plan.watch_s) is not None

    def _longest(self, since: float) -> float | None:
        turns = [turn.seconds for _, loop in self.members for turn in list(loop.turns) if turn.at > since]
        return max(turns, default=None)

    def _hurt(self, since: float) -> list[str]:
        """What is wrong with neighbours; those who give no right answer in time are hung. All of them are dropped."""
        loops = [loop for _, loop in self.members]
        until(lambda: all(loop.right_since(since) or loop.wrong for loop in loops), self.plan.watch_s)
        hurt = [each for each in self.members if not each[1].right_since(since)]
        for each in hurt:
            self._drop(each)
        self.members = [each for each in self.members if each not in hurt]
        return [loop.wrong or "hung" for _, loop in hurt]

    def _drop(self, member: tuple[Tenant, Loop]) -> None:
        tenant, loop = member
        tenant.client.kill()
        loop.stop()
        tenant.client.close()


def servers(daemon: MpsDaemon) -> tuple[int, ...]:
    """Pids of the servers; none where nobody answers."""
    try:
        return daemon.servers()
    except MpsError:
        return ()


def statuses(daemon: MpsDaemon) -> dict[str, str]:
    """What each server says of itself; ``unknown`` where the daemon is too old to say."""
    try:
        found = daemon.health()
    except MpsError as error:
        return {"daemon": error.message}
    return {str(pid): "unknown" if status is None else str(status) for pid, status in found.items()}


def is_client(daemon: MpsDaemon, pid: int) -> bool:
    """Whether a server still counts this process among its clients."""
    try:
        return any(pid in daemon.clients(server) for server in daemon.servers())
    except MpsError:
        return True


@experiment(
    "H4",
    title="Blast radius of a kill",
    hypothesis="Ending one of eight MPS clients in the middle of its work by terminate_client, SIGTERM, SIGKILL hurts "
    "none of its neighbours, every time: all go on with right answers, and the server stays the same and ACTIVE",
    needs=("mps",),
    limit_s=150,
    order=50,
)
def h4(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Take clients away, alternately one way and the other, so that both meet the same conditions."""
    trials: list[Trial] = []
    end, able = time.monotonic() + plan.budget_s, True
    with Scene(backend) as scene:
        daemon = scene.daemon()
        crew = Crew(scene, daemon, scene.guard(daemon), plan)
        while len(trials) < 2 * plan.trials and time.monotonic() < end and (able := crew.refill()):
            trials.append(crew.remove(LADDER if len(trials) % 2 else SIGKILL))
        kind, usual = crew.guard.members.kind, [turn.seconds for loop in scene.loops for turn in loop.turns]
        terminated = crew.guard.journal.took("terminate", "terminated")
    figures: dict[str, Any] = {way: about([trial for trial in trials if trial.way == way]) for way in (SIGKILL, LADDER)}
    figures |= {"clients": plan.clients, "attribution": kind}
    figures |= {"usual_turn_s": spread(usual), "terminate_client_s": spread(terminated)}
    return judge_trials(trials, figures, able=able)


def judge_trials(trials: list[Trial], figures: dict[str, Any], *, able: bool = True) -> Result:
    """Say whether the ladder was harmless each time; SIGKILL alone is there to compare with.

    Args:
        trials: all of them.
        figures: what else is known.
        able: false where the clients could not be brought to compute again after the last.
    """
    ladder = [trial for trial in trials if trial.way == LADDER]
    if not ladder:
        raise NotMeasurable("MPS clients could not be brought to compute side by side")
    bad = [trial for trial in ladder if not trial.harmless]
    plain = [trial for trial in trials if trial.way == SIGKILL]
    compared = f"SIGKILL alone: {sum(not trial.harmless for trial in plain)} of {len(plain)} did harm"
    wrong = [f"{len(bad)} of {len(ladder)} ladders did harm: {_worst(bad[0])}"] if bad else []
    if not able:
        wrong.append(f"after {len(trials)} kills the clients could not be brought to compute again")
    return judged(
        [*wrong, compared] if wrong else [], f"{len(ladder)} of {len(ladder)} harmless; {compared}", **figures
    )


def _worst(trial: Trial) -> str:
    if not trial.ended:
        return "the victim did not end"
    if trial.hurt:
        return f"{len(trial.hurt)} neighbours hurt, such as {trial.hurt[0]}"
    return f"servers afterwards {trial.servers}, {'the same' if trial.same_server else 'another'} server"


def about(trials: list[Trial]) -> dict[str, Any]:
    """Figures of one way."""
    return {
        "trials": len(trials),
        "harmful": sum(not trial.harmless for trial in trials),
        "neighbours_hurt": dict(Counter(why for trial in trials for why in trial.hurt)),
        "server_replaced": sum(not trial.same_server for trial in trials),
        "server_status": dict(Counter(status for trial in trials for status in trial.servers.values())),
        "gone_s": spread([trial.gone_s for trial in trials if trial.gone_s is not None]),
        "neighbours_longest_turn_s": spread([trial.longest_s for trial in trials if trial.longest_s is not None]),
        "recovery_s": spread([trial.recovery_s for trial in trials if trial.recovery_s is not None]),
    }
