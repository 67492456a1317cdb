"""What is said to an MPS control daemon of protocol 3, and how its answers are read. From documentation only.

Nobody here has a driver that speaks it (R615 and newer): words and columns are those of NVIDIA's page "MPS v3
Interface", and where builds were seen to differ from it both forms are read. A command is arguments of the control
program, not a line on its standard input. Answers are asked for as CSV: the table cuts process ids short. Exit codes
are not documented, so every setting is read back here as well.

A server has namespaces. Each has limits of its own, which what its clients set themselves can only lower, and a
directory with a socket of its own; a client is in the namespace whose directory it has. A new namespace has no limits.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from enforcer.mps import protocol
from enforcer.mps.protocol import ServerStatus
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason

Words = tuple[str, ...]
SERVER: Final = "gpu"
"""The one server of a daemon: a daemon has one GPU."""
DEFAULT: Final = "default"
"""The namespace of whoever names none. Nobody is meant to be there."""
CSV: Final = "--format=csv"
ROWS: Final = "--format=csv,noheader"
LIST_SERVERS: Final[Words] = ("server", "list", ROWS)
GREET: Final[Words] = ("server", "list", CSV)
"""Answered by a header at least. Protocol 2 answers such words with nothing and exit code 0 (observed, 535.309.01)."""
LIST_SPACES: Final[Words] = ("namespace", "list", f"--server={SERVER}", ROWS)
LIST_CLIENTS: Final[Words] = ("client", "list", "--all", ROWS)
QUIT: Final[Words] = ("--quit",)
CLAIM_DIGITS: Final = 12
SHARE_DIGITS: Final = 6
MIB_OF: Final = {"K": 1 / 1024, "M": 1, "G": 1024}
_OURS: Final = re.compile(rf"s[0-9a-f]{{{CLAIM_DIGITS}}}_[0-9a-f]{{{SHARE_DIGITS}}}", re.ASCII)
_LIMIT: Final = re.compile(r"([1-9][0-9]{0,12})([KMG])", re.ASCII)
_PID: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_NONE: Final = frozenset({"", "-", "0"})
_STATUS: Final = {
    "ready": ServerStatus.ACTIVE, "active": ServerStatus.ACTIVE, "fault": ServerStatus.FAULT,
    "initializing": ServerStatus.INITIALIZING,
}  # fmt: skip
_SERVER_COLUMNS: Final = 7
_SPACE_COLUMNS: Final = 7
_CLIENT_COLUMNS: Final = 5


@dataclass(frozen=True, slots=True)
class Space:
    """Limits of a namespace: MiB for each client, percent of the multiprocessors, priority (0 normal, 1 below)."""

    memory_mib: int
    percentage: int = 100
    priority: int = 0


CAPPED: Final = Space(memory_mib=1, percentage=1, priority=1)
"""Of ``default``: less than a context takes, so who gets there by mistake gets an error and not the whole card."""


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server as it is listed. ``pid``: ``None`` while it does not run; ``status``: ``None`` for a word not known."""

    name: str
    pid: int | None
    status: ServerStatus | None
    pipe: str


@dataclass(frozen=True, slots=True)
class SpaceRow:
    """A namespace as it is listed; its limits in the daemon's words."""

    name: str
    limit: str
    percentage: str
    priority: str
    pipe: str

    @property
    def limited(self) -> bool:
        """Whether its clients' memory is limited at all."""
        return _LIMIT.fullmatch(self.limit) is not None

    def has(self, space: Space) -> bool:
        """Whether these are its limits, as far as that can be read: a limit in G may have been rounded down."""
        try:
            percentage = protocol.parse_percentage(self.percentage)
        except MpsError:
            return False
        found = percentage == space.percentage and self.priority == str(space.priority)
        return found and is_limit(self.limit, space.memory_mib)


def space_name(claim: str, request: str, space: Space) -> str:
    """Name the namespace of a claim's request: lower case letters, digits and ``_``, and short, for it is in a path.

    With other limits it is another: those of one that has clients cannot be changed.
    """
    limits = f"{space.memory_mib},{space.percentage},{space.priority}"
    return f"{space_prefix(claim)}{_digest(f'{request}={limits}', SHARE_DIGITS)}"


def space_prefix(claim: str) -> str:
    """How the names of all namespaces of a claim (its UID) begin."""
    return f"s{_digest(claim, CLAIM_DIGITS)}_"


def is_ours(name: str) -> bool:
    """Tell whether a namespace has such a name."""
    return _OURS.fullmatch(name) is not None


def create_server(gpu: str, uid: int) -> Words:
    """Create the server, for one GPU. With several users allowed it has to be root's (0)."""
    return ("server", "create", SERVER, f"--uid={uid}", f"--allowed-devices={gpu}")


def set_default(*, limit_mib: int | None = None, percentage: float | None = None, priority: int | None = None) -> Words:
    """Limit namespace ``default``, which is where a server's own limits go. Raises ``ConfigError``."""
    return ("server", "set", SERVER, *_flags(limit_mib, percentage, priority))


def create_space(name: str) -> Words:
    """Create a namespace; it has no limits yet."""
    return ("namespace", "create", name, f"--server={SERVER}")


def set_space(name: str, space: Space) -> Words:
    """Limit a namespace. Raises ``ConfigError`` where a limit would mean none, or nothing."""
    flags = _flags(space.memory_mib, space.percentage, space.priority)
    return ("namespace", "set", name, f"--server={SERVER}", *flags)


def delete_space(name: str) -> Words:
    """Delete a namespace; refused while it has clients."""
    return ("namespace", "delete", name, f"--server={SERVER}")


def terminate_client(pid: int) -> Words:
    """End a client's contexts; the process lives on."""
    return ("client", "terminate", str(pid))


def check_greeting(answer: str) -> None:
    """Make sure that a daemon of protocol 3 answered ``GREET``. Raises ``MpsError``."""
    first = answer.lstrip().partition("\n")[0].lower().replace(" ", "")
    if not first.startswith("name,uid,pid,status"):
        raise MpsError(f"MPS answered {protocol.shown(answer)} where the head of a list of servers was expected")


def parse_servers(answer: str) -> tuple[ServerRow, ...]:
    """Read ``LIST_SERVERS``. A list of devices may hold commas itself. Raises ``MpsError``."""
    rows = _rows(answer, _SERVER_COLUMNS, "servers")
    return tuple(
        ServerRow(name=row[0], pid=_pid_or_none(row[2]), status=_STATUS.get(row[3].lower()), pipe=row[4])
        for row in rows
    )


def parse_spaces(answer: str) -> tuple[SpaceRow, ...]:
    """Read ``LIST_SPACES``. Raises ``MpsError``."""
    rows = _rows(answer, _SPACE_COLUMNS, "namespaces")
    return tuple(SpaceRow(name=row[0], limit=row[3], percentage=row[4], priority=row[5], pipe=row[6]) for row in rows)


def parse_clients(answer: str) -> tuple[tuple[int, str], ...]:
    """Read ``LIST_CLIENTS``: pids with the names of their servers. A command may hold anything. Raises ``MpsError``."""
    return tuple((_pid(row[0]), row[1]) for row in _rows(answer, _CLIENT_COLUMNS, "clients"))


def check_limit(answer: str, mib: int) -> None:
    """Compare a limit that was read back. Raises ``MpsError`` (reason ``MpsLimitNotApplied``)."""
    if not is_limit(answer, mib):
        message = f"MPS was told to limit clients to {mib} MiB and now says {protocol.shown(answer)}"
        raise MpsError(message, Reason.MPS_LIMIT_NOT_APPLIED)


def is_limit(answer: str, mib: int) -> bool:
    """Tell whether a limit is shown as this many MiB are, in any unit: exactly, or rounded down to whole ones."""
    found = _LIMIT.fullmatch(answer.strip())
    return found is not None and int(found[1]) == int(mib / MIB_OF[found[2]])


def _flags(limit_mib: int | None, percentage: float | None, priority: int | None) -> Words:
    found: list[str] = []
    if limit_mib is not None:
        protocol.set_limit(limit_mib)  # refuses what would mean no limit
        found.append(f"--pinned-memory-limit={limit_mib}M")
    if percentage is not None:
        protocol.set_percentage(percentage)
        if percentage != int(percentage):
            raise ConfigError(f"an MPS thread percentage of {percentage:g} means nothing to MPS v3; write a whole one")
        found.append(f"--active-thread-percentage={int(percentage)}")
    if priority is not None:
        protocol.set_priority(priority)
        found.append(f"--client-priority={priority}")
    return tuple(found)


def _rows(answer: str, columns: int, what: str) -> list[list[str]]:
    rows = [line.split(",", columns - 1) for line in answer.splitlines() if line.strip()]
    for row in rows:
        if len(row) < columns:
            raise MpsError(f"MPS answered {protocol.shown(','.join(row))} where a list of {what} was expected")
    return [[field.strip() for field in row] for row in rows]


def _pid_or_none(text: str) -> int | None:
    return None if text in _NONE else _pid(text)


def _pid(text: str) -> int:
    if not _PID.fullmatch(text) or int(text) == 0:
        raise MpsError(f"MPS answered {protocol.shown(text)} where a process id was expected")
    return int(text)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
