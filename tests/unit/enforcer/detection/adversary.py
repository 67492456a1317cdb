"""A tenant that splits one attack, and a search for its best way to: random, then hill climbing, both seeded.

It may have several containers, pods and namespaces, come back after a kill or create pods that leave, take turns or
work together, wait, and start together. It sees its kills and nothing else. What it gains is MiB on average above the
kill thresholds of all it has reserved: below those nobody is killed.
"""

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.unit.enforcer.detection.node import NEVER, STARTED, Node, Pod, neighbour

SECONDS: Final = 120.0
NEIGHBOUR_MIB: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to attack.

    ``containers`` have a share each, spread over ``pods`` and ``namespaces``. Each is over quota for ``on`` seconds,
    with ``gap`` seconds to the next one's turn, or all at once where they are ``together``. ``part`` is how much of
    what is free they take. ``fresh``: a killed one is gone, and a new pod comes after ``gap`` seconds instead.
    """

    containers: int = 1
    pods: int = 1
    namespaces: int = 1
    on: float = 4.0
    gap: float = 0.5
    part: float = 1.0
    together: bool = False
    fresh: bool = False
    stubborn: bool = False
    alone: bool = True
    """Whether a process that is killed alone comes again at once."""


@dataclass(frozen=True)
class Turn:
    """Hold so many MiB in one's turn; times are the node's, so that a restart changes no turn."""

    node: Node
    plan: Plan
    number: int
    mib: int
    modest: int

    def usages(self, t: float) -> int:
        plan, now = self.plan, self.node.now - STARTED
        every = plan.on + plan.gap if plan.together else plan.containers * (plan.on + plan.gap)
        begins = 0.0 if plan.together else self.number * (plan.on + plan.gap)
        return self.mib if begins <= now % every < begins + plan.on else self.modest

    def quiet(self, t: float, mib: int) -> float:
        return 0.0


def attack(plan: Plan, share_mib: int, gpu_mib: int, seed: int, grace: float = 5.0) -> float:
    """Return the MiB that a plan gains on average in 120 s; beside it is one honest share."""
    node = Node([neighbour()], seed=seed, gpu_mib=gpu_mib)
    free = gpu_mib - NEIGHBOUR_MIB - plan.containers * share_mib
    wanted = int(plan.part * free / (plan.containers if plan.together else 1))
    made = 0

    def pod(number: int) -> Pod:
        nonlocal made
        made += 1
        space = f"evil-{number % plan.namespaces}"
        alike = number % max(plan.pods, plan.namespaces)
        name = None if plan.fresh else f"{space}-{alike}"
        return Pod(
            number=made, program=Turn(node, plan, number, share_mib + wanted, share_mib), namespace=space,
            memory_mib=share_mib, starts=node.now, stubborn=plan.stubborn, respawns=plan.alone, leaves=plan.fresh,
            grouped=name, slot=number, grace_seconds=grace,
        )  # fmt: skip

    node.pods += [pod(number) for number in range(plan.containers)]
    waiting: dict[int, float] = {}

    def replaced() -> None:
        for each in [each for each in node.pods if each.starts == NEVER and each.namespace != "victim"]:
            node.pods.remove(each)
            waiting[each.slot] = node.now + max(1.0, plan.gap)
        for slot, at in [*waiting.items()]:
            if at <= node.now and node.admits(f"evil-{slot % plan.namespaces}"):
                del waiting[slot]
                node.pods.append(pod(slot))

    node.run(SECONDS, replaced if plan.fresh else tuple)
    return node.gain


KNOWN: Final = (
    Plan(containers=8, on=3.4, gap=0.1),
    Plan(containers=10, pods=9, on=0.45, gap=1.0, alone=False),
    Plan(containers=9, pods=11, namespaces=9, on=0.9, gap=0.0, fresh=True),
    Plan(containers=5, namespaces=5, on=1.2, gap=0.43, part=0.67, fresh=True),
    Plan(containers=4, namespaces=4, on=4.6, gap=0.1, stubborn=True),
    Plan(containers=12, namespaces=12, pods=12, on=0.3, gap=0.3),
    Plan(on=120.0, gap=0.3, fresh=True, stubborn=True),
    Plan(on=1.9, gap=0.3, fresh=True),
    Plan(on=0.9, gap=5.0, fresh=True, stubborn=True),
    Plan(on=4.6, gap=0.3, stubborn=True),
    Plan(containers=6, pods=6, on=120.0, gap=0.0, together=True),
    Plan(on=0.16, gap=0.1),
    Plan(containers=4, on=0.16, gap=0.1),
    Plan(containers=16, pods=16, on=0.16, gap=0.0),
    Plan(containers=4, pods=4, on=0.02, gap=0.003),
)
"""What searches found, against these rules and earlier ones (there up to 13.2 GiB); a search begins with them."""


def best(share_mib: int, gpu_mib: int, seed: int, *, most: int, tries: int, climbs: int) -> tuple[float, Plan]:
    """Search for the plan that gains most with up to so many containers."""
    chance = random.Random(seed)
    most = max(1, min(most, (gpu_mib - NEIGHBOUR_MIB) // share_mib - 1))

    def judged(plan: Plan) -> tuple[float, Plan]:
        return attack(plan, share_mib, gpu_mib, seed), plan

    begins = [replace(plan, containers=min(most, plan.containers)) for plan in KNOWN]
    plans = [replace(plan, namespaces=min(plan.containers, plan.namespaces)) for plan in begins]
    found = max((judged(plan) for plan in (*plans, *(_random(chance, most) for _ in range(tries)))), key=_gain)
    for _ in range(climbs):
        found = max(found, judged(_near(found[1], chance, most)), key=_gain)
    return found


def _gain(judged: tuple[float, Plan]) -> float:
    return judged[0]


def _random(chance: random.Random, most: int) -> Plan:
    containers = chance.choice([most, chance.randint(1, most)])
    return Plan(
        containers=containers, pods=chance.choice([1, containers]),
        namespaces=chance.choice([1, 1, min(containers, 4)]),
        on=chance.choice([0.005, 0.02, 0.06, 0.16, 0.3, 0.9, 1.9, 3.4, 4.6, 8.0, 120.0]),
        gap=chance.choice([0.0, 0.003, 0.1, 0.3, 1.0, 5.0, 20.0]),
        part=chance.choice([1.0, 1.0, 0.5, 0.1]), together=chance.random() < 0.3, fresh=chance.random() < 0.4,
        stubborn=chance.random() < 0.3, alone=chance.random() < 0.7,
    )  # fmt: skip


def _near(plan: Plan, chance: random.Random, most: int) -> Plan:
    changes: tuple[dict[str, Any], ...] = (
        {"containers": min(most, max(1, plan.containers + chance.choice([-2, -1, 1, 2])))},
        {"on": plan.on * chance.uniform(0.5, 1.6)}, {"gap": plan.gap * chance.uniform(0.3, 2.0) + 0.05},
        {"part": min(1.0, plan.part * chance.uniform(0.7, 1.5))}, {"together": not plan.together},
        {"fresh": not plan.fresh}, {"stubborn": not plan.stubborn}, {"alone": not plan.alone},
        {"namespaces": min(plan.containers, max(1, plan.namespaces + chance.choice([-1, 1, 2])))},
        {"pods": chance.choice([1, plan.containers])},
    )  # fmt: skip
    changed = replace(plan, **chance.choice(changes))
    return replace(changed, namespaces=min(changed.namespaces, changed.containers))
