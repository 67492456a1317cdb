"""H13: a short soak. Tenants come, go, grow, shrink and run over; our enforcer must end exactly those who are over."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from enforcer.detection.types import DetectorConfig
from enforcer.mps.daemon import MpsDaemon
from tests.gpu.experiments.figures import spread
from tests.gpu.experiments.guard import MANY, RULES, Guard, ended_pids
from tests.gpu.experiments.h4 import statuses
from tests.gpu.experiments.loops import asked, turn, until, wrong
from tests.gpu.experiments.scene import Scene, Tenant, held_mib, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

ATTEMPTS = 3
EAGER = DetectorConfig(kills=MANY, cool_down=0.5, kill_interval=0.5)
"""A look that fails while acting puts the next attempt off by the cool-down: longer than the smallest plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``share_mib`` is what a tenant may have beside its context; one step in ``over_one_in`` takes more than that."""

    seconds: float = 40.0
    tenants: int = 6
    share_mib: int = 1024
    poll: float = 0.5
    late_s: float = 6.0
    over_one_in: int = 12
    command: str = "gemm 256 5"
    rules: DetectorConfig = RULES
    seed: int = 13


PLANS = {
    "real": Plan(),
    "fake": Plan(seconds=2.0, tenants=3, share_mib=512, poll=0.1, command="gemm 32 1", over_one_in=6, rules=EAGER),
}


@dataclass(slots=True)
class Member:
    """A tenant and what it holds by its own account; ``over`` since when it holds too much."""

    tenant: Tenant
    quota_mib: int
    ceiling_mib: int
    base_mib: int
    held: dict[int, int] = field(default_factory=dict)
    over: float | None = None


@dataclass(slots=True)
class Tally:
    """What happened. ``wrong``: ended or hurt though within its quota; ``late``: over and not ended in time."""

    steps: int = 0
    left: int = 0
    over: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)
    """What our enforcer says came of its decisions."""


@experiment(
    "H13",
    title="Short soak",
    hypothesis="While tenants come, go, grow, shrink and run over their quotas at random, our enforcer ends all who "
    "are over in time and nobody else, the audit log verifies, and the MPS server stays ACTIVE",
    limit_s=100,
    order=650,
)
def h13(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """One thread does all that tenants do, so that what each holds is known for certain."""
    with Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        guard = scene.guard(daemon, poll=plan.poll, rules=plan.rules)
        soak = Soak(scene, guard, daemon, plan)
        tally = soak.run()
        until(lambda: len(guard.records("OUTCOME")) >= len(guard.records("INTENT")), 5.0)
        ended = ended_pids(guard.records("OUTCOME"))
        tally.wrong += [f"pid {pid} was ended within its quota" for pid in sorted(ended - tally.over)]
        results = Counter(str(record["result"]) for kind in ("OUTCOME", "ABORTED") for record in guard.records(kind))
        tally.results = dict(results)
        status = {} if daemon is None else statuses(daemon)
        return judge_soak(tally, len(ended), status, verified=guard.verified(), attribution=guard.members.kind)


@dataclass(slots=True)
class Soak:
    """Tenants and their moves; one that is gone is followed by a new one in another container."""

    scene: Scene
    guard: Guard
    daemon: MpsDaemon | None
    plan: Plan
    tally: Tally = field(default_factory=Tally)
    members: list[Member] = field(default_factory=list)

    def run(self) -> Tally:
        """Go on for the plan's time. Raises ``NotMeasurable`` where nothing could be put to the test."""
        dice = random.Random(self.plan.seed)
        self.members = [self._newcomer() for _ in range(self.plan.tenants)]
        self._allow()
        self.guard.start()
        end = time.monotonic() + self.plan.seconds
        try:
            while time.monotonic() < end:
                self.members = [self._step(member, dice) for member in self.members]
                self._allow()
        except NotMeasurable as error:
            if not self.tally.over:
                raise
            self.tally.wrong.append(str(error))
        for member in self.members:
            _await_end(member, self.plan, self.tally)
        return self.tally

    def _allow(self) -> None:
        self.guard.quotas[:] = [each.tenant.quota(self.scene.backend.gpu, each.quota_mib) for each in self.members]

    def _newcomer(self) -> Member:
        """A tenant whose quota is its share and what its context takes, as NVML shows it."""
        why = ""
        for _ in range(ATTEMPTS):
            tenant = self.scene.start(self.scene.environment(self.daemon), self.guard)
            why = refused(tenant.client) or wrong(asked(tenant.client, "alloc 1")) or ""
            why = why or turn(tenant.client, self.plan.command).wrong or ""
            if not why:
                return self._settled(tenant)
            self.tally.wrong.append(f"pid {tenant.pid}, a newcomer: {why}")
            tenant.client.close()
        raise NotMeasurable(f"no new tenant was served any more: {why}")

    def _settled(self, tenant: Tenant) -> Member:
        base = held_mib(self.scene.backend, tenant.pid)
        if base is None:
            raise NotMeasurable("NVML does not show our own processes here, so the enforcer would be blind")
        quota = tenant.quota(self.scene.backend.gpu, base + self.plan.share_mib)
        return Member(tenant, quota.memory_mib, quota.ceiling_mib, base)

    def _step(self, member: Member, dice: random.Random) -> Member:
        """Let a tenant do one thing; returns it, or who came in its place."""
        self.tally.steps += 1
        if member.over is not None:
            _await_end(member, self.plan, self.tally)
            return self._newcomer()
        if dice.randrange(self.plan.over_one_in) == 0:
            _run_over(member, self.plan, self.tally)
            return member
        if dice.randrange(self.plan.over_one_in) == 0:
            self.tally.left += 1
            member.tenant.client.close()
            return self._newcomer()
        if (why := _within(member, self.plan, dice)) is None:
            return member
        self.tally.wrong.append(f"pid {member.tenant.pid} within its quota: {why}")
        member.tenant.client.close()
        return self._newcomer()


def _within(member: Member, plan: Plan, dice: random.Random) -> str | None:
    """Compute, take, or give back, and stay within the share; what went wrong."""
    client, room = member.tenant.client, plan.share_mib - sum(member.held.values())
    what = dice.choice(("compute", "take", "give"))
    if what == "take" and room >= 1:
        mib = dice.randint(1, room)
        answer = asked(client, f"alloc {mib}")
        if "id" in answer:
            member.held[answer["id"]] = mib
        return wrong(answer)
    if what == "give" and member.held:
        number = dice.choice(list(member.held))
        del member.held[number]
        return wrong(asked(client, f"free {number}"))
    return turn(client, plan.command).wrong


def _run_over(member: Member, plan: Plan, tally: Tally) -> None:
    """Take more than quota and tolerance; from the moment it is asked for it may be ended at any time."""
    tally.over.add(member.tenant.pid)
    excess = member.ceiling_mib - member.base_mib - sum(member.held.values()) + plan.share_mib // 2
    member.over = time.monotonic()
    asked(member.tenant.client, f"alloc {max(1, excess)}")


def _await_end(member: Member, plan: Plan, tally: Tally) -> None:
    """Wait until one who is over has been ended, or say that it was not in time; one who is not is closed."""
    client = member.tenant.client
    if member.over is not None:
        left = plan.late_s - (time.monotonic() - member.over)
        if until(lambda: not client.alive, max(0.0, left)) is None:
            tally.late.append(member.tenant.pid)
        else:
            tally.ended_s.append(time.monotonic() - member.over)
    client.close()


def judge_soak(tally: Tally, ended: int, servers: dict[str, str], *, verified: bool, attribution: str) -> Result:
    """All invariants at once."""
    if not tally.over:
        raise NotMeasurable("nobody ran over its quota, so nothing was put to the test; run it longer")
    wrong_ = tally.wrong[:5]
    if tally.late:
        wrong_.append(
            f"{len(tally.late)} of {len(tally.over)} who were over were not ended in time; results {tally.results}"
        )
    if not verified:
        wrong_.append("the audit log does not verify")
    if not set(servers.values()) <= {"ACTIVE", "unknown"}:
        wrong_.append(f"the MPS server is not well at the end: {servers}")
    kills = {
        "over": len(tally.over),
        "ended": ended,
        "late": len(tally.late),
        "wrong": tally.wrong,
        "results": tally.results,
    }
    said = f"{tally.steps} steps, {len(tally.over)} ran over and {ended} were ended, {tally.left} left by themselves"
    return judged(
        wrong_, f"{said}; no wrong kill", steps=tally.steps, kills=kills, left=tally.left,
        ended_s=spread(tally.ended_s), servers=servers, log_verifies=verified, attribution=attribution,
    )  # fmt: skip
