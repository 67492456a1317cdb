"""The main job: a thousand shares against a thousand claims written by hand, in turn, and what is placed of them."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.integration.controlplane.bed import PODS, Bed
from tests.load.scale.calls import writes
from tests.load.scale.cpu import between, spent
from tests.load.scale.figures import Figure, at_most, none_of
from tests.load.scale.fleet import Arm, check_templates, clear, create_all, judge, namespaces, pod, stored
from tests.load.scale.ledger import Ledger
from tests.load.scale.loads import Size, asks_too_much, mixed, must_all_fit
from tests.load.scale.watching import watched

NAMESPACES: Final = 4
PATIENCE: Final = 600.0
QUIET_SECONDS: Final = 5.0
MOST_RATIO: Final = 1.2
GPU_MIB: Final = 16384
"""Of the machine ``quad-16g``, after what its driver and MPS take."""
PER_NODE: Final = 4
MACHINE: Final = "quad-16g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One arm's run: seconds from the first create to the last create's answer and to the last pod bound."""

    arm: Arm
    pods: int
    creating: float
    seconds: float
    cpu: Mapping[str, float]
    """Seconds of processor time that each program spent until the last pod was bound."""
    writes: Mapping[str, int]
    """What the API server was asked to write until then, by resource."""
    problems: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Pods bound in a second."""
        return self.pods / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Pods that were created: their ledger and namespaces, and how all stood right before the first."""

    ledger: Ledger
    spaces: list[str]
    started: float
    cpu: Mapping[str, float]
    writes: Counter[str]


@contextmanager
def asked(bed: Bed, arm: Arm, tag: str, sizes: Sequence[Size], of: str) -> Iterator[Asked]:
    """Create all pods; delete them in the end."""
    spaces = namespaces(bed, arm, NAMESPACES, sizes)
    with watched(bed.cluster, of) as ledger:
        cpu, wrote, started = spent(bed.plane.processes), writes(bed.cluster), time.monotonic()
        bodies = [pod(arm, f"{tag}-{number}", size, of) for number, size in enumerate(sizes)]
        for body, size in zip(bodies, sizes, strict=True):
            need = (0, 0) if arm is Arm.PLAIN else (size.memory_mib, size.compute)
            ledger.ask(body["metadata"]["name"], *need, started)
        create_all(bed, spaces, bodies)
        yield Asked(ledger=ledger, spaces=spaces, started=started, cpu=cpu, writes=wrote)
    clear(bed, spaces, let_go=True)


def place(bed: Bed, arm: Arm, tag: str, sizes: Sequence[Size], of: str) -> Placed:
    """Create all pods, wait until each has a node, have it judged, and clear up."""
    with asked(bed, arm, tag, sizes, of) as all_of_them:
        ledger, spaces, started = all_of_them.ledger, all_of_them.spaces, all_of_them.started
        creating = time.monotonic() - started
        bed.until(f"all {len(sizes)} pods are bound", lambda: len(ledger.bound) == len(sizes), PATIENCE)
        cpu, wrote = between(all_of_them.cpu, spent(bed.plane.processes)), writes(bed.cluster) - all_of_them.writes
        problems = _problems(bed, arm, ledger, spaces, len(sizes))
        if arm is Arm.SHARES:
            check_templates(bed, spaces)
        seconds = max(each.at for each in ledger.settled()) - started
    return Placed(
        arm=arm, pods=len(sizes), creating=creating, seconds=seconds, cpu=cpu, writes=wrote, problems=problems
    )


def _problems(bed: Bed, arm: Arm, ledger: Ledger, spaces: Sequence[str], count: int) -> tuple[str, ...]:
    """What auditor and ledger have to say; that each claim was seen by both is asserted."""
    found = judge(bed, spaces)
    assert found.shares == (0 if arm is Arm.PLAIN else count), found
    return (*found.problems, *ledger.problems)


def pair(bed: Bed, seed: int, count: int, of: str, gpus: int) -> tuple[Placed, Placed]:
    """Shares and claims by hand of the same sizes, one after the other; who is first changes with the seed."""
    sizes = mixed(seed, count)
    assert must_all_fit(sizes, gpus, GPU_MIB), "sizes of which nobody knows whether they fit"
    order = (Arm.SHARES, Arm.CLAIMS) if seed % 2 else (Arm.CLAIMS, Arm.SHARES)
    placed = {arm: place(bed, arm, f"{arm[:2]}-{seed}", sizes, of) for arm in order}
    return placed[Arm.SHARES], placed[Arm.CLAIMS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfilled:
    """More was asked for than there is."""

    pods: int
    bound: int
    fill: float
    left_although_room: list[str]
    not_said: list[str]
    """Pods without a node that the scheduler does not call Unschedulable."""
    problems: tuple[str, ...]


def overfill(bed: Bed, seed: int, count: int, of: str, gpus: int) -> Overfilled:
    """Ask for more than there is and wait until nothing changes any more."""
    sizes = mixed(seed, count)
    assert asks_too_much(sizes, gpus, GPU_MIB)
    with asked(bed, Arm.SHARES, f"over-{seed}", sizes, of) as all_of_them:
        ledger, spaces = all_of_them.ledger, all_of_them.spaces
        bed.until("nothing changes any more", lambda: _quiet(ledger), PATIENCE)
        bed.until("each is bound or unschedulable", lambda: not _unsaid(bed, spaces), 60)
        found = judge(bed, spaces)
        return Overfilled(
            pods=count, bound=len(ledger.bound), fill=ledger.fill(), left_although_room=ledger.stuck(),
            not_said=_unsaid(bed, spaces), problems=(*found.problems, *ledger.problems),
        )  # fmt: skip


def _quiet(ledger: Ledger) -> bool:
    """Whether nobody with room waits, and nobody was bound for a while."""
    settled = ledger.settled()
    return bool(settled) and not ledger.stuck() and time.monotonic() - settled[-1].at > QUIET_SECONDS


def _unsaid(bed: Bed, spaces: Sequence[str]) -> list[str]:
    waiting = [each for each in stored(bed, spaces, PODS) if not each["spec"].get("nodeName")]
    return [each["metadata"]["name"] for each in waiting if not _unschedulable(each)]


def _unschedulable(waiting: dict[str, object]) -> bool:
    status = waiting["status"]
    conditions = status.get("conditions") or [] if isinstance(status, dict) else []
    return any((each["type"], each.get("reason")) == ("PodScheduled", "Unschedulable") for each in conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """What was placed at one client rate of the controller-manager: plain pods, and shares beside claims by hand."""

    plain: Placed
    pairs: Sequence[tuple[Placed, Placed]]


def figures(rate: str, found: AtRate) -> list[Figure]:
    """How shares compare with claims by hand at this client rate, and what each arm took."""
    ratios = sorted(shares.seconds / claims.seconds for shares, claims in found.pairs)
    placed = [each for both in found.pairs for each in both]
    problems = [problem for each in placed for problem in each.problems]
    what = f"time of shares / {Arm.CLAIMS}, client rate {rate}"
    more = f", the median of {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
    return [
        at_most("main", what, statistics.median(ratios), MOST_RATIO, more=more),
        none_of(
            "main", f"problems found, client rate {rate}", problems, f"{sum(each.pods for each in placed)} allocations"
        ),
        *(_speed(rate, arm, [each for each in [found.plain, *placed] if each.arm is arm]) for arm in Arm),
    ]


def overfilled(over: Overfilled) -> list[Figure]:
    """What came of the fleet that was too small."""
    return [
        none_of("main", "overfilled: problems found", over.problems, f"{over.bound} allocations"),
        none_of("main", "overfilled: pods left waiting beside room", over.left_although_room, f"{over.pods}"),
        none_of("main", "overfilled: pods neither bound nor Unschedulable", over.not_said, f"{over.pods}"),
        Figure(run="main", what="overfilled: memory given away", found=f"{over.fill:.1%}, to {over.bound} pods"),
    ]


def _speed(rate: str, arm: Arm, placed: Sequence[Placed]) -> Figure:
    """Pods a second of one arm, the median of its runs."""
    per_second = statistics.median(each.rate for each in placed)
    creating = statistics.median(each.pods / each.creating for each in placed)
    cpu = statistics.median(1000 * sum(each.cpu.values()) / each.pods for each in placed)
    wrote = statistics.median(sum(each.writes.values()) / each.pods for each in placed)
    text = f"{per_second:.1f} bound, {creating:.0f} created, {cpu:.0f} ms of processor and {wrote:.1f} writes each"
    return Figure(run="main", what=f"{arm} a second, client rate {rate}", found=text)


def told(placed: Placed, what: str) -> str:
    """One line about a run that has ended."""
    most = sorted(placed.writes.items(), key=lambda item: -item[1])
    wrote = ", ".join(f"{name} {count / placed.pods:.2f}" for name, count in most if count > placed.pods / 10)
    cpu = ", ".join(f"{name} {1000 * seconds / placed.pods:.0f}" for name, seconds in placed.cpu.items())
    return (
        f"{what}: {placed.arm}: {placed.pods} created in {placed.creating:.1f} s, bound after {placed.seconds:.1f} s,"
        f" {placed.rate:.1f} a second; ms of processor a pod: {cpu}; writes a pod: {wrote}"
    )
