"""The quota of a container now, which may be another than that of the kill decision."""

import pytest

from enforcer.kill.recheck import READ_SECONDS, READS, Rechecker
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason
from tests.support.quotas import in_force
from tests.support.wiring import Usages
from tests.unit.enforcer.made import holder, quota

DECIDED = quota()


def _rechecker(now: Quota | None) -> Rechecker:
    def known(quota: Quota) -> Quota | None:
        assert quota is DECIDED
        return now

    return Rechecker(Usages(lambda quota: (holder(501, quota.memory_mib),)), in_force(known))


def test_the_quota_now_counts_and_the_policy_of_the_kill_decision() -> None:
    raised = quota(memory_mib=8192, on_exceed=OnExceed.KILL_CONTAINER)
    assert _rechecker(raised).current_quota(DECIDED) == quota(memory_mib=8192)
    assert _rechecker(None).current_quota(DECIDED) == DECIDED
    assert _rechecker(DECIDED).current_quota(DECIDED) == DECIDED


def test_the_sample_is_of_the_container_of_the_kill_decision() -> None:
    assert _rechecker(None).processes(DECIDED) == (holder(501, 4096),)


def test_who_takes_turns_cannot_tell_when_the_next_reading_is() -> None:
    waited = list[float]()

    class Hurried(Rechecker):
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    rechecker = Hurried(Usages(lambda _: (holder(501, 1),)), in_force())
    rechecker.processes(DECIDED)
    assert waited == []
    rechecker.processes(DECIDED, overdrawn=True)
    shortest, longest = 0.5 * READ_SECONDS, 1.5 * READ_SECONDS
    assert shortest <= min(waited) < 1.3 * shortest
    assert 0.9 * longest < max(waited) <= longest


@pytest.mark.parametrize(
    ("now", "used", "why"),
    [
        (DECIDED, None, Reason.NVML_UNAVAILABLE),
        (None, None, Reason.NVML_UNAVAILABLE),
        (None, 9000, Reason.NOT_ENFORCING),
        (DECIDED, 4096, Reason.BACK_UNDER_QUOTA),
        (DECIDED, 4097, None),
        (quota(memory_mib=8192), 8192, Reason.BACK_UNDER_QUOTA),
        (quota(memory_mib=8192), 8193, None),
    ],
)
def test_a_container_within_its_quota_of_now_is_spared(now: Quota | None, used: int | None, why: Reason | None) -> None:
    holders = None if used is None else (holder(501, used - 1), holder(502, 1))
    assert _rechecker(now).reason_to_spare(DECIDED, holders) is why


@pytest.mark.parametrize(
    ("turns", "overdrawn", "reads", "why"),
    [
        ([4096] * 6 + [4097], True, 7, None),
        ([4097, 4096], True, 1, None),
        ([4096] * 6 + [None], True, 7, Reason.NVML_UNAVAILABLE),
        ([4096] * READS + [4097], True, READS, Reason.BACK_UNDER_QUOTA),
        ([4096, 4097], False, 1, Reason.BACK_UNDER_QUOTA),
    ],
)
def test_a_container_that_takes_turns_is_over_its_quota_where_a_budget_is_overdrawn(
    turns: list[int | None], reads: int, why: Reason | None, *, overdrawn: bool
) -> None:
    left, waited = iter(turns), list[float]()
    usages = Usages(lambda _: None if (mib := next(left)) is None else (holder(501, mib),))

    class Hurried(Rechecker):
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    rechecker = Hurried(usages, in_force())
    found = rechecker.processes(DECIDED, overdrawn=overdrawn)
    assert rechecker.reason_to_spare(DECIDED, found) is why
    assert list(left) == turns[reads:]
    assert len(waited) == reads - 1
