"""One GPU's MPS daemon, as far as releasing its clients goes."""

from enforcer.mps.control import Deadline
from enforcer.mps.daemon import MpsDaemon


class DaemonClients:
    """The clients of a daemon of ours."""

    def __init__(self, daemon: MpsDaemon) -> None:
        self._daemon = daemon

    def clients(self) -> dict[int, int]:
        """Pids of all clients, each with its server's; none where no daemon was started. Raises ``MpsError``."""
        if not self._daemon.noted:
            return {}
        deadline = Deadline()
        return {pid: each for each in self._daemon.servers(deadline) for pid in self._daemon.clients(each, deadline)}

    def release(self, server: int, pid: int) -> str | None:
        """Have a client let go of the GPU; ``None``, or what was said instead. Raises ``MpsError``."""
        return self._daemon.client.terminate(server, pid)
