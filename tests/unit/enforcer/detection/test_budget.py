"""The promises of docs/reference/kills.md about budgets, each by itself, and against a plain count by hand."""

from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.detection import budget
from enforcer.detection.budget import EVERYBODY, Account, AccountKey
from enforcer.detection.detector import budget_left, evaluate
from enforcer.detection.forecast import used_seconds
from enforcer.detection.types import Decision, DetectorConfig, DetectorState
from enforcer.quota.types import Quota
from tests.unit.enforcer.made import CONTAINER, GPU, OTHER_GPU, holder, quota

CARD: Final = 16_000
STEP: Final = 0.5
RULES: Final = DetectorConfig()
MINE: Final = ("asr", GPU)
ALL: Final = (EVERYBODY, GPU)


def share(mib: int, namespace: str = "asr", *, grace: float = 5.0, up: bool = True) -> Quota:
    container = CONTAINER if up else None
    return quota(namespace=namespace, memory_mib=mib, grace_seconds=grace, container_id=container)


class Card:
    """One GPU of 16,000 MiB, sampled every half second."""

    def __init__(self, *quotas: Quota) -> None:
        self.quotas = quotas
        self.accounts: dict[AccountKey, Account] = {}
        self.now = 1000.0

    def holds(self, seconds: float, **used_mib: int) -> None:
        """Let the containers of each namespace hold so much together for so long."""
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.accounts = budget.charge(self.accounts, self.quotas, used_mib, CARD, GPU, STEP, self.now)

    def used(self, key: AccountKey = MINE) -> float:
        return budget.used_of(self.accounts.get(key, Account()), self.now)

    def empty(self, namespace: str = "asr") -> float:
        return budget.seconds_empty(self.accounts, namespace, GPU, self.now)

    def answers(self, namespace: str = "asr") -> bool:
        return budget.answers(self.accounts, share(1000, namespace), self.now)


def test_24_seconds_give_one_back_and_no_more_than_was_used() -> None:
    assert budget.refilled(5.0, 100.0, 124.0) == 4.0
    assert budget.refilled(5.0, 100.0, 100.0 + 24 * 5) == 0.0
    assert budget.refilled(5.0, 100.0, 1e6) == 0.0
    assert budget.refilled(5.0, 100.0, 90.0) == 5.0, "nor where a clock goes back"


def test_half_of_the_gpu_for_four_seconds_is_two_seconds() -> None:
    card = Card(share(1000))
    card.holds(4, asr=1000 + CARD // 2)
    assert card.accounts == {MINE: Account(used=2.0, at=1004.0, size=5.0, over=True), ALL: card.accounts[MINE]}


def test_a_namespace_within_the_sum_of_its_thresholds_uses_nothing_whoever_of_it_is_over() -> None:
    card = Card(share(1000), share(3000), share(2000, up=False))
    card.holds(100, asr=6000)
    assert card.accounts == {}, "what has not started is reserved as well"
    card.holds(STEP, asr=6016)
    assert card.used() == pytest.approx(STEP * 16 / CARD)


def test_time_over_comes_back_from_its_end_on_and_is_forgotten_when_all_is_back() -> None:
    card = Card(share(0))
    card.holds(2, asr=CARD)
    card.holds(24 + STEP, asr=0)
    assert card.used() == 1.0
    assert not card.accounts[MINE].over
    card.holds(25, asr=0)
    assert card.accounts == {}


def test_what_was_used_before_is_charged_once_and_comes_back_only_in_between() -> None:
    card = Card(share(0))
    card.holds(2, asr=CARD)
    card.holds(24, asr=0)
    card.holds(1, asr=CARD)
    assert card.used() == pytest.approx(2.0 + 1.0 - 1.0, abs=0.05)


def test_no_more_than_the_gpu_is_charged_and_no_more_than_twice_the_budget_used() -> None:
    card = Card(share(0))
    card.holds(3, asr=5 * CARD)
    assert card.used() == 3.0
    card.holds(100, asr=CARD)
    assert card.used() == card.used(ALL) == 10.0
    assert card.empty() == 24 * (5.0 + 5.0), "the GPU's comes back first"


@pytest.mark.parametrize("part", [1.0, 0.5, 0.1])
def test_without_budget_a_namespace_answers_while_it_is_over_as_a_whole(part: float) -> None:
    card = Card(share(0))
    card.holds(5 / part, asr=int(CARD * part))
    assert (card.answers(), card.empty()) == (False, 0.0), "all of its budget, and not more"
    card.holds(STEP, asr=int(CARD * part))
    assert card.answers()
    card.holds(STEP, asr=0)
    assert (card.answers(), card.empty() > 0) == (False, True)


def test_the_smallest_part_beyond_the_budget_counts_and_the_smallest_use_is_kept() -> None:
    card = Card(share(0))
    card.holds(STEP, asr=CARD)
    card.holds(STEP, asr=0)
    assert (card.used(), card.accounts[MINE].over) == (STEP, False)
    card = Card(share(0))
    card.holds(5, asr=CARD)
    card.holds(STEP, asr=CARD // 50)
    assert card.answers()
    assert 0 < card.empty() < 1


def test_the_size_is_the_longest_grace_period_of_a_namespace_and_of_all_of_them() -> None:
    card = Card(share(0, grace=2.0), share(0, grace=7.0), share(0, grace=1.0), share(0, "tts", grace=3.0))
    card.holds(1, asr=CARD // 4, tts=CARD // 4)
    assert {key[0]: each.size for key, each in card.accounts.items()} == {"asr": 7.0, "tts": 3.0, EVERYBODY: 7.0}


def test_a_namespace_whose_shares_are_gone_keeps_what_it_used() -> None:
    card = Card(share(0))
    card.holds(8, asr=CARD)
    card.quotas = ()
    card.holds(24, asr=0)
    assert card.used() == pytest.approx(7.0, abs=0.05)
    assert card.accounts[MINE].size == 5.0
    assert card.empty() > 0


def test_what_one_namespace_leaves_another_may_not_fill() -> None:
    card = Card(share(9000), share(1000, "tts"))
    card.holds(2, asr=0, tts=1000 + CARD // 2)
    assert card.used(ALL) == card.used(("tts", GPU)) == 1.0
    assert MINE not in card.accounts


def test_namespaces_that_used_up_the_gpus_budget_together_answer_and_others_do_not() -> None:
    names = ("asr", "tts", "ocr")
    card = Card(*(share(0, name) for name in names))
    card.holds(4, asr=CARD // 2, tts=CARD // 2)
    card.holds(STEP, ocr=CARD // 4)
    assert not any(map(card.empty, names))
    card.holds(2, asr=CARD // 2, tts=CARD // 2, ocr=160)
    assert [card.answers(name) for name in names] == [True, True, False]
    assert 0 < card.used(("ocr", GPU)) < budget.LITTLE * 5.0
    assert card.used(ALL) > 5.0 > card.used()


def test_while_the_gpu_has_no_budget_nothing_comes_back_to_those_who_used_it() -> None:
    card = Card(share(0), share(0, "tts"))
    card.holds(8, asr=CARD // 2, tts=CARD // 2)
    before = card.used()
    card.holds(24 * 3 - STEP, asr=0)
    assert card.used() == pytest.approx(before, abs=0.05)
    card.holds(24, asr=0)
    assert card.used() == pytest.approx(before - 1.0, abs=0.1)


def test_another_gpu_and_another_namespace_have_accounts_of_their_own() -> None:
    card = Card(share(0))
    card.holds(8, asr=CARD)
    assert card.accounts.keys() == {MINE, ALL}
    assert card.empty("tts") == 0
    there = budget.charge(card.accounts, [], {}, CARD, OTHER_GPU, STEP, card.now)
    assert there == {}


def test_a_claim_waits_for_the_gpu_on_which_its_namespace_lacks_most() -> None:
    accounts = {
        ("asr", GPU): Account(used=6.0, at=1000.0, size=5.0),
        ("asr", OTHER_GPU): Account(used=8.0, at=1000.0, size=5.0),
        ("tts", GPU): Account(used=10.0, at=1000.0, size=5.0),
    }
    assert budget.seconds_to_wait(accounts, "asr", 1000.0) == 24 * 3.0
    assert budget.seconds_to_wait(accounts, "asr", 1000.0 + 24 * 3) == 0
    assert budget.seconds_to_wait(accounts, "ocr", 1000.0) == 0


spells = st.tuples(st.integers(1, 40), st.sampled_from([0, 1, CARD // 4, CARD]), st.sampled_from([0, CARD // 2, CARD]))


@given(st.lists(spells, max_size=6), st.sampled_from([0.0, 0.5, 3.0, 5.0]))
def test_whatever_was_held_a_namespace_has_budget_again_when_that_is_said_and_not_before(
    held: list[tuple[int, int, int]], grace: float
) -> None:
    card = Card(share(0, grace=grace), share(0, "tts", grace=grace))
    for samples, asr, tts in held:
        card.holds(samples * STEP, asr=asr, tts=tts)
        assert all(0 <= each.used <= 2 * max(grace, budget.OVERDRAFT) for each in card.accounts.values())
    card.holds(STEP, asr=0)
    said = card.empty()
    assert said <= 24 * 2 * max(grace, budget.OVERDRAFT)
    card.holds(said - 2 * STEP, asr=0)
    assert (card.empty() > 0) == (said > 2 * STEP)
    card.holds(4 * STEP, asr=0)
    assert card.empty() == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60), st.integers(0, 24))
def test_a_container_is_killed_when_a_count_by_hand_says_so(samples: list[tuple[bool, int]], grace: int) -> None:
    """Time over quota uses the budget, 24 s give one back, and without budget the third sample in a row kills.

    Where the budget is overdrawn by two seconds, samples within the quota in between make no difference.
    """
    one, now, hand = share(1000, grace=grace / 4), 1000.0, Hand(grace / 4)
    state = DetectorState()
    for over, quarters in samples:
        step = quarters / 4
        now += step
        usages = {CONTAINER: (holder(1, 1001 if over else 1000),)}
        state, found = evaluate(state, [one], {GPU: usages}, now, RULES)
        assert any(each.decision is Decision.KILL for each in found) == hand.kills(step, over=over)
        if hand.killed:
            return
        assert budget_left(state, one, now, RULES) == pytest.approx(hand.left)
        assert used_seconds(state, one, now) == pytest.approx(hand.used)


@dataclass
class Hand:
    """Counts by hand: a first sample costs half a second, a pause of more than ten seconds ends a violation."""

    grace: float
    used: float = 0.0
    row: int = 0
    over: bool = False
    killed: bool = False

    @property
    def left(self) -> float:
        return min(self.grace, max(0.0, self.grace + 0.5 - self.used))

    def kills(self, step: float, *, over: bool) -> bool:
        begins = not self.over or step > 10
        if begins:
            self.used = max(0.0, self.used - step / 24)
        size = self.grace + 0.5
        if over:
            self.row = 1 if step > 10 else self.row + 1
            self.used = min(size + max(size, 2 * budget.OVERDRAFT), self.used + (0.5 if begins else step))
        elif self.used < size + budget.OVERDRAFT:
            self.row = 0
        self.over = over
        self.killed = over and self.row >= 3 and self.left <= 0
        return self.killed


@pytest.mark.parametrize(("overdraft", "seconds"), [(0.0, budget.REFILL), (0.5, budget.REFILL / 2), (2.0, 0.0)])
def test_what_all_namespaces_may_use_beyond_their_budget_leaves_none_of_them_without(
    overdraft: float, seconds: float
) -> None:
    accounts = {
        MINE: Account(used=1.0, size=5.0, over=True),
        ALL: Account(used=6.0, size=5.0, over=True),
    }
    assert budget.seconds_empty(accounts, *MINE, 0.0, overdraft) == pytest.approx(seconds)
