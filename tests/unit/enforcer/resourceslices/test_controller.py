"""An offer is made at once when others take memory that is on offer, and not more often than it has to be."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.detection.lending import SLACK_MIB
from enforcer.quota.types import Mode
from enforcer.resourceslices import controller as module
from enforcer.resourceslices.controller import SlicePublishing
from enforcer.resourceslices.devices import InventoryPolicy, Order
from enforcer.runtime.manager import Manager, Wake
from gpushare.reasons import Reason
from tests.support.slices import Api, slices
from tests.support.wiring import Quotas, hidden_memory
from tests.unit.enforcer.attribution.test_unaccounted import view as gapped
from tests.unit.enforcer.made import GPU, OTHER_GPU, POD, holder, quota
from tests.unit.enforcer.resourceslices.test_foreign_memory import view

if TYPE_CHECKING:
    from enforcer.attribution.usage import UsageSampler


@dataclass
class Eyes:
    """Sees what the test says."""

    latest: tuple[GpuSnapshot, ...] = field(default_factory=lambda: (view(),))

    looked: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> tuple[GpuSnapshot, ...]:
        seen = self.latest
        self.looked.set()
        return seen


@dataclass
class Preparer:
    problem: str | None = None
    gone: frozenset[str] = frozenset()
    withdrawn: dict[str, int] = field(default_factory=dict)

    def terminating_pods(self) -> frozenset[str]:
        return self.gone

    def withdrawn_mib(self) -> dict[str, int]:
        return self.withdrawn


@dataclass
class World:
    """One node whose GPU nobody uses at first."""

    api: Api = field(default_factory=Api)
    eyes: Eyes = field(default_factory=Eyes)
    preparer: Preparer = field(default_factory=Preparer)
    quotas: Sequence[Any] = ()
    order: Order = Order.BINPACK

    def __post_init__(self) -> None:
        policy = InventoryPolicy(mode=Mode.TIME_SLICING, order=self.order)
        eyes, self.changed = cast("UsageSampler", self.eyes), Wake()
        self.hidden = hidden_memory(eyes)
        self.offering = slices(self.api, policy, hidden=self.hidden)
        self.turns = SlicePublishing(self.offering, eyes, Quotas(lambda: self.quotas), self.changed, self.preparer)

    def due(self) -> bool:
        """Whether the offer cannot wait."""
        self.changed.clear()
        self.turns.wake_if_needed()
        return self.changed.is_set()

    def memory(self) -> str:
        (only,) = self.api.slices.values()
        return str(only["spec"]["devices"][1]["capacity"]["memory"]["value"])


@pytest.fixture(name="world")
def _world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "APART", 0.0)
    world = World()
    world.turns.run_once()
    assert not world.due()
    return world


def test_what_strangers_take_makes_the_offer_due_at_the_first_look_that_shows_it(world: World) -> None:
    before = world.memory()
    world.eyes.latest = (view(holder(101, 3000)),)
    assert world.due()
    world.turns.run_once()
    assert (before, world.memory()) == ("15872Mi", "12800Mi")
    assert not world.due()


def test_what_nobody_is_counted_for_is_taken_off_with_the_second_sample_that_shows_it(world: World) -> None:
    """12 GiB under a quota of 4: what is hidden within the reservation is off already."""
    world.quotas = [quota()]

    clock = count()

    def look(gap: int, times: int = 1) -> bool:
        world.eyes.latest = (gapped(gap, holder(101, 96)),)
        for _ in range(times):
            world.hidden.take(world.eyes.latest, world.quotas, next(clock))
            world.hidden.look()
        world.hidden.take(world.eyes.latest, world.quotas, next(clock) - 0.9)
        return world.due()

    assert [look(0, times=2), look(10_240), look(10_240)] == [False, False, True]
    world.turns.run_once()
    assert world.memory() == "9Gi"
    assert not world.due()
    look(0, times=2)
    for _ in range(6):
        world.turns.run_once()
    assert world.memory() == "15872Mi"


def test_a_gpu_with_a_borrower_offers_less_so_that_what_is_lent_can_come_back_in_time(world: World) -> None:
    world.quotas = [quota(memory_mib=4096, limit_mib=4096)]
    assert not world.due(), "that is no more than it reserved"
    world.quotas = [quota(memory_mib=4096, limit_mib=12_288)]
    assert world.due()
    world.turns.run_once()
    assert world.memory() == f"{15_872 - SLACK_MIB}Mi"


def test_what_is_promised_given_back_or_within_the_step_makes_nothing_due(world: World) -> None:
    world.eyes.latest = (view(holder(101, 3000)),)
    world.quotas = [quota()]
    assert not world.due()
    world.quotas = []
    world.turns.run_once()
    for mib in (3072, 10):
        world.eyes.latest = (view(holder(101, mib)),)
        assert not world.due()
    world.eyes.latest = (view(holder(101, 3073)),)
    assert world.due()


def test_what_a_pod_on_its_way_out_still_holds_counts(world: World) -> None:
    world.eyes.latest = (view(holder(101, 600)),)
    world.quotas = [quota()]
    world.preparer.gone = frozenset({POD})
    assert world.due()
    world.turns.run_once()
    assert not world.due()


def test_a_gpu_that_cannot_be_read_makes_nothing_due(world: World) -> None:
    world.eyes.latest = (replace(world.eyes.latest[0], sample=None),)
    assert not world.due()


@pytest.mark.parametrize("order", Order)
def test_where_shares_are_spread_each_that_comes_makes_another_order_due(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "APART", 0.0)
    world, due = World(order=order), order is Order.SPREAD
    world.eyes.latest = (view(), view(gpu=OTHER_GPU))
    world.turns.run_once()
    assert world.api.devices()[1] == GPU.lower()
    world.quotas = [quota(memory_mib=512)]
    assert world.due() is due
    world.turns.run_once()
    assert world.api.devices()[1] == (OTHER_GPU if due else GPU).lower()
    assert not world.due()


def test_right_after_an_offer_and_while_it_cannot_be_made_there_is_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.eyes.latest = (view(holder(101, 3000)),)
    monkeypatch.setattr(module, "APART", 3600.0)
    assert not world.due()
    monkeypatch.setattr(module, "APART", 0.0)
    world.api.down = True
    world.turns.run_once()
    assert not world.due()


def test_the_thread_that_offers_is_woken(world: World) -> None:
    manager, written = Manager(), threading.Event()
    world.api.replace = lambda *_: written.set()  # type: ignore[method-assign]
    world.eyes.looked.clear()
    manager.add("offer", world.turns.run_once, every=3600.0, wake=world.changed)
    manager.add("offer-due", world.turns.wake_if_needed, every=0.001)
    manager.start()
    try:
        assert world.eyes.looked.wait(30)
        world.eyes.latest = (view(holder(101, 3000)),)
        assert written.wait(30)
    finally:
        manager.stop()


def test_an_enforcer_that_starts_again_keeps_the_order_that_stands() -> None:
    world, other = World(), "GPU-00000000-0000-4000-8000-000000000009"
    world.eyes.latest = (view(), view(gpu=other))
    world.quotas = [quota(gpu=other, memory_mib=8192)]
    world.turns.run_once()
    order = world.api.devices()
    assert order[:2] == ["status", other.lower()]
    world.quotas = []
    again = World(api=world.api, eyes=world.eyes)
    again.turns.run_once()
    assert world.api.devices() == order
    assert GPU.lower() in order


def test_an_excluded_gpu_is_logged_once_with_its_reason(world: World) -> None:
    world.eyes.latest = (view(holder(101, 16000)),)
    with structlog.testing.capture_logs() as lines:
        world.turns.run_once()
        world.turns.run_once()
    assert [(line["gpu"], line["reason"]) for line in lines] == [(GPU, Reason.GPU_EXCLUDED)]


def test_without_a_gpu_the_slice_stays_empty_and_keeps_what_was_noted_in_it(world: World) -> None:
    """The annotation is the anchor of the audit log: a slice that is created again would have none."""
    world.turns.run_once()
    (only,) = world.api.slices.values()
    only["metadata"].setdefault("annotations", {})["gpu-share.io/audit-head"] = "1:sha256:" + "a" * 64
    world.eyes.latest = ()
    world.turns.run_once()
    (only,) = world.api.slices.values()
    assert (only["spec"]["devices"], "gpu-share.io/audit-head" in only["metadata"]["annotations"]) == ([], True)
    world.eyes.latest = (view(),)
    world.turns.run_once()
    (only,) = world.api.slices.values()
    assert len(only["spec"]["devices"]) == 2


def test_what_a_withdrawn_claim_reserves_is_off_the_offer_at_once_until_it_is_undone(world: World) -> None:
    before = world.memory()
    world.preparer.withdrawn = {GPU: 4096}
    assert world.due()
    world.turns.run_once()
    assert mib(world.memory()) == mib(before) - 4096
    assert not world.due()
    world.preparer.withdrawn = {}
    world.turns.run_once()
    assert world.memory() == before


def mib(quantity: str) -> int:
    return int(quantity.removesuffix("Mi"))
