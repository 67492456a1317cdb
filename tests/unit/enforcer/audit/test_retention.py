import pytest

from enforcer.audit.retention import DAY, MIB, Retention, SegmentInfo


def kept(*sizes: int, age: float = 0.0) -> list[SegmentInfo]:
    return [SegmentInfo(size * MIB, age) for size in sizes]


def test_without_limits_everything_is_kept() -> None:
    assert Retention(segments=0, mib=0, days=0).expired(kept(*[4] * 500, age=9999 * DAY)) == 0


def test_by_default_a_quarter_of_a_gibibyte_is_kept() -> None:
    assert Retention().expired(kept(*[4] * 64)) == 0
    assert Retention().expired(kept(*[4] * 66)) == 2


@pytest.mark.parametrize(("limit", "count"), [(1, 4), (3, 2), (5, 0), (9, 0)])
def test_the_number_of_segments_is_kept(limit: int, count: int) -> None:
    assert Retention(segments=limit).expired(kept(1, 1, 1, 1, 1)) == count


def test_the_larger_of_two_surpluses_counts() -> None:
    assert Retention(segments=4, mib=2).expired(kept(1, 1, 1, 1, 1)) == 3
    assert Retention(segments=2, mib=4).expired(kept(1, 1, 1, 1, 1)) == 3


def test_the_last_segment_stays_however_large_and_old() -> None:
    assert Retention(segments=1, mib=1, days=1).expired(kept(9, age=99 * DAY)) == 0
    assert Retention(segments=1, mib=1, days=1).expired(kept(9, 9, age=99 * DAY)) == 1


def test_a_clock_set_to_another_year_removes_one_segment_at_a_time() -> None:
    assert Retention(days=90).expired(kept(1, 1, 1, 1, age=3650 * DAY)) == 1
    assert Retention(days=90).expired(kept(1, 1, 1, 1, age=90 * DAY)) == 0
    assert Retention(days=90).expired(kept(1, 1, 1, 1, age=-3650 * DAY)) == 0
