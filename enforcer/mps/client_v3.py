"""An MPS control daemon of protocol 3, asked through the same interface. From documentation only, see ``protocol_v3``.

What ``Client`` calls a default is namespace ``default`` here, and the one server has a name besides its pid.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from enforcer.mps import protocol, protocol_v3
from enforcer.mps.client import Asking, Client, LegacyClient
from enforcer.mps.control import Deadline
from enforcer.mps.launcher import Version
from enforcer.mps.protocol import ServerStatus
from enforcer.mps.protocol_v3 import ServerRow, Space, SpaceRow
from gpushare.errors import MpsError

GONE_SECONDS: Final = 2.0
"""For a client to leave the list after it was terminated."""
POLL: Final = 0.05


class Running(Asking, Protocol):
    """Runs the control program; ``MpsControl`` does."""

    def run(
        self, words: Sequence[str], deadline: Deadline | None = None, moot: Callable[[], bool] | None = None
    ) -> str:
        """Run it with these arguments, unless that is moot by then. Raises ``MpsError``."""


class NamespaceClient:
    """MPS v3.

    Args:
        control: runs the program.
        gpu: UUID of the daemon's one GPU.
    """

    def __init__(self, control: Running, gpu: str) -> None:
        self._control, self._gpu = control, gpu

    def alive(self, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        protocol_v3.check_greeting(self._control.run(protocol_v3.GREET, deadline))

    def percentage(self, deadline: Deadline | None = None) -> float:
        """See ``Client``."""
        return protocol.parse_percentage(self._default(deadline).percentage)

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        """See ``Client``; protocol 3 takes whole ones."""
        limit = deadline or Deadline()
        self._control.run(protocol_v3.set_default(percentage=percent), limit)
        protocol.check_percentage(self._default(limit).percentage, percent)

    def priority(self, deadline: Deadline | None = None) -> int:
        """See ``Client``."""
        return protocol.parse_priority(self._default(deadline).priority)

    def set_priority(self, priority: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        limit = deadline or Deadline()
        self._control.run(protocol_v3.set_default(priority=priority), limit)
        protocol.check_priority(self._default(limit).priority, priority)

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        protocol_v3.check_limit(self._default(deadline).limit, mib)

    def set_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        limit = deadline or Deadline()
        self._control.run(protocol_v3.set_default(limit_mib=mib), limit)
        self.check_limit(mib, limit)

    def server_rows(self, deadline: Deadline | None = None) -> tuple[ServerRow, ...]:
        """List the servers, those that do not run included. Raises ``MpsError``."""
        return protocol_v3.parse_servers(self._control.run(protocol_v3.LIST_SERVERS, deadline))

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        """See ``Client``."""
        return tuple(row.pid for row in self.server_rows(deadline) if row.pid is not None)

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        """See ``Client``; ``None`` also where it says a word that is not documented."""
        return self._row(server, deadline).status

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """See ``Client``."""
        limit = deadline or Deadline()
        name = self._row(server, limit).name
        found = protocol_v3.parse_clients(self._control.run(protocol_v3.LIST_CLIENTS, limit))
        return tuple(dict.fromkeys(pid for pid, its in found if its == name))

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        self._control.run(protocol_v3.create_server(self._gpu, uid), deadline)

    def terminate(
        self, server: int, pid: int, deadline: Deadline | None = None, ended: Callable[[], bool] | None = None
    ) -> str | None:
        """See ``Client``. What is answered is not documented, so the client has to be off the list."""
        limit = deadline or Deadline()
        answer = self._control.run(protocol_v3.terminate_client(pid), limit, ended)
        patience = Deadline(min(GONE_SECONDS, limit.left() / 2))
        while pid in self.clients(server, limit):
            if not patience.left():
                return answer.strip() or "nothing, and it is a client still"
            time.sleep(POLL)
        return None

    def quit(self, deadline: Deadline | None = None) -> None:
        """See ``Client``."""
        self._control.run(protocol_v3.QUIT, deadline)

    def spaces(self, deadline: Deadline | None = None) -> tuple[SpaceRow, ...]:
        """List the namespaces. Raises ``MpsError``."""
        return protocol_v3.parse_spaces(self._control.run(protocol_v3.LIST_SPACES, deadline))

    def create_space(self, name: str, deadline: Deadline | None = None) -> None:
        """Create a namespace, which has no limits yet. Raises ``MpsError``."""
        self._control.run(protocol_v3.create_space(name), deadline)

    def limit_space(self, name: str, space: Space, deadline: Deadline | None = None) -> None:
        """Limit a namespace; whether it took has to be asked. Refused while it has clients. Raises ``MpsError``."""
        words = protocol_v3.set_space(name, space)
        if name == protocol_v3.DEFAULT:
            words = protocol_v3.set_default(
                limit_mib=space.memory_mib, percentage=space.percentage, priority=space.priority
            )
        self._control.run(words, deadline)

    def delete_space(self, name: str, deadline: Deadline | None = None) -> None:
        """Delete a namespace. Refused while it has clients. Raises ``MpsError``."""
        self._control.run(protocol_v3.delete_space(name), deadline)

    def _default(self, deadline: Deadline | None) -> SpaceRow:
        for row in self.spaces(deadline):
            if row.name == protocol_v3.DEFAULT:
                return row
        raise MpsError(f"the MPS control daemon of {self._gpu} has no server, or that has no namespace default")

    def _row(self, server: int, deadline: Deadline | None) -> ServerRow:
        for row in self.server_rows(deadline):
            if row.pid == server:
                return row
        raise MpsError(f"the MPS control daemon of {self._gpu} has no server {server}")


def talkers(version: Version, control: Running, gpu: str) -> tuple[Client, Client]:
    """Both ways to speak to a daemon, first the one that is to be expected."""
    legacy, spaces = LegacyClient(control), NamespaceClient(control, gpu)
    return (legacy, spaces) if version is Version.LEGACY else (spaces, legacy)
