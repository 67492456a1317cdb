"""When open files are looked at, how long that counts, and what a kill is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.attribution.unaccounted import TOLERANCE_MIB, Holders
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.detection.hidden import VerifiedLimits
from enforcer.detection.hidden_memory import LASTS, Consequence, HiddenMemory
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import OnExceed, Quota
from gpushare.errors import NvmlError
from tests.support.clock import FakeClock
from tests.support.wiring import NobodyOwn, NoDescriptors
from tests.unit.enforcer.detection.test_hidden import HIDDEN, MINE, SERVER, descriptors, limited, theirs, view
from tests.unit.enforcer.made import CONTAINER, GPU, neighbour, quota

if TYPE_CHECKING:
    from enforcer.attribution.usage import UsageSampler

OWNED = HIDDEN - TOLERANCE_MIB - 96
QUOTAS = (quota(memory_mib=8192), neighbour(memory_mib=4096))


@dataclass
class Card:
    """A GPU as the test says it is."""

    latest: tuple[GpuSnapshot, ...] = (view(theirs(), SERVER, gap=0),)
    fresh: int = 0

    def sample_some(self, uuids: Sequence[str]) -> tuple[GpuSnapshot, ...]:
        self.fresh += 1
        return self.latest

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        reading = self.latest[0].reading
        return None if reading is None else reading.get(quota.container_id or "", ())


@dataclass
class World:
    consequence: Consequence = Consequence.KILL
    card: Card = field(default_factory=Card)
    has: Holders = field(default_factory=lambda: Holders((descriptors(),)))
    now: float = 100.0

    def __post_init__(self) -> None:
        self.files = NoDescriptors(lambda: self.has)
        self.own, limits = NobodyOwn({66}), VerifiedLimits()
        limits.replace(limited(theirs()))
        self.hidden = HiddenMemory(
            UnaccountedMonitor(Path("/nowhere")), cast("UsageSampler", self.card), self.files, self.own,
            limits, self.consequence, FakeClock(lambda: self.now),
        )  # fmt: skip
        for _ in range(2):
            self.sample()

    def sample(self, gap: int | None = None) -> None:
        self.now += 0.5
        if gap is not None:
            self.card.latest = (view(theirs(), SERVER, gap=gap),)
        self.hidden.take(self.card.latest, QUOTAS, self.now)

    def hide(self) -> None:
        """Two samples with 12 GiB that nobody is counted for, a look, and the sample after it."""
        self.sample(HIDDEN)
        self.sample()
        self.hidden.look()
        self.sample()

    def used(self) -> int:
        reading = self.hidden.readings(self.card.latest)[GPU]
        assert reading is not None
        return sum(each.used_mib for each in reading.get(CONTAINER, ()))


def test_without_unaccounted_memory_no_file_is_looked_at() -> None:
    world = World()
    for _ in range(20):
        world.sample(TOLERANCE_MIB)
        world.hidden.look()
    assert (world.files.looks, world.hidden.due.is_set(), world.hidden.found) == (0, False, {})


def test_with_the_second_sample_that_shows_it_a_look_is_due_and_with_the_next_it_counts() -> None:
    world = World()
    world.sample(HIDDEN)
    assert not world.hidden.due.is_set()
    world.sample()
    assert (world.hidden.due.is_set(), world.hidden.found, world.used()) == (True, {}, 0)
    world.hidden.look()
    world.sample()
    assert (world.files.looks, world.used()) == (1, OWNED)
    world.sample(0)
    world.hidden.look()
    assert (world.files.looks, world.hidden.found, world.used()) == (1, {}, 0)


def test_a_look_counts_for_a_few_seconds() -> None:
    world = World()
    world.hide()
    at = world.now - 0.5
    world.now = at + LASTS - 0.5
    world.sample()
    assert world.used() == OWNED
    world.sample()
    found = world.hidden.found[GPU]
    assert (world.used(), found.suspects, found.withheld_mib) == (0, (), HIDDEN), "but it stays withheld"
    (problem,) = world.hidden.problems()
    assert "could not be read" in problem
    world.hidden.look()
    world.sample()
    assert world.used() == OWNED
    assert "could not be read" not in "".join(world.hidden.problems())


def test_what_is_only_reported_counts_for_nobody() -> None:
    world = World(Consequence.REPORT)
    world.hide()
    assert (world.hidden.found[GPU].owner_mib, world.used()) == (OWNED, 0)
    assert world.hidden.enforced(QUOTAS) == QUOTAS
    assert world.hidden.usages_of(MINE) == ()
    assert world.files.looks == 1


def test_a_container_with_hidden_memory_is_killed_whole_and_its_decision_says_how_much() -> None:
    world = World()
    world.hide()
    assert [each.on_exceed for each in world.hidden.enforced(QUOTAS)] == [OnExceed.KILL_CONTAINER, OnExceed.KILL]
    warned = (replace(MINE, on_exceed=OnExceed.WARN),)
    assert world.hidden.enforced(warned) == warned
    decisions = [KillDecision(decision=Decision.KILL, quota=each, used_mib=1) for each in QUOTAS]
    assert [world.hidden.marked(each).unaccounted_mib for each in decisions] == [OWNED, 0]


@pytest.mark.parametrize(
    ("change", "used"),
    [
        ("nothing", OWNED),
        ("it is freed", 0),
        ("another one has descriptors too", 0),
        ("it has closed them", 0),
        ("the GPU cannot be read", None),
    ],
)
def test_a_kill_looks_at_files_and_memory_itself(change: str, used: int | None) -> None:
    world = World()
    world.hide()
    match change:
        case "it is freed":
            world.card.latest = (view(theirs(), SERVER, gap=0),)
        case "another one has descriptors too":
            world.has = Holders((descriptors(), descriptors(350, "f" * 64, "some-pod")))
        case "it has closed them":
            world.has = Holders()
        case "the GPU cannot be read":
            world.card.latest = (GpuSnapshot(gpu=world.card.latest[0].gpu, problem=NvmlError("hung")),)
    usages = world.hidden.usages_of(MINE)
    assert (None if usages is None else sum(each.used_mib for each in usages)) == used
    assert (world.files.looks, world.card.fresh) == (2, 1)


def test_a_server_that_its_daemon_does_not_name_any_more_is_still_one_while_it_holds_memory() -> None:
    world = World()
    world.hide()
    world.own.servers = frozenset()
    world.hidden.look()
    world.sample()
    assert world.used() == OWNED
    world.card.latest = (view(theirs(), gap=HIDDEN),)
    world.hidden.look()
    world.card.latest = (view(theirs(), SERVER, gap=HIDDEN),)
    world.hidden.look()
    world.sample()
    assert world.used() == 0, "its pid may be another's"


def test_operators_hear_of_memory_that_new_shares_do_not_get() -> None:
    world = World()
    assert world.hidden.problems() == []
    world.hide()
    (problem,) = world.hidden.problems()
    assert problem.startswith(f"12 GiB of {GPU} are in use and counted for nobody")
    assert problem.endswith("descriptors of GPU memory: asr/tts-0/model")
    assert world.hidden.amounts == {GPU: (HIDDEN, 0)}
