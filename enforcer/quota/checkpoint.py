"""Quotas on disk: what stays in force when the API server is gone or the enforcer starts again.

``checkpoint.json`` is ``{"version": 1, "quotas": [{...}]}`` with the fields of ``Quota`` in lowerCamelCase. It is
replaced whole, and one that cannot be read changes nothing: the last good one stays in force.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from enforcer.quota.types import OnExceed, Quota
from enforcer.runtime.codec import FieldError, Reader, inside, listed, row
from enforcer.runtime.files import replace
from gpushare import files, formats
from gpushare.errors import ConfigError, NewerFormatError
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "checkpoint.json"
MAX_BYTES: Final = 16 * 1024 * 1024


_LACKING: Final = frozenset({
    "containerId", "computePercent", "onExceed", "graceSeconds", "toleranceMib", "reservedMib", "clients", "resized",
    "limitMib",
})  # fmt: skip
"""What files of earlier releases lack, or may."""
_READ: Final = Reader(Quota, lacking=_LACKING)


def encode(quotas: Sequence[Quota]) -> bytes:
    """Write quotas as the file holds them."""
    content = {"version": formats.CHECKPOINT.version, "quotas": quotas}
    return json.dumps(content, indent=1, default=row).encode() + b"\n"


def decode(data: bytes) -> tuple[Quota, ...]:
    """Read the file's content; unknown fields of newer versions are passed over.

    Raises:
        ConfigError: it is not what ``encode`` writes; the message names the quota and the field.
    """
    content = formats.CHECKPOINT.load(data)
    try:
        return inside("quotas", partial(listed, _READ), content.get("quotas"))
    except FieldError as error:
        raise ConfigError(f"{NAME} cannot be read: {error}", Reason.CHECKPOINT_UNREADABLE) from error


class Checkpoint:
    """The file in the state directory. Written by one process at a time; read again whenever it has changed."""

    def __init__(self, state: Path) -> None:
        self.path: Final = state / NAME
        # Read by several threads: the file and its content change together, so that a thread that comes late
        # with an older one is put right by the next look.
        self._known: tuple[tuple[int, ...] | None, tuple[Quota, ...]] = None, ()
        self.problem: str | None = None
        """Why the file as it is now is not in force; ``None`` while it is."""

    def read(self) -> tuple[Quota, ...]:
        """Return the quotas in force: the file's, or the last good ones while it cannot be read."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return self._known[1]
        except OSError as error:
            self._complain(str(error))
            return self._known[1]
        seen, known = (found.st_ino, found.st_size, found.st_mtime_ns), self._known
        return known[1] if known[0] == seen else self._load(seen)

    @property
    def latest(self) -> tuple[Quota, ...]:
        """The quotas that were read last; the disk is not asked."""
        return self._known[1]

    def in_force(self, quota: Quota) -> Quota | None:
        """Return what a container may use now that was decided on by an earlier quota, no less than by that one.

        ``None``: nothing is known of it any more, or only a warning is wanted.
        """
        key = quota.pod_uid, quota.container_id, quota.gpu
        now = next((each for each in self.read() if (each.pod_uid, each.container_id, each.gpu) == key), None)
        if now is None or now.on_exceed is OnExceed.WARN:
            return None
        if quota.limit_mib is None:
            now = now.without_loan()  # or the decision took back what it had borrowed
        return max(quota, now, key=lambda each: each.ceiling_mib)

    def write(self, quotas: Sequence[Quota]) -> None:
        """Replace the file by these quotas, durably; nothing is written where they are the same.

        A file of a newer version stays: the quotas are in force in this process alone.

        Raises:
            OSError: the disk refuses; the old file stands.
        """
        data = encode(quotas)
        with suppress(OSError):
            if files.read_regular_file(self.path, len(data) + 1) == data:
                return
        try:
            replace(self.path, data, durable=True)
        except NewerFormatError:
            self._known = self._known[0], tuple(quotas)

    def _load(self, seen: tuple[int, ...]) -> tuple[Quota, ...]:
        try:
            quotas = decode(files.read_regular_file(self.path, MAX_BYTES))
        except ConfigError as error:
            self._complain(str(error))
            quotas = self._known[1]
        except OSError as error:  # may pass: the next look tries again
            self._complain(str(error))
            return self._known[1]
        else:
            self.problem = None
            log.info("quotas read", quotas=len(quotas))
        self._known = seen, quotas
        return quotas

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning(
                "checkpoint unreadable; the last valid quotas stay in force",
                reason=str(Reason.CHECKPOINT_UNREADABLE),
                error=problem,
            )
        self.problem = problem
