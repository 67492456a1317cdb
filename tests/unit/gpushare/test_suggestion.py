"""Which word a mistyped one means."""

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.suggestion import MAX_LENGTH, likeness, nearest

KNOWN = ("gpu-share.io/memory", "gpu-share.io/compute", "gpu-share.io/gpus")
WORDS = st.text("abcd", max_size=40)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu-share.io/memroy", "gpu-share.io/memory"),
        ("gpu-share.io/cores", "gpu-share.io/compute"),
        ("gpu-share.io/gpu", "gpu-share.io/gpus"),
        ("something/else", ""),
        ("", ""),
    ],
)
def test_the_nearest_word_is_found(word: str, meant: str) -> None:
    assert nearest(word, KNOWN) == meant


def test_among_no_words_there_is_none() -> None:
    assert nearest("memory", []) == ""


def test_only_the_beginning_of_a_long_word_counts() -> None:
    assert nearest("a" * MAX_LENGTH + "b" * 10**6, ["a" * MAX_LENGTH]) == "a" * MAX_LENGTH


@given(WORDS, WORDS)
def test_what_two_words_have_in_common_is_their_longest_common_subsequence(one: str, other: str) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one, 1):
        for j, right in enumerate(other, 1):
            above = max(table[i - 1][j], table[i][j - 1])
            table[i][j] = table[i - 1][j - 1] + 1 if left == right else above
    assert likeness(one, other) == 2 * table[-1][-1] / (len(one) + len(other) or 1)


@given(WORDS, WORDS)
def test_words_are_never_less_alike_than_difflib_finds(one: str, other: str) -> None:
    assert likeness(one, other) >= SequenceMatcher(None, one, other).ratio() * bool(one + other) - 1e-9
