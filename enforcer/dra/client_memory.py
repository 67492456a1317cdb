"""What MPS clients get as ``/dev/shm``: the node's shared memory of MPS where their driver needs it, else their own."""

import stat
from pathlib import Path
from typing import Final

from enforcer.attribution.usage import UsageSampler
from gpushare.shared_memory import SharedMemory, needs_server_file

FOR_ALL: Final = 0o1777


class ClientMemory:
    """Decides by the value and by the driver that runs now.

    Args:
        folder: where MPS pods mount the shared memory of the node.
        choice: the operator's.
        watch: knows the driver; before NVML answered once, the node's is given, with which every driver serves.
    """

    def __init__(self, folder: Path, choice: SharedMemory, watch: UsageSampler) -> None:
        self._folder, self._choice, self._watch = folder, choice, watch

    def folder(self) -> str | None:
        """Return the directory on the host that clients get; ``None``: each keeps its own.

        The MPS pod is replaced by hand: while it is older than the setting, nobody has made the directory.
        """
        if not self._wanted() or not self._folder.is_dir():
            return None
        return str(self._folder) if stat.S_IMODE(self._folder.stat().st_mode) == FOR_ALL else None

    def _wanted(self) -> bool:
        if self._choice is not SharedMemory.AUTO:
            return self._choice is SharedMemory.NODE
        drivers = {view.gpu.driver_version for view in self._watch.latest}
        return not drivers or any(map(needs_server_file, drivers))
