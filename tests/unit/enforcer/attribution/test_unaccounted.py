"""The account of a GPU's memory: what nobody is counted for, who may have taken it, and what shares cannot have."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.attribution.unaccounted import (
    MOST_KNOWN_MIB,
    MOST_PIDS,
    STANDS_SECONDS,
    TOLERANCE_MIB,
    Account,
    Presence,
    update,
)  # fmt: skip
from enforcer.attribution.unaccounted_monitor import NAME, UnaccountedMonitor
from enforcer.nvml.types import GpuSample
from enforcer.quota.types import Quota
from gpushare.errors import NvmlError
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, POD, holder, neighbour, quota
from tests.unit.enforcer.test_loop import card

MINE, THEIRS = (POD, "model", CONTAINER), (neighbour().pod_uid, "model", NEIGHBOUR)
GONE = "f" * 64


def view(gap: int, *holders: ProcessUsage, gpu: str = GPU) -> GpuSnapshot:
    used = gap + sum(each.used_mib for each in holders)
    sample = GpuSample(uuid=gpu, total_mib=16384, used_mib=used, processes=())
    return GpuSnapshot(gpu=card(gpu, 0), sample=sample, holders=holders)


BLIND = GpuSnapshot(gpu=card(GPU, 0), problem=NvmlError("hung"))


def after(*views: GpuSnapshot, quotas: Sequence[Quota] = (quota(),), before: Account | None = None) -> Account:
    account = before or Account()
    start = account.seen[-1].at + 0.5 if account.seen else 100.0
    for number, each in enumerate(views):
        account = update(account, each, quotas, start + 0.5 * number)
    return account


def test_memory_has_to_stand_for_two_samples() -> None:
    assert [after(*map(view, gaps)).mib for gaps in ((), (9000,), (9000, 26), (9000, 8000), (26, 9000, 9000))] == [
        0, 0, 26, 8000, 9000,
    ]  # fmt: skip


def test_samples_that_follow_each_other_closely_are_one() -> None:
    """As long as contexts that end leave a gap, 0.19 s on an H100."""

    def seen(*steps: tuple[float, int]) -> list[int]:
        account, found = Account(), []
        for now, gap in steps:
            account = update(account, view(gap), [quota()], now)
            found.append(account.mib)
        return found

    assert seen((1.0, 0), (1.5, 9000), (1.6, 9000), (1.69, 9000), (1.71, 9000)) == [0, 0, 0, 0, 9000]
    assert seen((1.0, 9000), (1.1, 9000), (1.21, 9000), (1.3, 0), (1.4, 9000), (1.61, 9000)) == [0, 0, 9000, 0, 0, 9000]


def test_what_the_driver_has_is_learned_while_no_share_is_there_and_up_to_a_bound() -> None:
    assert after(view(26), view(30), quotas=()).known_mib == 26
    assert after(view(26), view(26), quotas=[quota(memory_mib=0)]).known_mib == 26, "what got nothing is no share"
    left = after(view(9000), view(9000), quotas=())
    assert (left.known_mib, left.mib) == (0, 9000), "more is somebody's"
    learned = after(view(26), view(26), quotas=())
    assert after(view(3026), view(3026), before=learned).mib == 3000
    assert after(view(3026), view(3026), before=learned).known_mib == 26


def test_up_to_the_tolerance_nothing_follows() -> None:
    (at, above) = (after(*[view(mib)] * 3) for mib in (TOLERANCE_MIB, TOLERANCE_MIB + 1))
    assert [(each.matters, each.grown_mib, each.since) for each in (at, above)] == [
        (False, 0, None), (True, TOLERANCE_MIB + 1, 100.5),
    ]  # fmt: skip


def test_only_what_came_since_it_is_known_who_was_there_has_grown() -> None:
    account = after(view(400), view(400), view(5000), view(5000), view(7000), view(7000))
    assert (account.mib, account.base_mib, account.grown_mib, account.since) == (7000, 400, 6600, 101.5)
    assert after(view(400), view(400), before=account).grown_mib == 0
    assert after(view(400), view(400), before=account).since is None


def test_everybody_is_remembered_who_was_there_from_the_last_sample_without_on() -> None:
    both = [quota(), neighbour()]
    calm = after(view(0), view(0), quotas=both)
    assert calm.present == Presence(members=frozenset({MINE, THEIRS}))
    grown = after(view(9000), view(9000), before=calm)
    assert grown.present.members == {MINE, THEIRS}, "the neighbour may have taken it, and ended since"
    calm = after(view(0), view(0), before=grown)
    assert after(view(9000), view(9000), before=calm).present == Presence(members=frozenset({MINE}))


def test_one_that_was_given_nothing_may_have_taken_it_as_well() -> None:
    """A pod that joined another one's claim has the GPU's device: it may take memory between two samples."""
    calm = after(view(0), view(0), quotas=[quota(), neighbour(memory_mib=0)])
    assert after(view(9000), view(9000), before=calm).present.members == {MINE, THEIRS}


def test_processes_outside_of_shares_are_remembered_by_their_pid() -> None:
    calm = after(view(0), view(0))
    other = holder(201, 66, NEIGHBOUR, "other-pod")
    assert after(view(9000, other), view(9000), before=calm).present.pids == {201}
    starting = quota(container_id=None)
    account = after(view(9000, holder(101, 66)), view(9000, holder(101, 66)), quotas=[starting])
    assert account.present.pids == frozenset(), "a container whose id is not known yet is in a pod with a share"
    many = [holder(pid, 1, NEIGHBOUR, "other-pod") for pid in range(1000, 1001 + MOST_PIDS)]
    assert after(view(9000, *many), before=calm).present.unknown


def test_a_container_whose_id_comes_later_is_one() -> None:
    calm = after(view(0), view(0), quotas=[quota(container_id=None)])
    assert calm.present.members == {(POD, "model", "")}
    assert after(view(9000), view(9000), before=calm).present.members == {MINE}
    again = after(view(9000), quotas=[quota(container_id=GONE)], before=after(view(9000), view(9000), before=calm))
    assert again.present.members == {MINE, (POD, "model", GONE)}, "but one that was started again is another"


def test_a_sample_that_is_lost_and_a_start_leave_it_unknown_who_took_it() -> None:
    calm = after(view(0), view(0))
    assert not after(view(9000), view(9000), before=calm).present.unknown
    for lost in (after(view(9000), view(9000)), after(BLIND, view(9000), view(9000), before=calm)):
        assert (lost.mib, lost.present.unknown) == (9000, True)
    blind = after(view(9000), view(9000), BLIND, before=calm)
    assert (blind.mib, blind.present.unknown) == (9000, True), "and it is not forgotten meanwhile"
    assert not after(view(0), view(0), before=blind).present.unknown


def test_what_is_known_lasts_over_a_restart_and_nonsense_is_not_known(tmp_path: Path) -> None:
    monitor = UnaccountedMonitor(tmp_path)
    for now in (1.0, 1.5):
        monitor.take([view(26), view(30, gpu=OTHER_GPU)], [quota(gpu=OTHER_GPU)], now)
    monitor.record()
    assert json.loads((tmp_path / NAME).read_text()) == {GPU: 26, OTHER_GPU: 0}
    again = UnaccountedMonitor(tmp_path)
    for now in (1.0, 1.5):
        again.take([view(3026)], [quota()], now)
    assert again.latest[GPU].mib == 3000
    for text in ("[", "[1]", json.dumps({GPU: "26"}), json.dumps({GPU: -1}), json.dumps({GPU: MOST_KNOWN_MIB + 1})):
        (tmp_path / NAME).write_text(text)
        fresh = UnaccountedMonitor(tmp_path)
        fresh.take([view(0)], [quota()], 1.0)
        assert fresh.latest[GPU].known_mib == 0, text


def test_a_gpu_in_mig_mode_has_no_account(tmp_path: Path) -> None:
    monitor, cut = UnaccountedMonitor(tmp_path), view(9000)
    monitor.take([GpuSnapshot(gpu=cut.gpu._replace(mig_enabled=True), sample=cut.sample)], [], 1.0)
    assert monitor.latest == {}


def at(now: float, gap: int, before: Account, *quotas: Quota) -> Account:
    return update(before, view(gap), quotas or [quota()], now)


def test_memory_stands_once_its_samples_are_so_far_apart_and_not_longer() -> None:
    high, low = at(0.0, 9000, Account()), at(0.0, 0, Account())
    assert [at(now, 9000, high).level_mib for now in (STANDS_SECONDS / 2, STANDS_SECONDS)] == [0, 9000]
    both = at(STANDS_SECONDS, 9000, low)
    assert (both.level_mib, at(2 * STANDS_SECONDS, 9000, both).level_mib) == (0, 9000)


def test_who_is_there_in_a_sample_between_two_that_count_was_there() -> None:
    standing = at(1.0, 9000, at(0.5, 9000, at(0.0, 0, at(-0.5, 0, Account()))))
    passing = at(STANDS_SECONDS / 2, 9000, replace(standing, seen=()), quota(), neighbour())
    assert {CONTAINER, NEIGHBOUR} == {container for _, _, container in passing.present.members}


def test_what_is_learned_and_named_has_exact_bounds() -> None:
    assert after(view(MOST_KNOWN_MIB), view(MOST_KNOWN_MIB), quotas=()).known_mib == MOST_KNOWN_MIB
    most = Presence(pids=frozenset(range(1, MOST_PIDS)))
    assert not most.joined(Presence(pids=frozenset({MOST_PIDS}))).unknown
    assert most.joined(Presence(pids=frozenset({MOST_PIDS, MOST_PIDS + 1}))).unknown
