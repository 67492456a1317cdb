"""What a share keeps for CUDA contexts on each card: the H100 is measured, the others are computed from it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cuda_context import context_mib, smallest_share_mib
from gpushare.memory_fraction import Reserve, budget

RECORDED = Path(__file__).parents[2] / "gpu" / "results" / "h100-80gb-580.159.04"
H100 = 132
CARDS = {"T4": 40, "L4": 58, "A10": 72, "A100": 108, "H100": H100, "H200": 132, "B200": 148}
"""Multiprocessors, from NVIDIA's data sheets. The H100 is measured, the others are computed."""
CARD_MIB = {"T4": 14913, "L4": 22570, "A10": 22731, "A100": 81273, "H100": 81079, "H200": 143156, "B200": 183359}
SHARES = [1024 * gib for gib in range(1, 65)]
PERCENT = (None, 75, 50, 25, 10, 5)


def recorded(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / file).read_text().splitlines()]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("percent", PERCENT)
def test_a_program_that_takes_the_fraction_of_the_total_starts_in_every_share(card: str, percent: int | None) -> None:
    """As vLLM does: it compares the fraction of the total with what is free once its context is there."""
    context, before = context_mib(CARDS[card], percent or 100), 0
    for limit in (each for each in SHARES if each <= CARD_MIB[card]):
        mine = budget(limit, CARD_MIB[card], Reserve(), context_mib=context)
        assert 0 < before < mine.usable_mib or before == 0 < mine.usable_mib, (limit, mine)
        assert math.ceil(mine.total_mib * float(mine.of_total)) <= limit - context
        assert mine.usable_mib <= limit - context - 150 or limit < smallest_share_mib(CARDS[card], percent or 100)
        before = mine.usable_mib


def test_every_context_that_was_measured_fits_into_what_is_kept() -> None:
    """The largest context of the H100: PyTorch with cudaMallocAsync; and each by the thread percentage."""
    (by_percentage,) = (row["context_by_percentage"] for row in recorded("cap.jsonl") if "context_by_percentage" in row)
    kept = {percent: context_mib(H100, int(percent)) + 150 for percent in by_percentage}
    assert {percent: mib for percent, mib in by_percentage.items() if mib > kept[percent]} == {}
    rows = [row["nvml_context"]["c"] for row in recorded("frameworks.jsonl") if "nvml_context" in row]
    assert len(rows) >= 6
    assert max(rows) <= Reserve().of(8192, context_mib(H100))


def test_no_recorded_program_is_refused_with_todays_reserve() -> None:
    """Each row of the experiment says what was free when its context was there; PyTorch and JAX started with 768."""
    asked = [row for row in recorded("cap.jsonl") if "reserve" in row and "as vLLM" in row["program"]]
    assert {row["limit"] for row in asked} == {4096, 8192, 16384}
    for row in asked:
        free = int(row["out"].split()[1])
        mine = budget(row["limit"], 81079, Reserve(), context_mib=context_mib(H100))
        assert math.ceil(mine.total_mib * float(mine.of_total)) <= free, row
        assert mine.limit_mib - mine.usable_mib >= 768 or row["limit"] == 16384, "JAX with preallocation ran with it"


def test_what_was_512_before_refuses() -> None:
    """The rule that this replaced, so that the test above is known to fail of it."""
    mine = budget(8192, 81079, Reserve(512), context_mib=context_mib(H100))
    assert math.ceil(mine.total_mib * float(mine.of_total)) > 7581


@given(st.integers(1, 300), st.integers(1, 100))
def test_a_context_grows_with_the_multiprocessors_that_may_be_used(sms: int, percent: int) -> None:
    assert 130 < context_mib(sms, percent) <= context_mib(sms + 1, percent)
    assert context_mib(sms, percent) <= context_mib(sms, min(100, percent + 1))
    smallest = smallest_share_mib(sms, percent)
    assert smallest % 64 == 0
    assert smallest - 64 <= context_mib(sms, percent) + 150 < smallest


@pytest.mark.parametrize(("card", "smallest"), [("T4", 448), ("L4", 512), ("A100", 704), ("H100", 832), ("B200", 832)])
def test_the_smallest_useful_share(card: str, smallest: int) -> None:
    assert smallest_share_mib(CARDS[card]) == smallest
