"""What a container may hold now, which may be other than what it was judged by."""

import pytest

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.kill.recheck import Rechecker, unchanged
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason
from tests.unit.enforcer.made import holder, quota

JUDGED = quota()


class Eyes:
    def holders(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        return (holder(501, quota.memory_mib),)


def _outlook(now: Quota | None) -> Rechecker:
    def in_force(asked: Quota) -> Quota | None:
        assert asked is JUDGED
        return now

    return Rechecker(Eyes(), in_force)


def test_what_holds_now_counts_and_the_policy_it_was_judged_by() -> None:
    raised = quota(memory_mib=8192, on_exceed=OnExceed.KILL_CONTAINER)
    assert _outlook(raised).allowed(JUDGED) == quota(memory_mib=8192)
    assert _outlook(None).allowed(JUDGED) == JUDGED
    assert Rechecker(Eyes()).allowed(JUDGED) == unchanged(JUDGED) == JUDGED


def test_the_look_is_at_the_container_that_was_judged() -> None:
    assert _outlook(None).holders(JUDGED) == (holder(501, 4096),)


@pytest.mark.parametrize(
    ("now", "held", "why"),
    [
        (JUDGED, None, Reason.NVML_UNAVAILABLE),
        (None, None, Reason.NVML_UNAVAILABLE),
        (None, 9000, Reason.NOT_ENFORCING),
        (JUDGED, 4096, Reason.BACK_UNDER_QUOTA),
        (JUDGED, 4097, None),
        (quota(memory_mib=8192), 8192, Reason.BACK_UNDER_QUOTA),
        (quota(memory_mib=8192), 8193, None),
    ],
)
def test_who_is_within_what_it_may_hold_now_is_let_be(now: Quota | None, held: int | None, why: Reason | None) -> None:
    holders = None if held is None else (holder(501, held - 1), holder(502, 1))
    assert _outlook(now).let_be(JUDGED, holders) is why
