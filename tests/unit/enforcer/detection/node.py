"""A node in simulation: containers that use GPU memory by a program, the detector, and a kubelet's back-off."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from enforcer.detection.detector import judge, settle
from enforcer.detection.types import Decision, Rules, State, Verdict
from enforcer.quota.types import Quota
from tests.unit.enforcer.made import GPU, holder, quota

POLL: Final = 0.5
STARTED: Final = 1000.0
Program = Callable[[float], int]
"""From the seconds since a process started to the MiB that it holds."""


@dataclass(slots=True, kw_only=True)
class Pod:
    """One pod of one container.

    ``stubborn``: its processes ignore SIGTERM, which does not help a first process. ``respawns``: a process that is
    killed alone comes again.
    """

    number: int
    program: Program
    namespace: str = "asr"
    memory_mib: int = 512
    starts: float = STARTED
    stubborn: bool = False
    respawns: bool = True
    lives: int = 0
    kills: int = 0
    grace_seconds: float = 5.0
    _known: Quota | None = None

    def quota(self, now: float) -> Quota:
        up = f"{self.number:032x}{self.lives:032x}" if self.starts <= now else None
        if self._known is None or self._known.container_id != up:
            self._known = quota(
                container_id=up, pod=f"pod-{self.number}", pod_uid=f"pod-{self.number}", namespace=self.namespace,
                memory_mib=self.memory_mib, tolerance_mib=None, grace_seconds=self.grace_seconds,
            )  # fmt: skip
        return self._known

    def held(self, now: float) -> int:
        return self.program(now - self.starts) if self.starts <= now else 0

    def ended(self, now: float, *, whole: bool) -> None:
        """Start again: the process at once, the container after the kubelet's back-off."""
        wait = 0.1
        if whole:
            self.lives += 1
            wait = 1.0 if self.lives == 1 else min(300.0, 10.0 * 2 ** (self.lives - 2))
        self.starts = now + wait if self.respawns or whole else float("inf")


@dataclass
class Node:
    """What the detector makes of these pods."""

    pods: list[Pod]
    rules: Rules = field(default_factory=Rules)
    seed: int = 1
    now: float = STARTED
    state: State = field(default_factory=State)
    said: list[tuple[float, Verdict]] = field(default_factory=list)
    mib_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._ending: list[tuple[float, Pod, Verdict]] = []

    def run(self, seconds: float, arrives: Callable[[float], Sequence[Pod]] = lambda _: ()) -> None:
        """Let time pass in samples at random intervals; ``arrives`` says who is there beside the pods known."""
        until = self.now + seconds
        while self.now < until:
            step = POLL * self.chance.uniform(0.5, 1.5)
            self.now += step
            self._end()
            self.pods += arrives(self.now)
            quotas, held = [pod.quota(self.now) for pod in self.pods], {}
            for pod, each in zip(self.pods, quotas, strict=True):
                mib = pod.held(self.now)
                self.mib_seconds[pod.namespace] = self.mib_seconds.get(pod.namespace, 0.0) + mib * step
                if each.container_id is not None and mib:
                    held[each.container_id] = (holder(pod.number + 1, mib, each.container_id, each.pod_uid),)
            self.state, found = judge(self.state, quotas, {GPU: held}, self.now, self.rules)
            self.said += [(self.now, verdict) for verdict in found]
            self._kill([verdict for verdict in found if verdict.decision is Decision.KILL])

    def _kill(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            (pod,) = [each for each in self.pods if f"pod-{each.number}" == verdict.quota.pod_uid]
            pod.kills += 1
            self._ending.append((self.now + (5.1 if pod.stubborn and not verdict.respawns else 0.2), pod, verdict))

    def _end(self) -> None:
        for ended in [each for each in self._ending if each[0] <= self.now]:
            self._ending.remove(ended)
            _, pod, verdict = ended
            pod.ended(self.now, whole=verdict.respawns)
            self.state = settle(self.state, verdict.quota, self.now, self.rules, acted=True)

    def mean(self, namespace: str = "asr") -> float:
        """MiB that a namespace held on average."""
        return self.mib_seconds.get(namespace, 0.0) / (self.now - STARTED)

    def kills(self, namespace: str | None = None) -> int:
        return sum(pod.kills for pod in self.pods if namespace in {None, pod.namespace})


def neighbour(*, over: float = float("inf")) -> Pod:
    """A share of another namespace; over quota after so many seconds."""
    return Pod(number=900, program=lambda t: 9000 if t >= over else 400, namespace="victim", respawns=False)


def without_debt(rules: Rules) -> Rules:
    """The grace period alone."""
    return replace(rules, debt=replace(rules.debt, credit=float("inf"), memory=0.0))
