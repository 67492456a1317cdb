import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.cuda_context import context_mib
from gpushare.errors import QuantityError
from gpushare.memory_fraction import Reserve, budget, fraction, parse_reserve

MIB = 2**20


@pytest.mark.parametrize(
    ("limit", "reserve"),
    [
        (619, 619),
        (620, 619),
        (640, 629),
        (1024, 769),
        (4096, 769),
        (19225, 769),
        (19226, 770),
        (81920, 3277),
        (512, 512),
    ],
)
def test_context_and_workspaces_or_4_percent_are_in_reserve_and_never_all_beside_the_context(
    limit: int, reserve: int
) -> None:
    assert Reserve().of(limit, context_mib(132)) == reserve


@given(st.integers(1, 300_000), st.integers(130, 800))
def test_beside_a_context_something_is_always_usable(limit: int, context: int) -> None:
    usable = limit - Reserve().of(limit, context)
    assert 0 <= usable <= max(0, limit - context)
    assert (usable > 0) == (limit > context)
    assert usable <= limit + 1 - Reserve().of(limit + 1, context), "a larger share never has less"


@pytest.mark.parametrize(("limit", "reserve"), [(512, 256), (1024, 512), (100_000, 6000)])
def test_what_an_operator_chose_is_at_most_half(limit: int, reserve: int) -> None:
    assert Reserve(512, 6).of(limit, 700) == Reserve(512, 6).of(limit, None) == reserve


@pytest.mark.parametrize(("limit", "reserve"), [(512, 256), (1024, 512), (12800, 512), (12801, 513), (81920, 3277)])
def test_where_the_context_is_not_known_the_reserve_of_earlier_versions_holds(limit: int, reserve: int) -> None:
    assert Reserve().of(limit, None) == reserve


@pytest.mark.parametrize(
    ("text", "reserve"), [("", Reserve()), ("1Gi", Reserve(1024, 0)), ("6%", Reserve(0, 6)), ("300Mi", Reserve(300, 0))]
)
def test_a_reserve_is_an_amount_or_a_percentage(text: str, reserve: Reserve) -> None:
    assert parse_reserve(text) == reserve
    assert reserve.of(100_000, 619) in {4000, 1024, 6000, 300}


@pytest.mark.parametrize("value", ["much", "0%", "1.5%", "512", " ", "-1Gi", "101%", None, 600, "1" * 10_000])
def test_another_reserve_is_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        parse_reserve(value)


@given(st.integers(1, 2**30), st.integers(1, 2**30))
def test_a_fraction_has_six_decimals_and_is_never_more_than_its_part(mib: int, of: int) -> None:
    written = fraction(mib, of)
    assert (written[1], len(written)) == (".", 8)
    assert float(written) <= min(1.0, mib / of) < float(written) + 0.000001 or mib >= of


def test_a_fraction_of_nothing_is_none() -> None:
    assert fraction(5, 0) == "0.000000"


@given(st.integers(512, 300_000), st.integers(512, 300_000))
@example(25_000, 25_000)
@example(100_000, 100_000)
@example(624, 9375)
def test_who_allocates_by_total_asks_for_one_byte_beyond_the_usable_memory_at_most(limit: int, card: int) -> None:
    """As vLLM does. A part that comes out even is a little more as a binary number, which is rounded up to a byte."""
    mine = budget(min(limit, card), card, Reserve(), context_mib=context_mib(132))
    assert math.ceil(card * MIB * float(mine.of_total)) <= mine.usable_mib * MIB + 1
    assert math.ceil(mine.limit_mib * MIB * float(mine.of_free)) <= mine.usable_mib * MIB + 1


def test_what_is_free_is_the_limit_or_in_watch_only_the_card() -> None:
    assert budget(4096, 81_008, Reserve(512), context_mib=300).of_free == "0.875000"
    assert budget(4096, 81_008, Reserve(512), context_mib=300, watch_only=True).of_free == "0.044242"
