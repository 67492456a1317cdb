"""Commands to one MPS control daemon, in the words of MPS v2 (standard input; observed on 535.309.01).

Servers are named by their pids.
"""

from collections.abc import Callable
from typing import Protocol

from enforcer.mps import protocol
from enforcer.mps.control import Deadline
from enforcer.mps.protocol import ServerStatus


class Asking(Protocol):
    """Carries one command to the daemon and its answer back; ``MpsControl`` does."""

    def ask(self, command: str, deadline: Deadline | None = None, moot: Callable[[], bool] | None = None) -> str:
        """Send one command, unless it is moot by then. Raises ``MpsError``."""


class Client:
    """One control daemon. ``deadline``: 10 s for the command where none is given.

    The daemon has one GPU, so limits name none. Every method raises ``MpsError`` if nobody answers, if the answer has
    not the one expected form, or (reason ``MpsControlBlocked``) if it does not come before the deadline. A setting is
    read back before its method returns: exit codes lie.

    Args:
        control: sends the commands.
    """

    def __init__(self, control: Asking) -> None:
        self._control = control

    def alive(self, deadline: Deadline | None = None) -> None:
        """Make sure that a daemon answers and speaks these words. The cheapest question there is."""
        self.percentage(deadline)

    def percentage(self, deadline: Deadline | None = None) -> float:
        """Default share of the multiprocessors for each client, above 0 to 100."""
        return protocol.parse_percentage(self._control.ask(protocol.GET_PERCENTAGE, deadline))

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        """Set it for servers that start from now on."""
        protocol.check_percentage(self._control.ask(protocol.set_percentage(percent), deadline), percent)

    def priority(self, deadline: Deadline | None = None) -> int:
        """Default priority of clients: 0 normal, 1 below normal."""
        return protocol.parse_priority(self._control.ask(protocol.GET_PRIORITY, deadline))

    def set_priority(self, priority: int, deadline: Deadline | None = None) -> None:
        """Set it for clients that come from now on."""
        limit = deadline or Deadline()
        self._control.ask(protocol.set_priority(priority), limit)
        protocol.check_priority(self._control.ask(protocol.GET_PRIORITY, limit), priority)

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """Compare each client's default memory limit with this one, as far as the answer allows.

        Raises:
            MpsError: it is another one (reason ``MpsLimitNotApplied``).
        """
        protocol.check_limit(self._control.ask(protocol.get_limit(), deadline), mib)

    def set_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """Limit the clients of servers that start from now on to this many MiB.

        Raises:
            MpsError: what is read back differs (reason ``MpsLimitNotApplied``).
            ConfigError: below 1 MiB, which would mean no limit.
        """
        limit = deadline or Deadline()
        self._control.ask(protocol.set_limit(mib), limit)
        self.check_limit(mib, limit)

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of the servers that run."""
        return protocol.parse_pids(self._control.ask(protocol.GET_SERVERS, deadline))

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        """How a server is; ``None`` where the daemon is too old to say."""
        return protocol.parse_status(self._control.ask(protocol.get_status(server), deadline))

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of a server's clients, in the daemon's pid namespace."""
        return protocol.parse_pids(self._control.ask(protocol.get_clients(server), deadline))

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        """Start a user's server before its first client comes. Whether it came up has to be asked."""
        self._control.ask(protocol.start_server(uid), deadline)

    def terminate(
        self, server: int, pid: int, deadline: Deadline | None = None, ended: Callable[[], bool] | None = None
    ) -> str | None:
        """End a client's contexts without hurting its neighbours; the process lives on.

        Args:
            server: as ``servers`` names it.
            pid: the client.
            deadline: 10 s where none is given.
            ended: asked while we wait whether that process has ended; its pid may be another client's by then.

        Returns:
            ``None`` where it is done, else what the daemon said instead.
        """
        answer = self._control.ask(protocol.terminate_client(server, pid), deadline, ended)
        return None if protocol.parse_terminated(answer) else answer

    def quit(self, deadline: Deadline | None = None) -> None:
        """Ask the daemon to end, with its servers."""
        self._control.ask(protocol.QUIT, deadline)
