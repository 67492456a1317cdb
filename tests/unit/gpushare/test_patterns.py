"""What an expression may see: texts up to its bound, of ASCII where the expression says nothing else."""

import pytest

from gpushare.patterns import Pattern, Search

SLOW = r"(a+)+b"
"""Exponential, so that a text that it sees would hang the test."""


@pytest.mark.timeout(20)
def test_a_longer_text_does_not_match_and_is_not_looked_at() -> None:
    long = "a" * 60
    assert Pattern(SLOW, 59).fullmatch(long) is None
    assert Pattern(SLOW, 59).match(long) is None
    assert Search(SLOW, 59).search(long) is None


def test_a_text_of_the_bound_matches() -> None:
    assert Pattern(r"a*", 3).fullmatch("aaa") is not None
    assert Pattern(r"a*", 3).fullmatch("aaaa") is None
    assert Pattern(rb"a", 3).match(b"abc") is not None
    assert Search(rb"c", 3).search(b"abc") is not None


def test_classes_are_those_of_ascii() -> None:
    assert Pattern(r"\d", 1).fullmatch("٣") is None
    assert Pattern(r"(?u:\d)", 1).fullmatch("٣") is not None
