"""What people may write as memory, percentage and duration: a table of verdicts, written down as data.

``quantities.jsonl`` holds a row per text; ``verdict`` is MiB, percent or seconds, ``null`` where it is refused.
"""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import QuantityError
from gpushare.quantity import (
    MAX_MIB,
    format_mib,
    parse_duration,
    parse_gpus,
    parse_memory,
    parse_overcommit,
    parse_percent,
    parse_profile,
    profile_mib,
    same_quantity,
)
from gpushare.reasons import Reason

READERS: dict[str, Any] = {"memory": parse_memory, "percent": parse_percent, "duration": parse_duration}
TABLE = [json.loads(line) for line in Path(__file__).with_name("quantities.jsonl").read_text("utf-8").splitlines()]


def test_the_table_is_as_long_as_promised() -> None:
    assert len(TABLE) >= 300
    assert len({(row["kind"], row["text"]) for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['kind']}-{row['text']!a}")
def test_result_is_the_one_written_down(row: dict[str, Any]) -> None:
    read = READERS[row["kind"]]
    if row["verdict"] is not None:
        assert read(row["text"]) == pytest.approx(row["verdict"], rel=1e-12)
        return
    with pytest.raises(QuantityError) as error:
        read(row["text"])
    assert error.value.reason is Reason.INVALID_QUANTITY
    assert error.value.message.isascii()
    assert error.value.message.isprintable()
    assert len(error.value.message) < 160


@pytest.mark.parametrize("read", READERS.values())
@pytest.mark.parametrize(
    "value", [None, True, 0, 25, 4096, 0.5, float("nan"), [], {}, ["4Gi"], b"4Gi", b"25"], ids=repr
)
def test_what_is_no_string_is_refused(read: Any, value: object) -> None:
    with pytest.raises(QuantityError, match="is not a string"):
        read(value)


@pytest.mark.parametrize("read", READERS.values())
def test_a_long_value_is_refused_unread_and_cut_in_the_message(read: Any) -> None:
    with pytest.raises(QuantityError, match="is too long") as error:
        read("1" * 1_000_000 + "Mi")
    assert len(error.value.message) < 160


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4096", "did you mean 4096Mi"),
        ("4GB", "write 4Gi or 4G"),
        ("1.5gib", r"write 1\.5Gi or 1\.5G"),
        ("4KB", "write Mi, Gi"),
        ("0", "write for example 4Gi"),
        ("000", "write for example 4Gi"),
        ("0GB", "write for example 4Gi"),
        ("999999999999999", "write for example 4Gi"),
        ("999999999999999TB", "write for example 4Gi"),
        ("lots", "for example 4Gi"),
    ],
)
def test_refusal_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(QuantityError, match=hint):
        parse_memory(text)


@given(st.integers(1, MAX_MIB))
def test_what_is_written_for_people_reads_back(mib: int) -> None:
    assert parse_memory(format_mib(mib)) == mib


UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "M": 10**6, "G": 10**9, "T": 10**12}


@given(st.integers(0, 10**6), st.from_regex(r"[0-9]{1,9}", fullmatch=True), st.sampled_from(sorted(UNITS)))
def test_memory_is_exact_and_rounded_up(whole: int, fraction: str, unit: str) -> None:
    exact = Fraction(f"{whole}.{int(fraction):0{len(fraction)}d}") * UNITS[unit] / 2**20
    if exact == 0:
        return
    assert 0 <= parse_memory(f"{whole}.{int(fraction):0{len(fraction)}d}{unit}") - exact < 1


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in READERS.values():
        try:
            assert read(text) >= 0
        except QuantityError:
            continue


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", 1, True),
        ("1000m", 1, True),
        ("1.50", "1500m", True),
        ("1Gi", "1024Mi", True),
        ("1e3", "1k", True),
        ("1E", "1e18", True),
        ("1G", "1Gi", False),
        ("100m", "0.2", False),
        ("one", "one", True),
        ("one", 1, False),
        ("1 ", 1, False),
        ("\u0661", 1, False),
        ("9" * 5000, 1, False),
        (True, 1, False),
        ([], {}, False),
    ],
)
def test_amounts_of_kubernetes_are_compared_by_value(one: object, other: object, same: bool) -> None:  # noqa: FBT001
    assert same_quantity(one, other) is same
    assert same_quantity(other, one) is same


@pytest.mark.parametrize("text", ["1g.5gb", "7g.80gb", "1c.3g.40gb", "1g.10gb+me", "1g.12gb+me.all", "4g.141gb"])
def test_a_mig_profile_is_read_as_nvidia_writes_it(text: str) -> None:
    assert parse_profile(text) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1g.10GB", "1g.10gb"), (" 2g.20gb", "2g.20gb"), ("8g.10gb", "1g.10gb"), ("1g.0gb", "1g.10gb"),
        ("1g.10gb\n", "1g.10gb"), ("1g.\u06610gb", "1g.10gb"), ("mig-1g.10gb", "1g.10gb"), ('1g.10gb"', "1g.10gb"),
        ("1g.10gb+me+me", "1g.10gb"), (1, "1g.10gb"), (None, "1g.10gb"), ("", "1g.10gb"), ("1g.10gb" * 9, "1g.10gb"),
    ],
)  # fmt: skip
def test_what_is_no_mig_profile_is_refused_with_an_example(text: object, meant: str) -> None:
    with pytest.raises(QuantityError, match=re.escape(meant)):
        parse_profile(text)


def test_a_profile_says_how_much_memory_it_has() -> None:
    assert [profile_mib(each) for each in ("1g.10gb", "1c.3g.40gb", "1g.10gb+me")] == [10240, 40960, 10240]


@pytest.mark.parametrize(("text", "percent"), [("1", 100), ("1.5", 150), ("10", 1000), ("1.15", 115), ("1.009", 100)])
def test_a_factor_becomes_percent_rounded_down(text: str, percent: int) -> None:
    assert parse_overcommit(text) == percent


@pytest.mark.parametrize(
    "value", ["0", "0.99", "10.01", "11", "1.", ".5", "1e1", "+2", "-1", " 2", "2\n", "", "\u0661", 2]
)
def test_what_is_no_factor_is_refused(value: object) -> None:
    with pytest.raises(QuantityError, match=r"1\.5"):
        parse_overcommit(value)


def test_a_number_of_gpus_is_one_to_sixteen() -> None:
    assert [parse_gpus(str(count)) for count in range(1, 17)] == list(range(1, 17))
    for value in ("0", "17", "02", "2.0", "+2", "-1", " 2", "2\n", "", "\u0662", "two", 2, None):
        with pytest.raises(QuantityError, match=r"number of GPUs"):
            parse_gpus(value)
