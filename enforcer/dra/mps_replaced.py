"""Report the containers that keep the /dev/shm of an MPS pod that was replaced: they cannot reach the new server."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode, Quota
from enforcer.runtime.files import replace
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from gpushare.files import read_regular_file
from gpushare.reasons import Reason

NOTE: Final = (
    "the MPS pod of this node and its shared memory (/dev/shm) were replaced: if container {container} started "
    "before that, its programs cannot reach MPS; restart the container"
)
KEPT_AT: Final = ".shm-device"
MOST_BYTES: Final = 32


class ReplacementDetector:
    """Notices once that another MPS pod made another shared memory. For one thread.

    The device number that was seen last is kept beside the shared memory, so that an enforcer that starts later notices
    too. Both are gone after a reboot.

    Args:
        memory: where MPS pods mount the shared memory.
        checkpoint: the quotas of the containers that run.
        modes: tell which of them use MPS.
        events: takes messages to the owners of pods.
    """

    def __init__(
        self, memory: Path, checkpoint: Checkpoint, modes: SharingModeController, events: EventRecorder
    ) -> None:
        self._memory, self._checkpoint, self._modes, self._events = memory, checkpoint, modes, events
        self._kept = memory.with_name(KEPT_AT)

    def check(self, *, made: bool) -> None:
        """Look once; ``made`` says whether an MPS pod has made a shared memory and not taken it away.

        Raises:
            OSError: the device number cannot be kept; the containers were reported.
        """
        device = self._device() if made else None
        if device is None or device == (last := self._last()):
            return
        if last:
            self._report()
        replace(self._kept, device)

    def _device(self) -> bytes | None:
        with suppress(OSError):
            return b"%d" % self._memory.stat().st_dev
        return None

    def _last(self) -> bytes:
        with suppress(OSError):
            return read_regular_file(self._kept, MOST_BYTES)
        return b""

    def _clients(self) -> list[Quota]:
        """Return the containers that run and whose GPU is shared through MPS."""
        running = [each for each in self._checkpoint.read() if each.container_id is not None and each.memory_mib]
        return [each for each in running if self._modes.of(each.gpu) is Mode.MPS]

    def _report(self) -> None:
        for quota in self._clients():
            note = NOTE.format(container=quota.container)
            self._events.record(UserMessage(quota=quota, reason=Reason.MPS_STOPPED, note=note, action="Restart"))
