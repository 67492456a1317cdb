"""Counting GPUs: they come and go while the enforcer runs, and NVML may be slower than we are."""

import threading
from dataclasses import replace

import pytest

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.usage import ENUMERATE_EVERY, UsageSampler
from enforcer.nvml.types import Gpu
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU, OTHER_GPU, quota
from tests.unit.enforcer.test_loop import Attributor, Reader, card


class Slots(Reader):
    """A machine whose cards are plugged in."""

    def __init__(self, *cards: Gpu) -> None:
        super().__init__()
        self.cards, self.counts = cards, 0

    def gpus(self) -> tuple[Gpu, ...]:
        self.counts += 1
        if self.all_broken:
            raise NvmlError("the driver is gone")
        return self.cards


class Told(threading.Event):
    """Notes each time that it is set."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def set(self) -> None:
        self._told.append("other GPUs")


def test_while_nvml_is_away_that_is_the_problem_and_each_look_tries_again() -> None:
    reader, reported = Slots(card(GPU, 0)), list[str]()
    watch = UsageSampler(reader, Attributor(), [Told(reported)])
    reader.all_broken = True
    for _ in range(2):
        with pytest.raises(NvmlError):
            watch.sample()
    assert (watch.problem, reported) == ("the enforcer cannot list the GPUs of this node: the driver is gone", [])
    reader.all_broken = False
    assert [view.gpu.uuid for view in watch.sample()] == [GPU]
    assert (watch.problem, reported, reader.counts) == (None, ["other GPUs"], 3)


def test_a_machine_without_gpus_has_no_problem_and_is_counted_at_every_look() -> None:
    reader, reported = Slots(), list[str]()
    watch = UsageSampler(reader, Attributor(), [Told(reported)])
    assert (watch.sample(), watch.sample(), watch.problem, reader.counts, reported) == ((), (), None, 2, [])
    reader.cards = (card(GPU, 0),)
    assert [view.gpu.uuid for view in watch.sample()] == [GPU]
    assert reported == ["other GPUs"]


def test_one_that_is_plugged_in_later_is_found_and_reported_once() -> None:
    reader, reported = Slots(card(GPU, 0)), list[str]()
    watch = UsageSampler(reader, Attributor(), [Told(reported)])
    watch.sample()
    reader.cards = (card(GPU, 0), card(OTHER_GPU, 1))
    views = [watch.sample() for _ in range(2 * ENUMERATE_EVERY)][-1]
    assert [view.gpu.uuid for view in views] == [GPU, OTHER_GPU]
    assert reported == ["other GPUs", "other GPUs"]
    reader.all_broken = True
    assert [view.gpu.uuid for view in watch.sample()] == [GPU, OTHER_GPU]


def test_a_process_that_lives_and_does_not_show_whose_it_is_hides_nobody_else_and_is_known_again_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, living = Slots(card(GPU, 0)), {666}
    reader.used[GPU] = {101: 9000, 666: 10}
    attributor = Whose()
    monkeypatch.setattr(attributor, "is_alive", living.__contains__)
    watch = UsageSampler(reader, attributor)
    (whole,) = watch.sample()
    attributor.gone.add(666)
    (view,) = watch.sample()
    assert view.sample is not None
    assert [(each.identity.pid, each.used_mib) for each in view.holders] == [(101, 9000)]
    assert view.unknown_mib == 10
    assert view.problem is not None
    assert view.problem.reason is Reason.PROCESS_HIDDEN
    assert watch.usages_of(quota(memory_mib=8999)) == view.holders
    assert watch.usages_of(quota(memory_mib=9000)) is None, "it may be over quota with what is unknown"
    attributor.gone.clear()
    assert watch.sample()[0] == whole, "its memory is no earlier process's"
    attributor.gone.add(666)
    living.clear()
    (view,) = watch.sample()
    assert (view.unknown_mib, view.problem) == (0, None)


class Whose(Attributor):
    """Processes that end, and pids that come round again."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[int, int] = {}
        self.gone: set[int] = set()

    def identify(self, pid: int) -> Identity | None:
        found = None if pid in self.gone else super().identify(pid)
        return found and replace(found, start=self.starts.get(pid, found.start))


def test_a_look_that_sees_the_same_is_the_same_view_and_one_that_does_not_is_another() -> None:
    reader, whose = Reader({GPU: {}}), Whose()
    watch = UsageSampler(reader, whose)
    reader.used[GPU] = {101: 1000, 102: 500}
    [first] = watch.sample()
    [again] = watch.sample()
    assert again is first
    reader.used[GPU] = {101: 1001, 102: 500}
    [more] = watch.sample()
    assert [each.used_mib for each in more.holders] == [1001, 500]
    whose.starts[102] = 9
    [taken_over] = watch.sample()
    assert [(each.identity.start, each.used_mib) for each in taken_over.holders if each.identity.pid == 102] == [(9, 0)]
    assert watch.sample()[0] is taken_over, "what an earlier process of that pid left stays its own"
    whose.gone.add(102)
    assert [each.identity.pid for each in watch.sample()[0].holders] == [101]


def test_what_was_seen_before_a_blind_look_is_put_together_again() -> None:
    reader, whose = Reader({GPU: {}}), Whose()
    watch = UsageSampler(reader, whose)
    reader.used[GPU] = {101: 1000}
    [first] = watch.sample()
    reader.all_broken = True
    assert watch.sample()[0].problem is not None
    reader.all_broken = False
    [after] = watch.sample()
    assert after == first
    assert after is not first
