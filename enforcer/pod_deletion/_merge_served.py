"""One GPU's MPS daemon, as far as releasing its clients goes."""

from collections.abc import Callable

from enforcer.mps.control import Deadline
from enforcer.mps.manager import MpsManager


class DaemonClients:
    """The clients of a GPU's daemon, which comes and goes.

    Args:
        manager: of the daemons.
        gpu: the GPU's UUID.
    """

    def __init__(self, manager: MpsManager, gpu: str) -> None:
        self._manager, self._gpu = manager, gpu

    def clients(self) -> dict[int, int]:
        """Pids of all clients, each with its server's; none where no daemon was started. Raises ``MpsError``."""
        daemon = self._manager.daemons.get(self._gpu)
        if daemon is None or not daemon.noted:
            return {}
        deadline = Deadline()
        return {pid: each for each in daemon.servers(deadline) for pid in daemon.clients(each, deadline)}

    def release(self, server: int, pid: int, ended: Callable[[], bool]) -> str | None:
        """Have a client let go of the GPU; ``None``, or what was said instead. Raises ``MpsError``.

        ``ended`` says whether it has ended, up to the moment the daemon is told: its pid may be another's then.
        """
        daemon = self._manager.daemons.get(self._gpu)
        return "the daemon has ended" if daemon is None else daemon.client.terminate(server, pid, None, ended)
