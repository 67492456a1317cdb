"""A node in simulation: containers that use GPU memory by a program, the detector, and a kubelet's back-off."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.detection.budget import seconds_to_wait
from enforcer.detection.close_look import SECONDS as CLOSE
from enforcer.detection.close_look import gpus_to_watch
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision, Phase
from enforcer.kill.recheck import Rechecker
from enforcer.quota.types import Quota
from gpushare.reasons import Reason
from tests.support.quotas import in_force
from tests.support.wiring import Usages
from tests.unit.enforcer.made import GPU, holder, quota

POLL: Final = 0.5
STARTED: Final = 1000.0
CARD_MIB: Final = 16_384
NEVER: Final = float("inf")
QUIET: Final = 60.0
"""Seconds between samples at most while nobody can be over quota, where a simulation is coarse."""
RECHECKS: Final = 3
"""Of a kill before its first signal: once pinned, once INTENT is on the disk, once MPS has answered."""
BEFORE: Final = 5.0
"""Seconds of samples at the usual interval before somebody may be."""


class Program(Protocol):
    """What a process does; times are seconds since its start."""

    def usages(self, t: float) -> int:
        """MiB that it wants to hold."""

    def quiet(self, t: float, mib: int) -> float:
        """Seconds in which it surely holds no more than so many MiB."""


@dataclass(frozen=True)
class Cycle:
    """Hold so many MiB for ``on`` seconds of every ``every``, at their end."""

    on: float
    every: float
    mib: int
    otherwise: int = 0

    def usages(self, t: float) -> int:
        return self.mib if t % self.every >= self.every - self.on else self.otherwise

    def quiet(self, t: float, mib: int) -> float:
        if max(self.mib, self.otherwise) <= mib:
            return NEVER
        return 0.0 if self.otherwise > mib else max(0.0, self.every - self.on - t % self.every)


@dataclass(frozen=True)
class Leak:
    """Hold more with each second."""

    start: int
    rate: float = 0.0

    def usages(self, t: float) -> int:
        return self.start + int(t * self.rate)

    def quiet(self, t: float, mib: int) -> float:
        return max(0.0, (mib - self.start) / self.rate - t) if self.rate else NEVER if self.start <= mib else 0.0


@dataclass(frozen=True)
class Until:
    """Hold so many MiB up to a moment, and something else from then on."""

    end: float
    mib: int
    after: int

    def usages(self, t: float) -> int:
        return self.mib if t < self.end else self.after

    def quiet(self, t: float, mib: int) -> float:
        if t < self.end:
            return self.end - t if self.mib <= mib else 0.0
        return NEVER if self.after <= mib else 0.0


@dataclass(slots=True, kw_only=True)
class Pod:
    """One pod of one container.

    ``stubborn``: its processes ignore SIGTERM, which does not help a first process. ``respawns``: a process that is
    killed alone comes again. ``leaves``: a kill is the end of the pod.
    """

    number: int
    program: Program
    namespace: str = "asr"
    memory_mib: int = 512
    starts: float = STARTED
    stubborn: bool = False
    respawns: bool = True
    leaves: bool = False
    lives: int = 0
    kills: int = 0
    grace_seconds: float = 5.0
    grouped: str | None = None
    """Name of the pod that it is one container of; ``None``: of its own."""
    slot: int = 0
    fits: bool = False
    """Whether the card has had room for what it wants beyond its quota."""
    _known: Quota | None = None

    def quota(self, now: float) -> Quota:
        up = f"{self.number:032x}{self.lives:032x}" if self.starts <= now else None
        known = self._known
        if known is None or (known.container_id, known.memory_mib) != (up, self.memory_mib):
            self._known = known = quota(
                container_id=up, pod=self.uid, pod_uid=self.uid, namespace=self.namespace, container=f"c{self.number}",
                memory_mib=self.memory_mib, tolerance_mib=None, grace_seconds=self.grace_seconds,
            )  # fmt: skip
        return known

    @property
    def uid(self) -> str:
        return self.grouped or f"pod-{self.number}"

    def usages(self, now: float) -> int:
        return self.program.usages(now - self.starts) if self.starts <= now else 0

    def quiet(self, now: float) -> float:
        if self.starts > now:
            return self.starts - now
        return self.program.quiet(now - self.starts, self.quota(now).ceiling_mib)

    def ended(self, now: float, *, whole: bool) -> None:
        """Start again: the process at once, the container after the kubelet's back-off."""
        wait, self.fits = 0.1, False
        if whole:
            self.lives += 1
            wait = 1.0 if self.lives == 1 else min(300.0, 10.0 * 2 ** (self.lives - 2))
        self.starts = now + wait if (self.respawns or whole) and not self.leaves else NEVER


@dataclass
class Node:
    """What the detector makes of these pods.

    ``coarse``: samples are far apart while nobody can be over quota. ``before``: decide as before there was a debt.
    """

    pods: list[Pod]
    rules: DetectorConfig = field(default_factory=DetectorConfig)
    seed: int = 1
    now: float = STARTED
    coarse: bool = False
    before: bool = False
    gpu_mib: int = CARD_MIB
    card_mib: float = 0.0
    """What processes may hold together; 0: the GPU's memory."""
    state: DetectorState = field(default_factory=DetectorState)
    decisions: list[tuple[float, KillDecision]] = field(default_factory=list)
    mib_seconds: dict[str, float] = field(default_factory=dict)
    excess: float = 0.0
    """MiB-seconds of all but the victim above the sum of their kill thresholds."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._ending: list[tuple[float, Pod, KillDecision, bool]] = []
        self.card_mib = self.card_mib or self.gpu_mib

    def run(self, seconds: float, each: Callable[[], object] = lambda: None) -> None:
        """Let time pass in samples at random intervals; ``each`` is called before a sample."""
        until = self.now + seconds
        while self.now < until:
            step = min(self._step(), until - self.now + POLL)
            self.now += step
            self._end()
            each()
            self._sample(step)

    def _step(self) -> float:
        usual = POLL * self.chance.uniform(0.5, 1.5)
        if gpus_to_watch(self.state, [pod.quota(self.now) for pod in self.pods], self.now, usual, self.rules):
            return CLOSE
        if not self.coarse or self._ending or any(case.phase is not Phase.WITHIN for case in self.state.cases.values()):
            return usual
        return max(usual, min(QUIET, min(pod.quiet(self.now) for pod in self.pods) - BEFORE))

    def _sample(self, step: float) -> None:
        quotas, usages, beyond = [pod.quota(self.now) for pod in self.pods], {}, 0
        for pod, mib in self._usages():
            if pod.namespace != "victim":
                beyond += mib - pod.quota(self.now).ceiling_mib
            self.mib_seconds[pod.namespace] = self.mib_seconds.get(pod.namespace, 0.0) + mib * step
            container = pod.quota(self.now).container_id
            if container is not None and mib:
                usages[container] = (holder(pod.number + 1, mib, container, pod.uid),)
        self.excess += max(0, beyond) * step
        if self.before:
            self.state = _forgiven(self.state)
        self.state, found = evaluate(
            self.state, quotas, {GPU: usages}, self.now, self.rules, gpu_mib={GPU: self.gpu_mib}
        )
        self.decisions += [(self.now, decision) for decision in found]
        self._kill([decision for decision in found if decision.decision is Decision.KILL])

    def _usages(self) -> Iterator[tuple[Pod, int]]:
        """Give memory beyond quotas to those that have it, then to others, as long as the card has some."""
        left = self.card_mib
        for pod in sorted(self.pods, key=lambda pod: not pod.fits):
            wanted = pod.usages(self.now)
            modest = wanted <= pod.memory_mib
            got = wanted if modest or wanted <= left else int(min(left, pod.memory_mib))
            pod.fits = got == wanted and not modest
            left = max(0, left - got)
            yield pod, got

    def _kill(self, decisions: Sequence[KillDecision]) -> None:
        for decision in decisions:
            (pod,) = [each for each in self.pods if f"c{each.number}" == decision.quota.container]
            seconds, spared = self._rechecked(decision)
            if not spared:
                pod.kills += 1
                seconds += 5.1 if pod.stubborn and not decision.respawns else 0.2
            self._ending.append((self.now + seconds, pod, decision, spared))

    def _rechecked(self, decision: KillDecision) -> tuple[float, bool]:
        """Recheck as the executor does, some milliseconds apart.

        Returns the seconds that it took, and whether a recheck found the container within its quota.
        """
        now, fits = self.now, [pod.fits for pod in self.pods]
        rechecker = _Rechecker(self)
        try:
            spared = any(self._is_back(rechecker, decision) for _ in range(RECHECKS))
            return self.now - now, spared
        finally:
            self.now = now
            for pod, had in zip(self.pods, fits, strict=True):
                pod.fits = had

    def _is_back(self, rechecker: "_Rechecker", decision: KillDecision) -> bool:
        rechecker.wait(self.chance.uniform(0.005, 0.03))
        usages = rechecker.processes(decision.quota, overdrawn=decision.overdrawn)
        return rechecker.reason_to_spare(decision.quota, usages) is Reason.BACK_UNDER_QUOTA

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...]:
        return tuple(holder(pod.number + 1, mib) for pod, mib in self._usages() if f"c{pod.number}" == quota.container)

    def _end(self) -> None:
        for ended in [each for each in self._ending if each[0] <= self.now]:
            self._ending.remove(ended)
            _, pod, decision, spared = ended
            if not spared:
                pod.ended(self.now, whole=decision.respawns)
            self.state = record_kill_result(
                self.state, decision.quota, self.now, self.rules, acted=not spared, back=spared
            )

    def admits(self, namespace: str) -> bool:
        """Ask for a claim, as the kubelet does."""
        return self.before or not seconds_to_wait(self.state.accounts, namespace, self.now)

    def mean(self, namespace: str = "asr") -> float:
        """MiB that a namespace kept on average."""
        return self.mib_seconds.get(namespace, 0.0) / (self.now - STARTED)

    @property
    def gain(self) -> float:
        """MiB that all but the victim kept on average above the sum of their kill thresholds."""
        return self.excess / (self.now - STARTED)

    def kills(self, namespace: str | None = None) -> int:
        kills = [decision.quota for _, decision in self.decisions if decision.decision is Decision.KILL]
        return sum(namespace in {None, quota.namespace} for quota in kills)


class _Rechecker(Rechecker):
    """The executor's, on the node's time."""

    def __init__(self, node: Node) -> None:
        super().__init__(Usages(node.usages_of), in_force())
        object.__setattr__(self, "node", node)

    def wait(self, seconds: float) -> None:
        self.node.now += seconds  # type: ignore[attr-defined] # set past the frozen dataclass


def _forgiven(state: DetectorState) -> DetectorState:
    """Forget what was used by containers that are within their quota: the grace period alone."""
    cases = {
        key: replace(case, used=0.0, samples=0, killed=False) if case.phase is Phase.WITHIN else case
        for key, case in state.cases.items()
    }
    return replace(state, cases=cases, accounts={})


def neighbour(*, over: float = NEVER) -> Pod:
    """A share of another namespace; over quota after so many seconds."""
    return Pod(number=900, program=Until(over, 400, 2000), namespace="victim", respawns=False)


class FreshPods:
    """A tenant that creates a pod every four seconds; see ``Node.run``.

    Its claims wait while the namespace has no budget; the kubelet asks again each second.
    """

    def __init__(self, node: Node, program: Program, every: float = 4.0) -> None:
        self._node, self._program, self._every = node, program, every
        self._waiting: list[Pod] = []
        self._created = 0
        self._asked = STARTED

    def __call__(self) -> None:
        node = self._node
        while self._created * self._every <= node.now - STARTED:
            self._created += 1
            self._waiting.append(Pod(number=self._created, program=self._program, leaves=True))
        node.pods[:] = [pod for pod in node.pods if pod.starts < NEVER and not self._is_over(pod)]
        if node.now - self._asked < 1.0:
            return
        self._asked = node.now
        while self._waiting and self._fits() and node.admits("asr"):
            self._waiting[0].starts = node.now
            node.pods.append(self._waiting.pop(0))

    def _fits(self) -> bool:
        """Whether the scheduler finds room for one more share."""
        return sum(pod.memory_mib for pod in self._node.pods) + self._waiting[0].memory_mib <= CARD_MIB

    def _is_over(self, pod: Pod) -> bool:
        """Whether a pod has ended by itself, and was seen without memory."""
        return isinstance(pod.program, Until) and pod.leaves and self._node.now - pod.starts > pod.program.end + 2
