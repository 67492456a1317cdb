"""Every framework under every back end on six cards: none is refused, and who allocates by total gets all."""

import math
from dataclasses import replace

import pytest

from gpushare.framework_variables import SETTINGS
from gpushare.memory_fraction import fraction
from tests.support import frameworks
from tests.support.framework_table import MIB, TABLE, Evidence, Framework
from tests.support.frameworks import BACKENDS, CARDS, CONTEXTS, SHARES, cases

ALL = list(cases())


def test_the_cases_are_those_that_the_page_speaks_of() -> None:
    fitting = sum(limit <= card.usable_mib for card in CARDS for limit in SHARES)
    assert (len(CARDS), len(SHARES), len(BACKENDS), len(TABLE)) == (6, 6, 4, 14)
    assert len(ALL) == fitting * len(BACKENDS) * len(CONTEXTS)


@pytest.mark.parametrize("framework", TABLE, ids=lambda each: each.name)
def test_no_framework_is_refused_at_its_start(framework: Framework) -> None:
    refused = [
        (rule.when, case)
        for rule in framework.rules
        for case in ALL
        if rule.size(case.program).start > case.program.free
    ]
    assert refused == []


BY_TOTAL = {("vLLM", "with the fraction"), ("JAX", "with `frameworks: jax`")}
"""Frameworks and rules that take a fraction of the total memory, which has to be all that is usable."""


@pytest.mark.parametrize("framework", TABLE, ids=lambda each: each.name)
def test_who_is_notified_its_part_stays_within_it_and_who_allocates_by_total_gets_all_of_it(
    framework: Framework,
) -> None:
    for rule in framework.rules:
        for case in ALL:
            program, most = case.program, rule.size(case.program).most
            assert not rule.capped or (most is not None and most <= program.usable), (rule.when, case)
            by_total = (framework.name, rule.when) in BY_TOTAL
            assert not by_total or (most is not None and most >= 0.999 * program.usable), (rule.when, case)


def test_limit_by_card_which_was_notified_before_is_refused() -> None:
    """The rule that this replaced, so that the test above is known to fail of it."""
    mps = [case for case in ALL if case.backend == "mps-v2" and case.context is not CONTEXTS[0]]
    parts = [float(fraction(case.limit, case.card.memory_mib)) for case in mps]
    refused = [
        case for case, part in zip(mps, parts, strict=True) if math.ceil(case.program.total * part) > case.program.free
    ]
    assert len(refused) > len(mps) / 2
    whole = replace(mps[0], limit=mps[0].card.usable_mib, context=lambda _: 300).program
    assert math.ceil(whole.total * 0.92) <= whole.free, "vLLM's own default fits who has the card"


def test_vllm_and_jax_allocate_by_total() -> None:
    assert {(each.name, rule.when) for each in TABLE for rule in each.rules} >= BY_TOTAL


def test_every_setting_belongs_to_one_framework() -> None:
    assert sorted(setting.key for each in TABLE for setting in each.settings) == sorted(each.key for each in SETTINGS)


def test_the_page_is_written_from_the_table() -> None:
    assert frameworks.PAGE.read_text() == frameworks.page(), "run make golden"
    for each in TABLE:
        assert each.evidence in Evidence
        assert f"| {each.name} |" in frameworks.PAGE.read_text()


def test_a_share_of_a_megabyte_has_figures_too() -> None:
    tiny = replace(ALL[0], limit=1, context=CONTEXTS[0]).program
    assert all(rule.size(tiny).start <= 64 * MIB for each in TABLE for rule in each.rules)
