import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer.attribution.snapshot import (
    ProcessUsage,
    UsageByContainer,  # fmt: skip
)
from enforcer.detection.budget import OVERDRAFT
from enforcer.detection.detector import DOUBT, evaluate, phase, record_kill_result
from enforcer.detection.targets import select_targets
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision, Phase
from enforcer.quota.types import OnExceed, Quota
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, holder, neighbour, quota

POLL = 0.5
RULES = DetectorConfig()
BLIND = "blind"


class Bench:
    """Runs the detector with a clock of its own and keeps what it reported."""

    def __init__(self, *quotas: Quota, rules: DetectorConfig = RULES) -> None:
        self.quotas, self.rules, self.now, self.state = list(quotas), rules, 1000.0, DetectorState()
        self.taken: list[tuple[float, KillDecision]] = []
        self.incomplete: frozenset[str] = frozenset()

    def see(self, *holders: ProcessUsage, after: float = POLL, gpu: str = GPU) -> list[KillDecision]:
        reading: dict[str, tuple[ProcessUsage, ...]] = {}
        for each in holders:
            assert each.identity.owner
            reading[each.identity.owner.container_id] = (*reading.get(each.identity.owner.container_id, ()), each)
        return self._take({gpu: reading}, after)

    def blind(self, after: float = POLL) -> list[KillDecision]:
        return self._take({GPU: None}, after)

    def see_a_part(self, *holders: ProcessUsage) -> list[KillDecision]:
        """One process is of nobody knows whom."""
        self.incomplete = frozenset({GPU})
        found = self.see(*holders)
        self.incomplete = frozenset()
        return found

    def _take(self, readings: dict[str, UsageByContainer | None], after: float) -> list[KillDecision]:
        self.now += after
        self.state, decisions = evaluate(
            self.state, self.quotas, readings, self.now, self.rules, gpu_mib={GPU: 16_384}, incomplete=self.incomplete
        )
        self.taken += [(self.now, decision) for decision in decisions]
        return list(decisions)

    def decisions(self) -> list[str]:
        return [decision.decision.value for _, decision in self.taken]

    def times(self, decision: Decision) -> list[float]:
        return [now - 1000.0 for now, made in self.taken if made.decision is decision]


OVER = holder(10, 5000)
UNDER = holder(10, 4096)


def test_a_container_at_its_ceiling_is_let_be() -> None:
    bench = Bench(quota())
    for _ in range(100):
        bench.see(UNDER)
    assert bench.taken == []
    assert phase(bench.state, bench.quotas[0], bench.now) is Phase.WITHIN


def test_the_default_tolerance_is_the_larger_of_256_mib_and_a_twentieth() -> None:
    assert quota(tolerance_mib=None, memory_mib=4096).ceiling_mib == 4096 + 256
    assert quota(tolerance_mib=None, memory_mib=40960).ceiling_mib == 40960 + 2048


def test_over_quota_is_armed_then_warned_then_killed_after_the_grace_period() -> None:
    bench = Bench(quota())
    for _ in range(20):
        bench.see(OVER)
    assert bench.decisions() == ["GraceStarted", "Warned", "Kill"]
    assert bench.times(Decision.GRACE_STARTED) == [0.5]
    assert bench.times(Decision.WARNED) == [1.5]
    assert bench.times(Decision.KILL) == [5.5], "grace runs from the first sample over quota"
    assert bench.taken[1][1].kill_in == pytest.approx(4.0)


def test_without_grace_three_samples_are_still_wanted() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    assert [[v.decision for v in bench.see(OVER)] for _ in range(3)] == [
        [Decision.GRACE_STARTED], [], [Decision.WARNED, Decision.KILL],
    ]  # fmt: skip


def test_a_spike_of_two_samples_says_nothing_to_anybody() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    for _ in range(10):
        bench.see(OVER), bench.see(OVER)
        for _ in range(int(24 / POLL)):
            bench.see(UNDER)
    assert set(bench.decisions()) == {"GraceStarted"}


@pytest.mark.parametrize("grace", [0.0, 1.0, 5.0])
def test_spikes_that_follow_each_other_are_ended_two_seconds_after_the_budget(grace: float) -> None:
    bench = Bench(quota(grace_seconds=grace))
    while "Kill" not in bench.decisions():
        bench.see(OVER), bench.see(OVER), bench.see(UNDER)
        assert bench.now < 1000.0 + 2.0 * (grace + 4.0)


def test_back_under_quota_in_time_is_spared_and_has_what_it_did_not_use() -> None:
    bench = Bench(quota())
    for _ in range(7):
        bench.see(OVER)
    bench.see(UNDER)
    assert bench.decisions() == ["GraceStarted", "Warned", "BackUnder"]
    for _ in range(4):
        bench.see(OVER)
    assert "Kill" not in bench.decisions()
    bench.see(OVER)
    assert bench.decisions()[-1] == "Kill", "3.5 s and 2 s are more than 5 s"


def test_a_second_comes_back_in_24_s_within_the_quota() -> None:
    bench = Bench(quota())
    for _ in range(7):
        bench.see(OVER)
    for _ in range(48 * 2):
        bench.see(UNDER)
    begun = bench.now
    while "Kill" not in bench.decisions():
        bench.see(OVER)
    assert bench.now - begun == 4.0, "2 s were left, and 2 s have come back; the first sample costs half a second"


def test_warn_never_kills() -> None:
    bench = Bench(quota(on_exceed=OnExceed.WARN))
    for _ in range(500):
        bench.see(OVER)
    assert bench.decisions() == ["GraceStarted", "Warned"]
    assert bench.taken[1][1].kill_in is None


def test_blindness_stops_the_clock_and_decides_nothing() -> None:
    bench = Bench(quota())
    for _ in range(4):
        bench.see(OVER)
    for _ in range(10):
        assert bench.blind() == []
    for _ in range(6):
        bench.see(OVER)
    assert "Kill" not in bench.decisions(), "1.5 s before and 2.5 s after are less than 5 s"
    assert bench.decisions() == ["GraceStarted", "Warned"]
    for _ in range(2):
        bench.see(OVER)
    assert bench.decisions()[-1] == "Kill"


def test_a_gpu_that_is_not_in_the_readings_is_blind() -> None:
    bench = Bench(quota())
    for _ in range(4):
        bench.see(OVER)
    for _ in range(100):
        assert bench.see(gpu=OTHER_GPU) == []
    assert bench.state.of(bench.quotas[0]).samples == 4


def test_a_gap_of_ten_seconds_counts_and_a_longer_one_begins_another_violation() -> None:
    bench = Bench(quota(grace_seconds=60.0))
    for _ in range(4):
        bench.see(OVER)
    bench.see(OVER, after=RULES.max_gap)
    assert bench.state.of(bench.quotas[0]).over_for == pytest.approx(1.5 + RULES.max_gap)
    bench.see(OVER, after=24.0)
    case = bench.state.of(bench.quotas[0])
    assert (case.over_for, case.samples) == (0.0, 1)
    assert case.used == pytest.approx(2.0 + RULES.max_gap - 1.0 + RULES.first), "24 s give one second back"


def test_a_restart_of_the_container_gives_no_second_back() -> None:
    bench = Bench(quota())
    for _ in range(8):
        bench.see(OVER)
    bench.quotas = [quota(container_id=NEIGHBOUR)]
    begun = bench.now
    while "Kill" not in bench.decisions():
        bench.see(holder(11, 5000, NEIGHBOUR))
    assert bench.now - begun == 1.5


def test_while_a_container_does_not_run_it_is_within_its_quota() -> None:
    bench = Bench(quota())
    for _ in range(8):
        bench.see(OVER)
    bench.quotas = [quota(container_id=None)]
    for _ in range(int(200 / POLL)):
        bench.see()
    bench.quotas = [quota()]
    bench.see()
    assert bench.state.of(bench.quotas[0]).used == 0.0


def test_a_clock_that_stands_still_or_goes_back_charges_nothing() -> None:
    bench = Bench(quota(grace_seconds=1.0))
    for _ in range(50):
        bench.see(OVER, after=-1.0)
    assert bench.decisions() == ["GraceStarted", "Warned"]


def test_processes_of_one_container_count_together() -> None:
    bench = Bench(quota(grace_seconds=0.0), neighbour())
    many = [holder(pid, 100) for pid in range(1, 41)]
    for _ in range(10):
        bench.see(*many, holder(100, 4096, NEIGHBOUR))
    assert bench.taken == []
    for _ in range(3):
        bench.see(*many, holder(41, 97), holder(100, 4096, NEIGHBOUR))
    kill = bench.taken[-1][1]
    assert kill.decision is Decision.KILL
    assert kill.quota.container_id == CONTAINER
    assert kill.used_mib == 4097


def test_the_largest_go_first_and_no_more_than_needed() -> None:
    usages = [holder(1, 100), holder(2, 3000), holder(3, 2500), holder(4, 3000)]
    assert [each.identity.pid for each in select_targets(quota(), usages)] == [2, 4]
    assert [each.identity.pid for each in select_targets(quota(memory_mib=6000), usages)] == [2]
    full = [holder(1, 3000), holder(2, 2000), holder(3, 2096)]
    assert [each.identity.pid for each in select_targets(quota(), full)] == [1], "at its kill threshold it may stay"
    everybody = select_targets(quota(on_exceed=OnExceed.KILL_CONTAINER), usages)
    assert [each.identity.pid for each in everybody] == [2, 4, 3, 1]


def test_containers_without_a_quota_are_nobodys_business() -> None:
    bench = Bench(quota(container_id=None), neighbour(grace_seconds=0.0))
    for _ in range(20):
        bench.see(holder(1, 16000), holder(2, 16000, "e" * 64))
    assert bench.taken == []


def test_use_of_another_gpu_is_not_charged_here() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    for _ in range(20):
        bench.see(OVER, gpu=OTHER_GPU)
    assert bench.taken == []


def test_a_container_that_is_being_acted_upon_is_not_decided_twice() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    for _ in range(300):
        bench.see(OVER)
    assert bench.decisions().count("Kill") == 1
    assert phase(bench.state, bench.quotas[0], bench.now) is Phase.KILLING


def test_no_word_of_relief_after_a_kill() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    for _ in range(3):
        bench.see(OVER)
    bench.see()
    bench.state = record_kill_result(bench.state, bench.quotas[0], bench.now, RULES, acted=True)
    bench.see()
    assert bench.decisions()[-1] == "Kill"


def test_a_container_that_is_gone_is_forgotten_with_its_budget() -> None:
    bench = Bench(quota())
    for _ in range(4):
        bench.see(OVER)
    bench.quotas = []
    bench.see(OVER)
    assert len(bench.state.cases) == 1
    for _ in range(int(48 / POLL)):
        bench.see(OVER)
    assert bench.state.cases == {}


amounts = st.lists(st.integers(0, 3000), max_size=8)


@settings(max_examples=300)
@given(st.lists(st.one_of(st.just(BLIND), st.tuples(amounts, amounts)), max_size=40), st.floats(0, 3))
def test_nobody_is_killed_that_a_slow_reader_of_the_rules_would_spare(samples: list[Any], grace: float) -> None:
    bench = Bench(
        quota(grace_seconds=grace),
        neighbour(grace_seconds=grace),
        rules=DetectorConfig(kills=1000, cool_down=0, kill_interval=0),
    )
    seen: dict[str, list[int]] = {CONTAINER: [], NEIGHBOUR: []}
    for sample in samples:
        if sample == BLIND:
            assert bench.blind() == []
            continue
        ours, theirs = sample
        seen[CONTAINER].append(sum(ours))
        seen[NEIGHBOUR].append(sum(theirs))
        usages = [*_usages(ours, CONTAINER, 1), *_usages(theirs, NEIGHBOUR, 100)]
        for decision in bench.see(*usages):
            if decision.decision is Decision.KILL:
                _check_kill(decision, seen, usages)


def _usages(amounts_: Iterable[int], container: str, first: int) -> list[ProcessUsage]:
    return [holder(first + n, mib, container) for n, mib in enumerate(amounts_)]


def _check_kill(decision: KillDecision, seen: dict[str, list[int]], usages: list[ProcessUsage]) -> None:
    container = decision.quota.container_id
    assert container
    over = [mib for mib in seen[container] if mib > 4096]
    assert len(over) >= 3
    assert seen[container][-1] > 4096
    assert _may_be_overdrawn(len(over), seen, decision.quota.grace_seconds) or min(seen[container][-3:]) > 4096
    assert {each.identity.owner.container_id for each in decision.targets if each.identity.owner} == {container}
    rest = [each.used_mib for each in usages if each not in decision.targets and each.identity.owner
            and each.identity.owner.container_id == container]  # fmt: skip
    assert sum(rest) <= 4096
    assert sum(rest) + decision.targets[-1].used_mib > 4096, "one fewer would not have done"


def _may_be_overdrawn(over: int, seen: dict[str, list[int]], grace: float) -> bool:
    """Whether a budget is, if nothing was given back: the container's, or its namespace's in seconds of the GPU."""
    beyond = sum(max(0, ours + theirs - 2 * 4096) for ours, theirs in zip(*seen.values(), strict=True)) / 16_384
    return (over - 1) * POLL >= grace + OVERDRAFT or beyond * POLL >= max(grace, OVERDRAFT) + OVERDRAFT


def test_ten_thousand_random_sums_agree_with_counting_by_hand() -> None:
    chance = random.Random(7)
    for _ in range(10_000):
        usages = [holder(n + 1, chance.randint(0, 800)) for n in range(chance.randint(1, 12))]
        allowed = chance.randint(1, 6000)
        bench = Bench(quota(memory_mib=allowed, grace_seconds=0.0), rules=DetectorConfig(samples=1))
        killed = any(decision.decision is Decision.KILL for decision in bench.see(*usages))
        assert killed == (sum(each.used_mib for each in usages) > allowed)


LOWERED = quota(memory_mib=4000)


def lowered() -> Bench:
    """A container that holds 4096 MiB, and a threshold that is lowered to 4000."""
    bench = Bench(quota())
    bench.see(UNDER)
    bench.quotas = [LOWERED]
    return bench


def test_a_threshold_that_is_lowered_below_what_is_lowered_counts_after_ten_minutes() -> None:
    bench = lowered()
    while bench.now < 1000.0 + DOUBT:
        bench.see(UNDER)
    assert bench.decisions() == ["GraceStarted", "Lowered"]
    assert phase(bench.state, LOWERED, bench.now) is Phase.LOWERED
    begun = bench.now
    while "Kill" not in bench.decisions():
        bench.see(UNDER)
    assert 5.0 <= bench.now - begun <= 6.5, "with all of its budget"


def test_one_that_a_resize_lowered_counts_at_once() -> None:
    bench = lowered()
    bench.quotas = [replace(LOWERED, resized=True)]
    for _ in range(20):
        bench.see(UNDER)
    assert "Lowered" not in bench.decisions()
    assert bench.decisions()[-1] == "Kill"


def test_it_counts_at_once_where_the_container_was_within_it_or_is_above_the_old_one() -> None:
    bench = lowered()
    bench.see(holder(10, 4000))
    for _ in range(20):
        bench.see(UNDER)
    assert bench.decisions()[-1] == "Kill"
    bench = lowered()
    for _ in range(20):
        bench.see(OVER)
    assert bench.decisions()[-1] == "Kill"


def test_who_is_within_the_new_one_is_judged_by_it() -> None:
    bench = Bench(quota())
    bench.see(holder(10, 3000))
    bench.quotas = [LOWERED]
    bench.see(holder(10, 3000))
    for _ in range(20):
        bench.see(UNDER)
    assert bench.decisions()[-1] == "Kill"
