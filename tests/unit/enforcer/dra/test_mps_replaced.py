"""Whose containers keep the /dev/shm of an MPS pod that was replaced."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.dra.mps_replaced import ReplacementDetector
from enforcer.quota.types import Mode
from tests.support.wiring import Messages, Quotas, fixed_modes, label_modes
from tests.unit.enforcer.made import GPU, OTHER_GPU, neighbour, quota

FIRST, SECOND, THIRD = map(Path, ("/proc", "/sys", "/dev/shm"))
"""File systems with device numbers of their own."""
GONE: Final = None
"""No shared memory is made."""
RESTART: Final = "restart"
"""Another enforcer begins."""


@pytest.mark.parametrize(
    ("seen", "reports"),
    [
        ([FIRST, FIRST, FIRST], 0),
        ([GONE, FIRST, FIRST], 0),
        ([FIRST, GONE, FIRST], 0),
        ([FIRST, SECOND, SECOND], 1),
        ([FIRST, GONE, GONE, SECOND, SECOND], 1),
        ([FIRST, GONE, SECOND, THIRD], 2),
        ([FIRST, RESTART, FIRST], 0),
        ([FIRST, RESTART, SECOND, SECOND], 1),
        ([FIRST, GONE, RESTART, SECOND, RESTART, SECOND], 1),
        ([RESTART, FIRST], 0),
    ],
)
def test_each_other_shared_memory_is_reported_once_to_all_that_run(
    seen: Sequence[Path | str | None], reports: int, tmp_path: Path
) -> None:
    notices: list[Any] = []
    memory, others = tmp_path / "shm", quota(pod="by-turns", gpu=OTHER_GPU)
    modes = label_modes({GPU: Mode.MPS, OTHER_GPU: Mode.TIME_SLICING})

    def begin() -> ReplacementDetector:
        return ReplacementDetector(memory, Quotas(lambda: [quota(), neighbour(), others]), modes, Messages(notices))

    replaced = begin()
    for each in seen:
        if each == RESTART:
            replaced = begin()
            continue
        memory.unlink(missing_ok=True)
        if each is not GONE:
            memory.symlink_to(each)
        replaced.check(made=each is not GONE)
    assert [each.quota.pod for each in notices] == ["tts-0", "other-0"] * reports
    assert all("restart the container" in each.note and each.reason == "MpsStopped" for each in notices)


def test_what_is_no_file_in_its_place_is_as_if_nothing_was_seen(tmp_path: Path) -> None:
    notices: list[Any] = []
    (tmp_path / "shm").symlink_to(FIRST)
    (tmp_path / ".shm-device").symlink_to(tmp_path / "elsewhere")
    checkpoint = Quotas(lambda: [quota()])
    ReplacementDetector(tmp_path / "shm", checkpoint, fixed_modes(), Messages(notices)).check(made=True)
    assert notices == []
    assert (tmp_path / ".shm-device").read_text() == str(FIRST.stat().st_dev)
