"""Whose containers keep the /dev/shm of an MPS pod that was replaced."""

from collections.abc import Sequence
from typing import Any

import pytest

from enforcer.dra.mps_replaced import Replaced
from tests.unit.enforcer.made import neighbour, quota

GONE = 0
"""No shared memory is made; what is at /dev/shm then is the directory below it."""


@pytest.mark.parametrize(
    ("seen", "reports"),
    [
        ([1, 1, 1], 0),
        ([GONE, 1, 1], 0),
        ([1, GONE, 1], 0),
        ([1, None, 1], 0),
        ([1, 2, 2], 1),
        ([1, GONE, GONE, 2, 2], 1),
        ([1, GONE, 2, 3], 2),
    ],
)
def test_each_other_shared_memory_is_reported_once_to_all_that_run(seen: Sequence[int | None], reports: int) -> None:
    notices: list[Any] = []
    devices = iter(seen)
    replaced = Replaced(lambda: [quota(), neighbour()], notices.append, lambda: next(devices))
    for each in seen:
        if each == GONE:
            next(devices)
        replaced.turn(made=each != GONE)
    assert [each.quota.pod for each in notices] == ["tts-0", "other-0"] * reports
    assert all("restart the container" in each.note and each.reason == "MpsStopped" for each in notices)
