"""The enforcer's rights: all but those it needs are given up before it begins, by itself and for whatever it starts.

Linux capabilities belong to threads, and those that come later inherit them: this is for the first thread, early.
"""

import ctypes
import os
from collections.abc import Collection, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

import structlog

from gpushare.errors import ConfigError
from gpushare.reasons import Reason

log = structlog.get_logger()

STATUS: Final = Path("/proc/thread-self/status")
LAST: Final = Path("/proc/sys/kernel/cap_last_cap")
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3: Final = 0x20080522
_WORDS: Final = 2
_BITS: Final = 32


class Capability(IntEnum):
    """A Linux capability that the enforcer can need; see capabilities(7)."""

    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    SYS_PTRACE = 19
    SYS_ADMIN = 21


ALWAYS: Final = frozenset({Capability.KILL, Capability.SYS_PTRACE, Capability.SYS_ADMIN})
"""End processes of others, look into them, set GPUs' compute mode."""
WITH_DAEMONS: Final = frozenset({Capability.SETGID, Capability.SETUID})
"""Daemons of MPS start servers under their clients' user."""


def drop_unneeded(*, daemons: bool) -> None:
    """Give up what no part of the enforcer needs; ``daemons``: it starts daemons of MPS itself.

    Raises:
        ConfigError: the kernel refuses.
    """
    left = limit_to(ALWAYS | (WITH_DAEMONS if daemons else frozenset()))
    names = [each.name for each in Capability if each in left]
    log.info("capabilities left", reason=str(Reason.ENFORCER_STARTED), capabilities=names)


def limit_to(wanted: Collection[Capability]) -> frozenset[int]:
    """Give up every capability but these, of which none is gained. Returns those that are left, by number.

    Raises:
        ConfigError: the kernel refuses.
    """
    present = effective()
    left = present & frozenset(wanted)
    libc = ctypes.CDLL(None, use_errno=True)
    if Capability.SETPCAP in present:
        for number in set(range(int(LAST.read_text()) + 1)) - left:
            _check(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    else:  # what root starts has all of the bounding set again, but for this
        _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    data = (ctypes.c_uint32 * (3 * _WORDS))(*_data(left))
    _check(libc.capset(header, data))
    return effective()


def effective(status: Path = STATUS) -> frozenset[int]:
    """Return the capabilities that this thread has, by number."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    mask = int(line.split()[1], 16)
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


def _data(left: Collection[int]) -> Iterator[int]:
    """Write the kernel's ``struct __user_cap_data_struct[2]``: effective, permitted, inheritable."""
    mask = sum(1 << number for number in left)
    for word in range(_WORDS):
        part = mask >> _BITS * word & (1 << _BITS) - 1
        yield from (part, part, 0)


def _check(returned: int) -> None:
    if returned != 0:
        why = os.strerror(ctypes.get_errno())
        raise ConfigError(
            f"--drop-capabilities: the kernel refused: {why}; leave the option out to keep all capabilities"
        )
