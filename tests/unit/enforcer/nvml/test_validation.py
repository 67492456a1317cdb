"""What NVML's answers are worth: every error has a meaning, and what cannot be true is refused."""

import pynvml  # noqa: TID251 - the numbers there are
import pytest

from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.nvml.validation import ERRORS, MOST_MIB, MOST_PID, check, check_gpu, classify_error, merge_process_lists
from enforcer.resourceslices.health_monitor import WORDS
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import card

MIB = 1024 * 1024
EVERY = {number for name, number in vars(pynvml).items() if name.startswith("NVML_ERROR_")}


def test_every_error_that_nvidia_ml_py_knows_has_a_reason_a_hint_and_words_for_the_doctor() -> None:
    assert ERRORS.keys() == EVERY
    assert len(EVERY) == 31
    for number, (reason, hint) in ERRORS.items():
        error = classify_error(number, "its own words")
        assert (error.reason, hint in error.message, "its own words" in error.message) == (reason, True, True)
        assert reason in WORDS
    assert classify_error(12345, "x").reason is Reason.NVML_UNAVAILABLE


@pytest.mark.parametrize(
    ("lists", "held"),
    [
        ([[(5, 100 * MIB)], [], [(5, 100 * MIB)]], {5: 100}),
        ([[(5, 100 * MIB)], [(5, 90 * MIB)], []], {5: 100}),
        ([[], [], [(5, MIB)]], {5: 1}),
        ([[], [(5, 3 * MIB - 1)], []], {5: 2}),
        ([[(5, 0)], [], []], {5: 0}),
        ([[(5, MIB), (5, MIB)], [], []], {5: 1}),
    ],
    ids=["compute and MPS", "two amounts, two moments", "MPS alone", "graphics alone", "nothing", "the same row twice"],
)
def test_a_process_of_several_lists_counts_once(lists: list[list[tuple[int, int]]], held: dict[int, int]) -> None:
    assert {each.pid: each.used_mib for each in merge_process_lists(GPU, lists)} == held


@pytest.mark.parametrize("rows", [[(5, None)], [(0, MIB)], [(-1, MIB)], [(5, MIB), (5, 2 * MIB)]])
def test_a_list_that_contradicts_itself_is_refused(rows: list[tuple[int, int | None]]) -> None:
    with pytest.raises(NvmlError) as caught:
        merge_process_lists(GPU, [[], rows, []])
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE


@pytest.mark.parametrize(
    ("total", "used", "rows"),
    [
        (0, 0, []), (-1, 0, []), (MOST_MIB + 1, 0, []), (2**44 - 1, 0, []), (999, 0, []), (1001, 0, []),
        (1000, -1, []), (1000, 2**44 - 1, []), (1000, 0, [(5, -1)]), (1000, 1000, [(5, 2**44 - 1)]),
        (1000, 1000, [(MOST_PID + 1, 1)]), (1000, 1000, [(0, 1)]), (1000, 1000, [(5, 800), (6, 800)]),
    ],
)  # fmt: skip
def test_a_sample_that_cannot_be_true_is_refused(total: int, used: int, rows: list[tuple[int, int]]) -> None:
    processes = tuple(GpuProcess(pid, mib) for pid, mib in rows)
    check(GpuSample(uuid=GPU, total_mib=1000, used_mib=1000, processes=(GpuProcess(MOST_PID, 1000),)), 1000)
    with pytest.raises(NvmlError) as caught:
        check(GpuSample(uuid=GPU, total_mib=total, used_mib=used, processes=processes), 1000)
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE


@pytest.mark.parametrize(("memory", "reserved"), [(0, 0), (MOST_MIB + 1, 0), (100, 100), (100, -1), (-5, 0)])
def test_a_card_that_cannot_exist_is_not_counted(memory: int, reserved: int) -> None:
    fine = card(GPU, 0)
    assert check_gpu(fine) is fine
    with pytest.raises(NvmlError) as caught:
        check_gpu(fine._replace(memory_mib=memory, reserved_mib=reserved))
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE
