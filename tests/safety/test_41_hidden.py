"""Test 41: memory that nobody is counted for ends no container that does not hold it."""

from tests.safety.hiding import History, Kill
from tests.support import extent


def test_nobody_is_killed_for_memory_that_it_does_not_hold() -> None:
    trials, kills, plain = extent.trials(1000, 100_000), list[Kill](), list[int]()
    for seed in range(trials):
        history = History(seed)
        history.run()
        wrong = [each for each in history.killed if each.held_mib <= each.quota.ceiling_mib]
        assert not wrong, f"seed {seed}: {wrong}"
        kills += history.killed
        plain += history.plain
    hidden, innocent = sum(each.hidden_mib > 0 for each in kills), sum(not mib for mib in plain)
    assert hidden > trials / 100, "the rule ends those that hide memory"
    assert innocent > 0, "the test bites: a plain rule does end the innocent"
    within = sum(each.held_mib <= each.quota.ceiling_mib for each in kills)
    found = f"{within} of {len(kills):,}, {hidden:,} of them with hidden memory, in {trials:,} histories"
    extent.figure("41", "containers killed that were within their quota, all that they held counted", found)
    control = (
        "containers without hidden memory that have the only descriptors while memory is unaccounted for (the control)"
    )
    extent.figure("41", control, f"{innocent:,} of {len(plain):,}")
