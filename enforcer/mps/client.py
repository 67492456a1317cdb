"""What can be asked of one MPS control daemon, whatever words its protocol has for it.

``Client`` is the interface; ``LegacyClient`` speaks MPS v2 (commands on standard input, observed on 535.309.01), and
``client_v3`` protocol 3. Servers are named by their pids. Every question raises ``MpsError`` where nobody answers, the
answer has not the one expected form, or (reason ``ControlBlocked``) it does not come before the deadline.
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


class Client(Protocol):
    """One control daemon, as far as it can be asked and told. ``deadline``: 10 s for the question where none is given.

    The daemon has one GPU, so limits name none. A setting is read back before its method returns: exit codes lie.
    """

    def alive(self, deadline: Deadline | None = None) -> None:
        """Make sure that a daemon answers and speaks these words. The cheapest question there is."""

    def percentage(self, deadline: Deadline | None = None) -> float:
        """Default share of the multiprocessors for each client, above 0 to 100."""

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        """Set it for servers that start from now on."""

    def priority(self, deadline: Deadline | None = None) -> int:
        """Default priority of clients: 0 normal, 1 below normal."""

    def set_priority(self, priority: int, deadline: Deadline | None = None) -> None:
        """Set it for clients that come from now on."""

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """Compare each client's default memory limit with this one, as far as the answer allows.

        Raises:
            MpsError: it is another one (reason ``MpsLimitNotApplied``).
        """

    def set_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """Limit the clients of servers that start from now on to this many MiB.

        Raises:
            MpsError: what is read back differs (reason ``MpsLimitNotApplied``).
            ConfigError: below 1 MiB, which would mean no limit.
        """

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of the servers that run."""

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        """How a server is; ``None`` where the daemon is too old to say."""

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of a server's clients, in the daemon's pid namespace."""

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        """Start a user's server before its first client comes. Whether it came up has to be asked."""

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

    def quit(self, deadline: Deadline | None = None) -> None:
        """Ask the daemon to end, with its servers."""


class LegacyClient:
    """MPS v2.

    Args:
        control: carries the words.
    """

    def __init__(self, control: Asking) -> None:
        self._control = control

    def alive(self, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        self.percentage(deadline)

    def percentage(self, deadline: Deadline | None = None) -> float:
        """See ``Client``."""
        return protocol.parse_percentage(self._control.ask(protocol.GET_PERCENTAGE, deadline))

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        protocol.check_percentage(self._control.ask(protocol.set_percentage(percent), deadline), percent)

    def priority(self, deadline: Deadline | None = None) -> int:
        """See ``Client``."""
        return protocol.parse_priority(self._control.ask(protocol.GET_PRIORITY, deadline))

    def set_priority(self, priority: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        limit = deadline or Deadline()
        self._control.ask(protocol.set_priority(priority), limit)
        protocol.check_priority(self._control.ask(protocol.GET_PRIORITY, limit), priority)

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        protocol.check_limit(self._control.ask(protocol.get_limit(), deadline), mib)

    def set_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        limit = deadline or Deadline()
        self._control.ask(protocol.set_limit(mib), limit)
        self.check_limit(mib, limit)

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        """See ``Client``."""
        return protocol.parse_pids(self._control.ask(protocol.GET_SERVERS, deadline))

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        """See ``Client``."""
        return protocol.parse_status(self._control.ask(protocol.get_status(server), deadline))

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """See ``Client``."""
        return protocol.parse_pids(self._control.ask(protocol.get_clients(server), deadline))

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        self._control.ask(protocol.start_server(uid), deadline)

    def terminate(
        self, server: int, pid: int, deadline: Deadline | None = None, ended: Callable[[], bool] | None = None
    ) -> str | None:
        """See ``Client``."""
        answer = self._control.ask(protocol.terminate_client(server, pid), deadline, ended)
        return None if protocol.parse_terminated(answer) else answer

    def quit(self, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        self._control.ask(protocol.QUIT, deadline)
