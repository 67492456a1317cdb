"""Unaccounted memory to the last MiB: what is a container's, and in which processes it counts."""

import pytest

from enforcer.attribution.unaccounted import TOLERANCE_MIB
from enforcer.detection.hidden import Finding, VerifiedLimits, counted
from enforcer.quota.types import WHOLE_POD
from tests.unit.enforcer.detection.test_hidden import (
    ALONE,
    HIDDEN,
    MINE,
    SERVER,
    THEIRS,
    descriptors,
    found,
    limited,
    mine,
    owned,
    theirs,
)
from tests.unit.enforcer.made import CONTAINER, holder, quota


def test_where_a_process_outside_of_the_shares_may_have_it_new_shares_get_none_of_it() -> None:
    inside, outside = found(mine()), found(mine(), holder(99, 5, "f" * 64, "some-pod"))
    assert (inside.elsewhere, outside.elsewhere) == (False, True)
    assert (inside.withheld_mib, outside.withheld_mib) == (HIDDEN - 4096, HIDDEN)


def test_what_has_not_started_and_the_sum_of_a_pod_are_no_container_that_may_have_it() -> None:
    waiting = quota(container="next", container_id=None, memory_mib=10)
    assert found(mine(), theirs(), quotas=(MINE, THEIRS, waiting)) == found(mine(), theirs())
    whole = quota(container=WHOLE_POD, memory_mib=10, container_id="f" * 64)
    assert found(mine(), theirs(), quotas=(MINE, THEIRS, whole)) == found(mine(), theirs())


def test_a_neighbour_above_its_limit_leaves_all_of_it_to_the_owner() -> None:
    finding = found(mine(), theirs(5000), SERVER, has=(descriptors(),), limits=limited(theirs(5000)))
    assert owned(finding) == (CONTAINER, HIDDEN - TOLERANCE_MIB)


def test_of_one_without_descriptors_the_largest_process_comes_first() -> None:
    small, large, middle = holder(101, 10), holder(102, 900), holder(103, 500)
    finding = found(small, large, middle, SERVER, quotas=(MINE,), present=ALONE)
    assert finding.processes == (large.identity, middle.identity, small.identity)


def test_the_first_process_is_counted_with_it_and_the_others_keep_their_rows() -> None:
    first, second, third = holder(101, 10), holder(102, 900), holder(103, 500)
    finding = Finding(owner=MINE, owner_mib=7000, processes=(first.identity, second.identity))
    reading = counted(finding, {CONTAINER: (second, third)})
    assert {each.identity: each.used_mib for each in reading[CONTAINER]} == {
        first.identity: 7000,
        second.identity: 900,
        third.identity: 500,
    }


def test_before_limit_verification_no_limit_is_known() -> None:
    limits = VerifiedLimits()
    assert limits.latest == {}
    limits.replace(limited(theirs()))
    assert limits.latest == limited(theirs())


@pytest.mark.parametrize("gap", [TOLERANCE_MIB, 0])
def test_within_the_tolerance_nothing_is_found(gap: int) -> None:
    assert found(mine(), has=(descriptors(),), gap=gap) == Finding()
