import pytest

from enforcer.nvml import multiprocessors


@pytest.mark.parametrize(
    ("card", "cores", "capability", "sms"),
    [
        ("P100", 3584, (6, 0), 56), ("V100", 5120, (7, 0), 80), ("T4", 2560, (7, 5), 40), ("A100", 6912, (8, 0), 108),
        ("A10", 9216, (8, 6), 72), ("L4", 7424, (8, 9), 58), ("H100", 16896, (9, 0), 132),
        ("B200", 18944, (10, 0), 148), ("RTX PRO 6000 Blackwell", 24064, (12, 0), 188),
    ],
)  # fmt: skip
def test_the_cores_of_a_data_sheet_are_so_many_sms_and_no_card_has_more_than_the_largest(
    card: str, cores: int, capability: tuple[int, int], sms: int
) -> None:
    assert multiprocessors.of_cores(cores, capability) == sms, card
    assert multiprocessors.most(capability) >= sms


@pytest.mark.parametrize("cores", [0, 63, 2**32 - 1, -128])
def test_a_number_that_cannot_be_is_none(cores: int) -> None:
    assert multiprocessors.of_cores(cores, (8, 0)) == 0


def test_of_a_capability_that_is_not_known_the_largest_of_all_counts() -> None:
    assert multiprocessors.most((15, 0)) == max(multiprocessors.LARGEST.values())
    assert all(multiprocessors.possible(each) for each in multiprocessors.LARGEST.values())
