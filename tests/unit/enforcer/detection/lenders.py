"""A GPU in simulation whose device hands out memory as asked: shares that grow, borrowers, arrivals, slow kills."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.detection.close_look import SECONDS as CLOSE
from enforcer.detection.close_look import gpus_to_watch
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.lending import LEAST_MIB, needed_mib, reclaim, unreturned_mib
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision
from enforcer.quota.types import Quota
from tests.unit.enforcer.made import GPU, holder, quota

POLL: Final = 0.5
TICK: Final = 0.02
FAST: Final = 200e9 / 2**20
"""MiB in a second, as an H100 hands out memory at most."""
RULES: Final = DetectorConfig()
NEVER: Final = float("inf")


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One pod of one container.

    It wants ``wants`` MiB from ``starts`` on and grows by ``rate`` MiB in a second; ``obeys``: seconds after a notice
    in which it gives back all that it borrowed. A kill takes ``dies`` seconds.
    """

    number: int
    memory_mib: int
    limit_mib: int | None = None
    wants: int = 0
    rate: float = FAST
    starts: float = 0.0
    obeys: float = NEVER
    dies: float = 0.2
    held: float = 0.0
    up: bool = False
    ending: bool = False
    lives: int = 0
    told: float | None = None
    looks: float = 0.0
    asked: float | None = None
    """When Prepare was asked for it; ``None``: it was there from the start."""
    ready: float | None = None

    @property
    def uid(self) -> str:
        return f"pod-{self.number}"

    @property
    def is_prepared(self) -> bool:
        """Whether its memory is promised to it: from then on it has to be there."""
        return self.asked is None or self.ready is not None

    @property
    def goal(self) -> int:
        return min(self.wants, max(self.memory_mib, self.limit_mib or 0))

    def quota(self) -> Quota:
        up = f"{self.number:064x}" if self.up else None
        return quota(
            container_id=up, pod=self.uid, pod_uid=self.uid, container=f"c{self.number}", memory_mib=self.memory_mib,
            limit_mib=self.limit_mib, tolerance_mib=None,
        )  # fmt: skip


@dataclass
class Card:
    """What the enforcer makes of these tenants on one GPU. ``lost``: which part of the regular samples is lost."""

    tenants: list[Tenant]
    total_mib: int
    seed: int = 1
    lost: float = 0.05
    now: float = 1000.0
    state: DetectorState = field(default_factory=DetectorState)
    decisions: list[tuple[float, KillDecision]] = field(default_factory=list)
    refused: list[tuple[float, Tenant]] = field(default_factory=list)
    """Within their reservation, by the device."""
    wronged: list[KillDecision] = field(default_factory=list)
    """Told or killed within their reservation."""
    least_mib: float = NEVER
    """Free beyond what running shares reserved and do not hold, at any tick."""
    longest_short: float = 0.0
    """Seconds for which that was below 0 at a time."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._ending: list[tuple[float, Tenant, KillDecision]] = []
        self._broken: float | None = None
        self._was_lost = False

    @property
    def free(self) -> float:
        return self.total_mib - sum(each.held for each in self.tenants)

    def run(self, seconds: float) -> None:
        until, sample = self.now + seconds, self.now
        while self.now < until:
            self.now += TICK
            self._prepare()
            self._end()
            self._grow()
            self._measure()
            if self.now >= sample:
                sample = self._sample()

    def _prepare(self) -> None:
        """Let who arrived start once its memory is there, as ``Driver.prepare`` does."""
        for each in self.tenants:
            if each.up or each.starts > self.now or each.ending:
                continue
            if each.asked is None or each.ready is not None or self._has_room(each):
                each.up, each.ready = True, self.now if each.ready is None else each.ready

    def _has_room(self, tenant: Tenant) -> bool:
        if self.now < tenant.looks:
            return False
        tenant.looks = self.now + POLL
        later = {each.uid for each in self._here() if not each.is_prepared and each.starts > tenant.starts}
        return not unreturned_mib([each.quota() for each in self._here()], self._reading(), int(self.free), later)

    def _here(self) -> list[Tenant]:
        return [each for each in self.tenants if each.is_prepared or each.starts <= self.now]

    def _grow(self) -> None:
        for each in self.tenants:
            if each.told is not None and not each.ending and self.now - each.told >= each.obeys:
                each.held, each.wants = min(each.held, each.memory_mib), each.memory_mib
        growing = [each for each in self.tenants if each.up and not each.ending and each.held < each.goal]
        self.chance.shuffle(growing)
        for each in growing:
            step, free = min(each.rate * TICK, each.goal - each.held), max(0.0, self.free)
            inside = min(step, each.memory_mib - each.held)
            if inside > free:
                self.refused.append((self.now, each))
            each.held += min(step, free)

    def _measure(self) -> None:
        spare = self.total_mib - sum(max(each.memory_mib * each.is_prepared, each.held) for each in self.tenants)
        self.least_mib = min(self.least_mib, spare)
        if spare >= 0:
            self._broken = None
            return
        self._broken = self.now if self._broken is None else self._broken
        self.longest_short = max(self.longest_short, self.now - self._broken)

    def _reading(self) -> dict[str, tuple[ProcessUsage, ...]]:
        return {
            f"{each.number:064x}": (holder(each.number + 1, int(each.held), f"{each.number:064x}", each.uid),)
            for each in self.tenants
            if each.held >= 1
        }

    def _sample(self) -> float:
        """Take one sample; returns when the next is due."""
        usual, quotas = POLL * self.chance.uniform(0.5, 1.5), [each.quota() for each in self._here()]
        self._was_lost = not self._was_lost and self.chance.random() < self.lost
        if not self._was_lost:
            self._evaluate(quotas)
        return self.now + (CLOSE if gpus_to_watch(self.state, quotas, self.now, usual, RULES) else usual)

    def _evaluate(self, quotas: Sequence[Quota]) -> None:
        readings, waiting = {GPU: self._reading()}, {each.uid for each in self._here() if not each.is_prepared}
        self.state, found = evaluate(self.state, quotas, readings, self.now, RULES, gpu_mib={GPU: self.total_mib})
        self.state, more = reclaim(self.state, quotas, readings, {GPU: int(self.free)}, waiting, self.now, RULES)
        for decision in (*found, *more):
            self.decisions.append((self.now, decision))
            (tenant,) = [each for each in self.tenants if f"c{each.number}" == decision.quota.container]
            if decision.decision in {Decision.RECLAIM_NOTICE, Decision.KILL} and tenant.held <= tenant.memory_mib:
                self.wronged.append(decision)
            if decision.decision is Decision.RECLAIM_NOTICE:
                tenant.told = self.now
            if decision.decision is Decision.KILL:
                tenant.ending = True
                self._ending.append((self.now + tenant.dies, tenant, decision))

    def _end(self) -> None:
        for ended in [each for each in self._ending if each[0] <= self.now]:
            self._ending.remove(ended)
            _, tenant, decision = ended
            tenant.held, tenant.up, tenant.ending, tenant.told = 0.0, False, False, None
            tenant.lives += 1
            tenant.starts = self.now + (1.0 if tenant.lives == 1 else min(300.0, 10.0 * 2 ** (tenant.lives - 2)))
            self.state = record_kill_result(
                self.state, decision.quota, self.now, RULES, acted=True, reclaimed=decision.reclaim_mib > 0
            )

    def missing(self) -> int:
        """MiB to the line below which borrowers are killed at once."""
        return needed_mib([each.quota() for each in self._here()], self._reading()) + LEAST_MIB - int(self.free)
