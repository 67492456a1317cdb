"""Memory that no process accounts for: what is reported of its growth, of whom, and that nobody is killed for it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.nvml.types import GpuSample, Utilization
from enforcer.status.unattributed import GROWN_MIB, MOST, Growth, Sample, Track, sampled, shown
from enforcer.status.unattributed_monitor import UnattributedMonitor
from gpushare.errors import NvmlError
from tests.support.clock import FakeClock
from tests.support.wiring import NoReader, sampler
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, holder
from tests.unit.enforcer.test_loop import World, card, make

A, B, NONE, BOTH = frozenset("a"), frozenset("b"), frozenset[str](), frozenset("ab")
Step = tuple[int, frozenset[str] | None]


def found(*steps: Step) -> Growth | None:
    track = Track()
    for mib, ran in steps:
        track = sampled(track, Sample(mib, ran))
    return track.growth


def growing(*ran: frozenset[str] | None, by: int = 100, start: int = 50) -> tuple[Step, ...]:
    return ((start, NONE), *((start + by * n, each) for n, each in enumerate(ran, 1)))


def text(*steps: Step) -> tuple[int, int, int, tuple[str, ...] | None, str | None] | None:
    growth = found(*steps)
    return None if growth is None else (growth.from_mib, growth.mib, growth.samples, growth.ran, growth.only)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), None),
        (growing(A, A, A, A), None),
        (growing(A, A, A, A, A), (50, 550, 5, ("a",), "a")),
        (growing(A, A, A, A, A, by=51), None),
        (growing(A, A, A, A, A, by=52), (50, 310, 5, ("a",), "a")),
        (growing(A, A, BOTH, A, A), (50, 550, 5, ("a", "b"), None)),
        (growing(A, A, NONE, A, A), (50, 550, 5, ("a",), None)),
        (growing(A, A, None, A, A), (50, 550, 5, None, None)),
        (growing(NONE, NONE, NONE, NONE, NONE), (50, 550, 5, (), None)),
        # At once, and then nothing: five samples all the same, and who ran in each of them.
        ((*growing(A, by=3000), *[(3050, A)] * 3), None),
        ((*growing(A, by=3000), *[(3050, A)] * 4), (50, 3050, 5, ("a",), "a")),
        ((*growing(A, by=3000), *[(3050, NONE)] * 4), (50, 3050, 5, ("a",), None)),
        ((*growing(A, by=3000), *[(3050, B)] * 4), (50, 3050, 5, ("a", "b"), None)),
        # What comes later accuses nobody, and takes nothing back while the memory is kept.
        ((*growing(A, A, A, A, A), *[(550, B)] * 40), (50, 550, 5, ("a",), "a")),
        ((*growing(A, A, A, A, A), (50 + GROWN_MIB + 1, B)), (50, 550, 5, ("a",), "a")),
        ((*growing(A, A, A, A, A), (50 + GROWN_MIB, B)), None),
        # It grows further: by whom of both cannot be reported.
        ((*growing(A, A, A, A, A), (650, BOTH)), (50, 650, 6, ("a", "b"), None)),
        ((*growing(A, A, A, A, A), *[(550, A)] * MOST, *growing(B, B, B, B, B, start=550)[1:]),
         (50, 1050, 5, ("a", "b"), None)),
        ((*growing(A, A, A, A, A), *[(550, A)] * MOST, *growing(A, A, A, A, A, start=550)[1:]),
         (50, 1050, 5, ("a",), "a")),
        # A card whose unattributed memory comes and goes has no growth.
        ([(400, A), (50, A)] * 20, None),
    ],
)  # fmt: skip
def test_only_five_samples_with_one_container_in_all_of_them_name_it(
    steps: Sequence[Step], expected: tuple[object, ...] | None
) -> None:
    assert text(*steps) == expected


def test_no_more_samples_are_kept_than_are_looked_back_upon() -> None:
    track = Track()
    for mib in range(100):
        track = sampled(track, Sample(mib, A))
    assert len(track.recent) == MOST


@pytest.mark.parametrize(
    ("ran", "only", "words"),
    [
        (("a",), "a", "only asr/tts-0/model ran kernels meanwhile, so the memory is likely its managed memory"),
        (("a", "b"), None, "containers that ran kernels meanwhile: asr/tts-0/model, a container without a share;"),
        (("b",), "b", "containers that ran kernels meanwhile: a container without a share;"),
        ((), None, "containers that ran kernels meanwhile: none;"),
        (None, None, "the enforcer does not know which containers ran kernels meanwhile"),
        (tuple("acdefghij"), None, "a container without a share and 1 more;"),
    ],
)
def test_it_is_reported_what_is_known(ran: tuple[str, ...] | None, only: str | None, words: str) -> None:
    growth = Growth(from_mib=100, mib=3172, samples=7, ran=ran, only=only)
    row = shown(growth, {"a": "asr/tts-0/model"})
    assert row["sentence"].startswith(
        "3172Mi of the GPU memory in use belongs to no process that NVML lists, 3Gi more than 7 samples ago; "
    )
    assert words in row["sentence"]
    assert row["sentence"].endswith("; the enforcer kills no container for this")
    assert row["only"] == ("asr/tts-0/model" if only == "a" else None)


def view(used: int, *pids: int) -> GpuSnapshot:
    holders = tuple(holder(pid, 100, CONTAINER if pid < 200 else NEIGHBOUR) for pid in pids)
    sample = GpuSample(uuid=GPU, total_mib=16384, used_mib=used, processes=())
    return GpuSnapshot(gpu=card(GPU, 0), sample=sample, holders=holders)


def test_a_kernel_of_a_process_that_is_nobodys_leaves_nobody_named() -> None:
    views, ran, moments = [view(300, 101, 201)], list[tuple[int, ...] | NvmlError | None](), list[int]()

    class Asked(NoReader):
        def utilization(self, _: str, after: int) -> Utilization | None:
            moments.append(after)
            now = ran.pop(0)
            if isinstance(now, NvmlError):
                raise now
            return None if now is None else tuple((pid, 50) for pid in now)

    clock = count(5)
    monitor = UnattributedMonitor(sampler(lambda: views), Asked(), FakeClock(lambda: next(clock) / 1e6))

    def grown(*answers: tuple[int, ...] | NvmlError | None) -> Growth | None:
        ran[:] = answers
        for _ in answers:
            views[0] = view(views[0].sample.used_mib + 100, 101, 201)  # type: ignore[union-attr] # it has one
            monitor.turn()
        return monitor.growth().get(GPU)

    monitor.turn()
    monitor.turn()
    assert moments == [], "where nothing grows the driver is asked for nothing"
    assert grown((101,), (101,), (101,), (101,)) is None
    assert moments == [6, 7, 8, 9], "since the sample before"
    assert grown((101,)) == Growth(from_mib=100, mib=600, samples=5, ran=(CONTAINER,), only=CONTAINER)
    assert grown((201,)).ran == (CONTAINER, NEIGHBOUR)  # type: ignore[union-attr] # it grew
    for unknown in ((101, 999), NvmlError("hung"), None):
        views[0] = view(200, 101, 201)
        monitor.turn()
        assert monitor.growth() == {}
        last = grown(*[(101,)] * 4, unknown)
        assert last is not None
        assert (last.ran, last.only) == (None, None), unknown
    kept = monitor.growth()
    views[0] = replace(views[0], sample=None)
    monitor.turn()
    assert monitor.growth() == kept, "what cannot be read is as it was"
    views[0] = view(2000, 101, 201)
    monitor.turn()
    assert grown(*[(101,)] * 4) == kept[GPU], "and what came meanwhile is not counted from before"


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_it_is_shown_and_counted_and_nobody_is_evaluated_by_it(world: World) -> None:
    huge = Growth(from_mib=100, mib=9316, samples=5, ran=(CONTAINER,), only=CONTAINER)
    monitor = world.enforcer._parts.unattributed
    monitor._tracks = {GPU: Track(growth=huge)}
    world.reader.used[GPU] = {101: 1000}
    status = world.look(20)
    assert status["gpus"][0]["unattributedGrowth"]["only"] == "asr/tts-0/model"
    assert status["gpus"][1]["unattributedGrowth"] is None
    labels = f'container="model",gpu="{GPU}",namespace="asr",pod="tts-0"'
    assert f"gpu_share_gpu_memory_unattributed_growth_bytes{{{labels}}} 9.663676416e+09" in world.scrape()
    assert (status["containers"][0]["state"], world.decisions, world.notices) == ("Within", [], [])
    monitor._tracks = {GPU: Track(growth=replace(huge, only=None))}
    world.look()
    assert f'growth_bytes{{container="",gpu="{GPU}",namespace="",pod=""}} 9.6' in world.scrape()
