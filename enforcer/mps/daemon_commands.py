"""The commands of one MPS control daemon: one method for each. ``protocol`` writes each command and parses its answer.

A new command is a method here and its text in ``protocol``. Servers are named by their pids (observed on 535.309.01).
"""

from collections.abc import Callable

from enforcer.attribution.procfs import PROC, read_stat
from enforcer.mps import protocol
from enforcer.mps.control_program import ControlProgram, Deadline
from enforcer.mps.protocol import ServerStatus


class DaemonCommands:
    """The commands of one control daemon. ``deadline``: 10 s for the command by default.

    The daemon has one GPU, so limits name none. Every method raises ``MpsError`` if no daemon answers, if the answer
    does not have the expected form, or (reason ``MpsControlBlocked``) if it does not come before the deadline.
    A setting is read back before its method returns, because the program exits with 0 also if the daemon refused.

    Args:
        control: sends the commands.
    """

    def __init__(self, control: ControlProgram) -> None:
        self._control = control
        self._terminated: dict[tuple[int, int], int] = {}
        """Start of each client that a server has terminated, by pids of server and client."""

    def alive(self, deadline: Deadline | None = None) -> None:
        """Check that a daemon answers, by the cheapest command."""
        self.percentage(deadline)

    def percentage(self, deadline: Deadline | None = None) -> float:
        """Return the default percentage of the multiprocessors for each client, above 0 to 100."""
        return protocol.parse_percentage(self._control.ask(protocol.GET_PERCENTAGE, deadline))

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        """Set the percentage for servers that start from now on."""
        protocol.check_percentage(self._control.ask(protocol.set_percentage(percent), deadline), percent)

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """Compare the default memory limit of clients with ``mib``, as far as the answer allows.

        Raises:
            MpsError: it differs (reason ``MpsLimitNotApplied``).
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
        """Return the pids of the running servers."""
        return protocol.parse_pids(self._control.ask(protocol.GET_SERVERS, deadline))

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        """Return a server's status; ``None`` if the daemon is too old for the command."""
        return protocol.parse_status(self._control.ask(f"get_server_status {server}", deadline))

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Return the pids of a server's clients, in the daemon's pid namespace."""
        return protocol.parse_pids(self._control.ask(f"get_client_list {server}", deadline))

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        """Start a user's server before its first client connects. ``servers`` shows whether it started."""
        self._control.ask(protocol.start_server(uid), deadline)

    def terminate(
        self, server: int, pid: int, deadline: Deadline | None = None, ended: Callable[[], bool] = bool
    ) -> str | None:
        """Terminate a client: its contexts end, other clients and the process itself go on.

        The command is sent once for a client, which stays in the list until its process has noticed. At a second
        command the server waits for that, 0.1 s and more, while the daemon answers nobody (measured on an H100, driver
        580.159.04).

        Args:
            server: pid of the server.
            pid: pid of the client.
            deadline: 10 s by default.
            ended: returns whether the process has exited, after which its pid may be another client's.

        Returns:
            ``None`` if the client was terminated, else the daemon's answer.
        """
        started = _start(pid)
        if started is not None and self._terminated.get((server, pid)) == started:
            return None
        answer = self._control.ask(protocol.terminate_client(server, pid), deadline, ended)
        if not protocol.parse_terminated(answer):
            return answer
        self._terminated = {key: start for key, start in self._terminated.items() if _start(key[1]) == start}
        if started is not None:
            self._terminated[server, pid] = started
        return None

    def quit(self, deadline: Deadline | None = None) -> None:
        """Ask the daemon to exit, with its servers."""
        self._control.ask(protocol.QUIT, deadline)


def _start(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; ``None``: it has ended."""
    stat = read_stat(f"{PROC}/{pid}/stat")
    return None if stat is None else stat.start
