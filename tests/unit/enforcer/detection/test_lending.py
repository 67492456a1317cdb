"""Borrowed memory is taken back before who reserved it needs it, from the right one, and from nobody else."""

import random
from dataclasses import replace

import pytest

from enforcer.detection.close_look import gpus_to_watch
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.forecast import seconds_until_kill, used_seconds
from enforcer.detection.lending import (
    LEAST_MIB,
    PUT_OFF,
    SLACK_MIB,
    needed_mib,
    reclaim,
    seconds_of_need,
    unreturned_mib,
)
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision, Phase
from enforcer.quota.types import OnExceed, Quota, pod_row
from tests.support import extent
from tests.unit.enforcer.detection.lenders import FAST, NEVER, Card, Tenant
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, holder, neighbour, quota

RULES = DetectorConfig()
TOTAL = 40_960
JOINT = 512.0
"""MiB a second by which all borrowers of a GPU together may grow, as docs/reference/kills.md states it."""
LENT = quota(memory_mib=4096, limit_mib=16_384)
OTHER = neighbour(memory_mib=8192, limit_mib=16_384)
IDLE = quota(container="idle", container_id="e" * 64, pod_uid="idle", pod="idle", memory_mib=20_480)


class Gpu:
    """One GPU that is sampled at moments of one's choice."""

    def __init__(self, *quotas: Quota, total: int = TOTAL, rules: DetectorConfig = RULES) -> None:
        self.quotas, self.total, self.now, self.state = list(quotas), total, 100.0, DetectorState()
        self.waiting, self.rules = frozenset[str](), rules
        self.lent, self.needed = list[KillDecision](), list[float]()

    def sample(self, held: dict[str, int], after: float = 0.5) -> list[KillDecision]:
        """Take one sample in which containers hold so many MiB, by container id. Returns what is to be given back."""
        self.now += after
        reading = {
            container: (holder(7 + number, mib, container),) for number, (container, mib) in enumerate(held.items())
        }
        free = {GPU: self.total - sum(held.values())}
        before = self.state
        self.state, _ = evaluate(before, self.quotas, {GPU: reading}, self.now, self.rules)
        self.state, found = reclaim(self.state, self.quotas, {GPU: reading}, free, self.waiting, self.now, self.rules)
        self.needed += seconds_of_need(before, self.state)
        self.lent += [each for each in found if each.decision is Decision.LENT]
        return [each for each in found if each.decision is not Decision.LENT]

    def samples(self, held: dict[str, int], number: int = 3) -> list[KillDecision]:
        return [decision for _ in range(number) for decision in self.sample(held)]


def said(decisions: list[KillDecision]) -> list[tuple[Decision, str | None, int]]:
    return [(each.decision, each.quota.container_id, each.reclaim_mib) for each in decisions]


def borrowed(gpu: Gpu, spare: int, held: int = 12_288) -> dict[str, int]:
    """Let ``LENT`` hold so much, and leave so much of the GPU beyond what is reserved and not held."""
    gpu.total = held + spare + IDLE.memory_mib
    return {CONTAINER: held}


def test_without_a_limit_nothing_is_lent_and_nothing_is_taken_back() -> None:
    gpu = Gpu(quota(memory_mib=4096), IDLE, total=20_480)
    assert gpu.samples({CONTAINER: 4300}) == []
    assert gpu.state.loans == {}


def test_what_nobody_reserved_may_be_borrowed_for_ever() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, SLACK_MIB)
    assert gpu.samples(held, 60) == []
    assert gpus_to_watch(gpu.state, gpu.quotas, gpu.now, 0.5, RULES) == frozenset()


def test_the_largest_borrower_for_its_reservation_is_told_what_to_give_back_and_by_when() -> None:
    gpu = Gpu(LENT, OTHER, IDLE, total=41_500)
    (notice,) = gpu.samples({CONTAINER: 9000, NEIGHBOUR: 9500})
    assert said([notice]) == [(Decision.RECLAIM_NOTICE, CONTAINER, 9000 + 9500 + 20_480 + SLACK_MIB - 41_500)]
    assert notice.kill_in == RULES.notice
    assert (notice.quota.memory_mib, notice.quota.limit_mib) == (4096, None)


def test_where_one_has_too_little_the_next_is_told_as_well() -> None:
    gpu = Gpu(LENT, OTHER, IDLE, total=36_864)
    mib = 8192 + 12_288 + 20_480 + SLACK_MIB - 36_864
    gpu.waiting = frozenset({IDLE.pod_uid})
    found = gpu.samples({CONTAINER: 8192, NEIGHBOUR: 12_288})
    assert said(found) == [
        (Decision.RECLAIM_NOTICE, CONTAINER, 4096),
        (Decision.RECLAIM_NOTICE, NEIGHBOUR, mib - 4096),
    ]


def test_when_the_notice_is_over_it_is_killed_as_if_it_had_never_had_a_loan() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, SLACK_MIB - 100)
    gpu.samples(held)
    assert gpu.sample(held, RULES.notice - 0.1) == []
    (kill,) = gpu.sample(held, 0.1)
    assert said([kill]) == [(Decision.KILL, CONTAINER, 100)]
    assert kill.quota == LENT.without_loan()
    assert [each.used_mib for each in kill.targets] == [12_288]
    assert gpu.state.of(LENT).phase is Phase.KILLING
    assert kill.over_for == pytest.approx(RULES.notice)


def test_a_loan_is_told_once_and_before_anything_that_follows_from_it() -> None:
    gpu = Gpu(LENT, OTHER, IDLE)
    held = borrowed(gpu, LEAST_MIB - 1)
    gpu.samples(held, 2)
    assert gpu.lent == []
    assert [each.decision for each in gpu.sample(held)] == [Decision.KILL]
    (lent,) = gpu.lent
    assert (lent.quota, lent.used_mib, lent.reclaim_mib) == (LENT, 12_288, 0)
    gpu.samples(held, 60)
    assert len(gpu.lent) == 1
    gpu.sample({CONTAINER: LENT.without_loan().ceiling_mib})
    gpu.samples(held)
    assert len(gpu.lent) == 2


def test_an_operator_decides_how_long_a_notice_lasts() -> None:
    gpu = Gpu(LENT, IDLE, rules=replace(RULES, notice=3.0))
    held = borrowed(gpu, SLACK_MIB - 100)
    assert [each.kill_in for each in gpu.samples(held)] == [3.0]
    assert seconds_until_kill(gpu.state, LENT, gpu.now, gpu.rules) == 3.0
    assert gpu.sample(held, 2.9) == []
    assert gpus_to_watch(gpu.state, gpu.quotas, gpu.now + 3.0, 0.5, gpu.rules) == frozenset()
    assert said(gpu.sample(held, 0.1)) == [(Decision.KILL, CONTAINER, 100)]


def test_a_need_lasts_until_the_memory_is_free_and_not_until_it_is_coming() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, LEAST_MIB - 1)
    gpu.samples(held, 4)
    assert gpu.state.loans[GPU].short is None, "the memory of the kill is coming"
    gpu.sample(held)
    assert gpu.needed == []
    gpu.samples({})
    assert gpu.needed == [pytest.approx(2.5)]


def test_a_need_that_a_borrower_ends_by_itself_is_timed_as_well() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, SLACK_MIB - 100)
    gpu.samples(held)
    gpu.sample({CONTAINER: 12_188}, 4.0)
    gpu.samples({CONTAINER: 12_188})
    assert gpu.needed == [pytest.approx(5.0)]


def test_who_gives_back_in_time_lives() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, SLACK_MIB - 100)
    gpu.samples(held)
    assert gpu.samples({CONTAINER: 12_100}, 60) == []


def test_a_new_shortage_is_a_new_notice() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, SLACK_MIB - 100)
    gpu.samples(held)
    gpu.sample({CONTAINER: 12_100}, 8.0)
    assert [each.kill_in for each in gpu.samples(held)] == [RULES.notice]


def test_close_to_what_is_reserved_nobody_waits_for_a_notice() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, LEAST_MIB - 1)
    assert said(gpu.samples(held)) == [(Decision.KILL, CONTAINER, SLACK_MIB - LEAST_MIB + 1)]


def test_two_samples_kill_nobody_and_ask_for_a_close_look() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, LEAST_MIB - 1)
    assert gpu.samples(held, 2) == []
    assert gpus_to_watch(gpu.state, gpu.quotas, gpu.now, 0.5, RULES) == {GPU}


def test_a_share_that_waits_for_its_memory_costs_a_notice_and_is_ready_after_it() -> None:
    new = replace(IDLE, container_id=None)
    gpu = Gpu(LENT, new)
    gpu.waiting, held = frozenset({new.pod_uid}), borrowed(gpu, -5000)
    assert said(gpu.samples(held)) == [(Decision.RECLAIM_NOTICE, CONTAINER, 8192)]
    assert unreturned_mib(gpu.quotas, {CONTAINER: (holder(7, 12_288),)}, gpu.total - 12_288) == 5000 + LEAST_MIB
    assert said(gpu.sample(held, RULES.notice)) == [(Decision.KILL, CONTAINER, 8192)]
    assert unreturned_mib(gpu.quotas, {}, gpu.total) == 0


def test_a_wait_ends_where_nobody_has_anything_to_give_back() -> None:
    assert unreturned_mib([IDLE], {}, 100) == 0


def test_within_the_reservation_and_its_tolerance_nobody_is_told_or_killed() -> None:
    gpu = Gpu(LENT, OTHER, IDLE, total=36_864)
    found = gpu.samples({CONTAINER: LENT.without_loan().ceiling_mib, NEIGHBOUR: 16_384}, 30)
    assert {each.quota.container_id for each in found} == {NEIGHBOUR}


def test_those_who_take_turns_put_a_kill_off_for_twice_the_notice_at_most() -> None:
    crowd = [replace(LENT, container_id=f"{n:064x}", container=f"c{n}", pod_uid=f"p{n}") for n in range(12)]
    gpu, began, killed = Gpu(*crowd, total=6500 + 11 * 4500 + LEAST_MIB + 500), 0.0, 0.0
    for turn in range(200):
        lead = (turn // 4) % 12
        held = {each.container_id or "": 6500 if n == lead else 4500 for n, each in enumerate(crowd)}
        found = gpu.sample(held)
        began = began or (gpu.now if found else 0.0)
        if any(each.decision is Decision.KILL for each in found):
            killed = gpu.now
            break
    assert 0 < killed - began <= PUT_OFF * RULES.notice + 0.5


def test_while_a_kill_is_under_way_its_memory_counts_as_coming_for_a_second() -> None:
    gpu = Gpu(LENT, OTHER, IDLE)
    held = {CONTAINER: 12_288, NEIGHBOUR: 12_288}
    gpu.total = 12_288 * 2 + IDLE.memory_mib + LEAST_MIB - 1
    assert said(gpu.samples(held)) == [(Decision.KILL, CONTAINER, SLACK_MIB - LEAST_MIB + 1)]
    assert gpu.sample(held, 0.9) == []
    assert [each.quota.container_id for each in gpu.sample(held, 0.2)] == [NEIGHBOUR]


def test_a_kill_that_failed_spares_its_container_for_a_while_and_hits_the_next() -> None:
    gpu = Gpu(LENT, OTHER, IDLE)
    held = {CONTAINER: 12_288, NEIGHBOUR: 12_288}
    gpu.total = 12_288 * 2 + IDLE.memory_mib + LEAST_MIB - 1
    (kill,) = gpu.samples(held)
    gpu.state = record_kill_result(gpu.state, kill.quota, gpu.now, RULES, acted=False, reclaimed=True)
    assert [each.quota.container_id for each in gpu.sample(held)] == [NEIGHBOUR]


def test_containers_of_one_pod_are_killed_one_after_the_other() -> None:
    twin = replace(OTHER, pod_uid=LENT.pod_uid, container="twin")
    gpu = Gpu(LENT, twin, IDLE, total=12_288 * 2 + IDLE.memory_mib - 10_000)
    held = {CONTAINER: 12_288, NEIGHBOUR: 12_288}
    found = gpu.samples(held, 10)
    assert [each.quota.container for each in found if each.decision is Decision.KILL] == ["model"]


def test_a_kill_that_took_memory_back_uses_no_budget() -> None:
    gpu = Gpu(LENT, IDLE)
    (kill,) = gpu.samples(borrowed(gpu, 0))
    state = record_kill_result(gpu.state, kill.quota, gpu.now, RULES, acted=True, reclaimed=True)
    assert used_seconds(state, LENT, gpu.now) == 0
    assert not state.of(LENT).killed
    assert state.of(LENT).spared_until > gpu.now


def test_a_loan_costs_no_budget_and_its_limit_is_where_a_violation_begins() -> None:
    gpu = Gpu(LENT)
    gpu.samples({CONTAINER: LENT.ceiling_mib})
    assert gpu.state.of(LENT).phase is Phase.WITHIN
    gpu.samples({CONTAINER: LENT.ceiling_mib + 1})
    assert gpu.state.of(LENT).phase is Phase.WARNED


def test_while_the_breaker_is_open_a_notice_names_no_time_and_nobody_is_killed() -> None:
    gpu = Gpu(LENT, IDLE)
    gpu.state = replace(gpu.state, open=True)
    held = borrowed(gpu, LEAST_MIB - 1)
    found = gpu.samples(held, 60)
    assert [(each.decision, each.kill_in) for each in found] == [(Decision.RECLAIM_NOTICE, None)]
    assert gpus_to_watch(gpu.state, gpu.quotas, gpu.now, 0.5, RULES) == frozenset()


def test_where_the_policy_only_warns_nothing_is_lent() -> None:
    gpu = Gpu(replace(LENT, on_exceed=OnExceed.WARN), IDLE)
    assert gpu.samples(borrowed(gpu, 0)) == []


def test_a_gpu_that_could_not_be_read_for_long_begins_anew() -> None:
    gpu = Gpu(LENT, IDLE)
    held = borrowed(gpu, LEAST_MIB - 1)
    gpu.samples(held, 2)
    assert gpu.sample(held, RULES.max_gap + 1) == []


def test_a_gpu_without_quotas_is_forgotten() -> None:
    gpu = Gpu(LENT, IDLE)
    gpu.samples(borrowed(gpu, 0))
    gpu.quotas = []
    gpu.sample({})
    assert gpu.state.loans == {}


def test_what_a_pod_reserved_is_its_claims_sum_and_no_loan_of_one_container_holds_it() -> None:
    first = quota(memory_mib=4096, limit_mib=16_384)
    second = replace(first, container="second", container_id=NEIGHBOUR, memory_mib=2048)
    row = pod_row(first, 8192)
    reading = {CONTAINER: (holder(7, 9000),), NEIGHBOUR: (holder(8, 1000, NEIGHBOUR),)}
    assert needed_mib([first, second, row], reading) == 8192 - 4096 - 1000
    assert needed_mib([first, second], reading) == 1048
    assert needed_mib([first, second, row], reading, {first.pod_uid}) == 0


def contention(seed: int, joint: float) -> Card:
    """Make 3 to 7 shares on a card, borrowers that grow by ``joint`` MiB a second together, and some that come late.

    At least ``SLACK_MIB`` of the card are reserved by nobody. One kill in ten takes 5 s in which the memory stays; one
    regular sample in twenty is lost, never two in a row.
    """
    chance = random.Random(seed)
    total = chance.choice([16_384, 24_576, 46_068, 81_559])
    parts = [chance.random() + 0.1 for _ in range(chance.randint(3, 7))]
    rates = [chance.random() + 0.01 for _ in parts]
    room = (total - SLACK_MIB) * chance.uniform(0.3, 1.0)
    tenants = []
    for number, (part, rate) in enumerate(zip(parts, rates, strict=True)):
        mib = max(512, int(room * part / sum(parts)))
        limit = mib + chance.randrange(1024, total) if chance.random() < 0.6 else None
        starts = 1000.0 + chance.uniform(0, 20)
        tenants.append(
            Tenant(
                number=number, memory_mib=mib, limit_mib=limit, wants=chance.randrange(mib // 2, (limit or mib) + 1),
                rate=chance.choice([FAST, 1e9 / 2**20, 100.0]) if limit is None else joint * rate / sum(rates),
                starts=starts, obeys=chance.choice([NEVER, chance.uniform(0, 9)]),
                dies=5.1 if chance.random() < 0.1 else 0.2, asked=starts if chance.random() < 0.3 else None,
            )
        )  # fmt: skip
    lend(tenants, total - SLACK_MIB, chance)
    return Card(tenants, total, seed=seed)


def lend(tenants: list[Tenant], mib: int, chance: random.Random) -> None:
    """Let borrowers hold at the start what nobody reserves who was there first, up to ``mib`` of the card in all."""
    first = [each for each in tenants if each.asked is None]
    spare = mib - sum(each.memory_mib for each in first)
    for each in first:
        if each.limit_mib is not None and each.wants > each.memory_mib:
            lent = int(min(each.wants - each.memory_mib, spare * chance.random()))
            each.held, each.starts, each.up, spare = each.memory_mib + lent, 0.0, True, spare - lent


def test_below_the_stated_rate_nobody_within_its_reservation_is_killed_told_or_refused() -> None:
    count, told, killed, waits = extent.trials(60, 10_000), 0, 0, [0.0]
    for seed in range(count):
        card = contention(seed, JOINT)
        card.run(40)
        assert (card.refused, card.wronged, card.longest_short) == ([], [], 0), f"seed {seed}"
        told += sum(each.decision is Decision.RECLAIM_NOTICE for _, each in card.decisions)
        killed += sum(each.decision is Decision.KILL for _, each in card.decisions)
        slowest = max(each.dies for each in card.tenants)
        waits += [each.ready - each.asked - slowest for each in card.tenants if each.asked and each.ready]
    assert told > count / 10, "borrowers were told"
    assert killed > count / 10, "borrowers were killed"
    late = sum(each > RULES.notice + 3 for each in waits)
    assert late <= len(waits) / 100, "who comes late waits for the notice and the slowest kill"
    assert max(waits) <= PUT_OFF * RULES.notice + 3, "and where borrowers take turns, for a second notice at most"
    extent.figure("lending", "within their reservation killed, told or refused memory", f"0 in {count:,} contentions")
    extent.figure("lending", "longest wait of a share that came late, but for the slowest kill", f"{max(waits):.1f} s")
    extent.figure("lending", "such waits that took longer than a notice and 3 s", f"{late} of {len(waits) - 1:,}")


@pytest.mark.parametrize(("rate", "name"), [(1024.0, "1 GiB/s"), (FAST, "200 GB/s")])
def test_above_the_rate_borrowers_can_take_what_is_reserved_for_a_moment_and_nobody_else_is_killed(
    rate: float, name: str
) -> None:
    count, short, refused = extent.trials(20, 1000), list[float](), 0
    for seed in range(count):
        card = contention(seed, rate)
        for each in card.tenants:
            each.dies = 0.2
        card.run(40)
        assert card.wronged == [], f"seed {seed}"
        short.append(card.longest_short)
        refused += bool(card.refused)
    assert max(short) <= 2.0
    assert rate < FAST or max(short) > 0
    found = f"{sum(each > 0 for each in short)} of {count:,}, up to {max(short):.1f} s"
    extent.figure("lending", f"at {name}: contentions in which reserved memory was lent", found)
    extent.figure("lending", f"at {name}: in which a share was refused what it reserved", f"{refused} of {count:,}")
