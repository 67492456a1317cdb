"""What is answered to the kubelet about claims is durable, also where the disk failed in between."""

import os
from pathlib import Path

import pytest

from tests.unit.enforcer.dra.world import World


class Disk:
    """Fails the syncs that it is asked to, and counts those that succeed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures, self.synced, self._sync = 0, 0, os.fsync
        monkeypatch.setattr(os, "fsync", self._asked)

    def _asked(self, file: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        self._sync(file)
        self.synced += 1


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_whose_removal_was_not_durable_is_synced_before_the_next_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ending: bool, restart: bool
) -> None:
    """A power cut would bring the claim back: the file is gone, its directory entry is not."""
    world = World(tmp_path)
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    disk = Disk(monkeypatch)
    disk.failures = 1
    with pytest.raises(OSError, match="Input/output"):
        world.store.remove(ref.uid, ending=ending)
    if restart:
        world.restart()
    disk.synced = 0
    world.store.remove(ref.uid, ending=ending)
    assert disk.synced == 1
    assert world.store.get(ref.uid) is None
