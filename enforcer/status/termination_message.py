"""The termination message of a container: what ``kubectl describe pod`` shows of why it ended.

The kubelet keeps it in a file on the node that the container may write too, and reads the last 4096 bytes
(https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/). Nothing is decided by it.
"""

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from enforcer.status.messages import truncate_note
from gpushare.reasons import Reason

log = structlog.get_logger()

MOST_BYTES: Final = 64 * 1024
"""A longer file is emptied first: the kubelet shows the end alone."""


def append(path: Path, text: str) -> None:
    """Add a line to the message in ``path``; what cannot be written is logged, and nothing else comes of it."""
    # The kubelet's folders are root's alone: no tenant puts a link or a pipe there, and if one could, none is followed.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
        try:
            _append(descriptor, text)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("termination message not written", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))


def _append(descriptor: int, text: str) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    if found.st_size > MOST_BYTES:
        os.ftruncate(descriptor, 0)
    begin = "\n" if 0 < found.st_size <= MOST_BYTES else ""
    os.write(descriptor, f"{begin}{truncate_note(text)}".encode())
