"""Commands to an MPS control daemon, and parsing of its answers: strictly, because its exit codes lie.

The daemon answers 0 to unknown commands and rejected values, reads ``10.5G`` as ten megabytes and ``1T`` as one, and
drops every limit at ``0G``. So only ``<integer>M`` is ever sent, every setting is read back, and an answer that does
not have the one expected form is an error. Observed on 535.309.01; the commands are those of NVIDIA's MPS v2.
"""

import math
from enum import StrEnum
from typing import Final

from gpushare.errors import ConfigError, MpsError
from gpushare.patterns import Pattern
from gpushare.reasons import Reason

MAX_PIPE_PATH: Final = 86
"""Longer pipe directories make the daemon exit silently: its sockets' paths have to fit into 108 bytes."""
NO_DAEMON: Final = "Cannot find MPS control daemon process"
"""What the control program says where nobody listens."""
GET_PERCENTAGE: Final = "get_default_active_thread_percentage"
GET_SERVERS: Final = "get_server_list"
QUIT: Final = "quit"
MIB_PER_GIB: Final = 1024
WHOLE: Final = 100
"""Percent."""
_PERCENTAGE: Final = Pattern(r"[0-9]{1,3}(?:\.[0-9]+)?", 32)
_PID: Final = Pattern(r"[0-9]{1,10}", 10)
_SHOWN: Final = 120


class ServerStatus(StrEnum):
    """What a server says of itself, in the daemon's words."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"


def check_pipe_path(path: str) -> None:
    """Refuse a pipe directory the daemon could not open its sockets in. Raises ``ConfigError``."""
    if len(path.encode()) > MAX_PIPE_PATH or not path.startswith("/"):
        raise ConfigError(
            f"the path of the MPS pipe directory {path!r:.200} is {len(path.encode())} bytes long; set --run to an "
            f"absolute path so short that the pipe directory's path has at most {MAX_PIPE_PATH} bytes"
        )


def set_limit(mib: int) -> str:
    """Limit future clients of the daemon's one GPU. Raises ``ConfigError`` below 1 MiB: that would mean no limit."""
    if mib < 1:
        raise ConfigError(f"an MPS memory limit of {mib} MiB would remove the limit; write at least 1 MiB")
    return f"set_default_device_pinned_mem_limit 0 {mib}M"


def get_limit() -> str:
    """Ask for the limit of the daemon's one GPU, which is its ordinal 0 whatever the node calls it."""
    return "get_default_device_pinned_mem_limit 0"


def whole_gib(mib: int) -> int:
    """The next whole GiB, which the daemon shows exactly; less than one is shown exactly as it is."""
    return mib if mib < MIB_PER_GIB else -(-mib // MIB_PER_GIB) * MIB_PER_GIB


def expected_limit(mib: int) -> str:
    """How the daemon shows a limit: exactly below 1 GiB, from there on floored to GiB."""
    return f"{mib}M" if mib < MIB_PER_GIB else f"{mib // MIB_PER_GIB}G"


def check_limit(answer: str, mib: int) -> None:
    """Compare what was read back with what was set.

    Raises:
        MpsError: another limit, or none, is in force (reason ``MpsLimitNotApplied``).
    """
    if answer.strip() != expected_limit(mib):
        raise MpsError(
            f"the enforcer set the MPS limit to {mib} MiB, but MPS reports {shown(answer)} instead of "
            f"{expected_limit(mib)}",
            Reason.MPS_LIMIT_NOT_APPLIED,
        )


def set_percentage(percent: float) -> str:
    """Share of the multiprocessors for clients of servers to come. Raises ``ConfigError``: not above 0 to 100."""
    if not 0 < percent <= WHOLE:
        raise ConfigError(f"an MPS thread percentage of {percent} is invalid; write a number above 0 and up to 100")
    return f"set_default_active_thread_percentage {percent:g}"


def check_percentage(answer: str, percent: float) -> None:
    """Compare what was read back. Raises ``MpsError``."""
    if not math.isclose(parse_percentage(answer), percent, abs_tol=0.05):
        raise MpsError(f"the enforcer set the MPS thread percentage to {percent:g}, but MPS reports {shown(answer)}")


def start_server(uid: int) -> str:
    """Start the server of a user before its first client comes."""
    return f"start_server -uid {uid}"


def terminate_client(server: int, client: int) -> str:
    """End a client's contexts without hurting its neighbours. The process itself lives on."""
    return f"terminate_client {server} {client}"


def parse_pids(answer: str) -> tuple[int, ...]:
    """Read a list of pids: one per line, nothing else. Raises ``MpsError`` on any token that is no positive integer."""
    tokens = answer.split()
    if not all(_PID.fullmatch(token) and int(token) > 0 for token in tokens):
        raise MpsError(f"MPS answered {shown(answer)} instead of a list of process ids")
    return tuple(map(int, tokens))


def parse_terminated(answer: str) -> bool:
    """Say whether a client was terminated: only a last line ``0`` means so, anything else is an error's number."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return bool(lines) and lines[-1] == "0"


def parse_percentage(answer: str) -> float:
    """Read a thread percentage, above 0 to 100. Raises ``MpsError``."""
    text = answer.strip()
    if not _PERCENTAGE.fullmatch(text) or not 0 < float(text) <= WHOLE:
        raise MpsError(f"MPS answered {shown(answer)} instead of a thread percentage")
    return float(text)


def parse_status(answer: str) -> ServerStatus | None:
    """Read a server's status; ``None`` where the daemon is too old to know it. Raises ``MpsError``."""
    text = answer.strip()
    if text.startswith("Unknown command"):
        return None
    try:
        return ServerStatus(text)
    except ValueError:
        raise MpsError(f"MPS answered {shown(answer)} instead of a server status") from None


def shown(answer: str) -> str:
    """Quote an answer for a sentence, cut and in ASCII."""
    return ascii(answer.strip()[:_SHOWN]) if answer.strip() else "nothing"
