"""Keeps the account of each GPU's memory, and records on disk what is known of it, for a restart."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.unaccounted import MOST_KNOWN_MIB, Account, update
from enforcer.quota.types import Quota
from enforcer.runtime import files
from gpushare.errors import ConfigError
from gpushare.files import read_regular_file
from gpushare.formats import KNOWN_MEMORY
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "known-memory.json"
"""``{"GPU-...": 26}``: MiB beyond the rows when no share was on the GPU. Only root on the node writes there."""
MAX_BYTES: Final = 64 * 1024


class UnaccountedMonitor:
    """Takes in the loop's samples. One thread does; any may read ``latest``.

    Args:
        folder: the state directory.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Final = folder / NAME
        self._recorded = _recorded(self._path)
        self.latest: Mapping[str, Account] = {}
        """By GPU; replaced whole. A GPU in MIG mode has none: its instances have."""

    def take(self, views: Sequence[GpuSnapshot], quotas: Sequence[Quota], now: float) -> None:
        """Take in one sample of every GPU; ``now`` on the loop's clock, in seconds."""
        found = dict(self.latest)
        for view in (each for each in views if not each.gpu.mig_enabled):
            uuid = view.gpu.uuid
            before = found.get(uuid) or Account(known_mib=self._recorded.get(uuid, 0))
            found[uuid] = update(before, view, [each for each in quotas if each.gpu == uuid], now)
        self.latest = found

    def record(self) -> None:
        """Write down what is known, where that changed."""
        known = {**self._recorded, **{gpu: account.known_mib for gpu, account in self.latest.items()}}
        if known == self._recorded:
            return
        try:
            files.replace(self._path, json.dumps(known).encode() + b"\n")
        except OSError as error:
            log.warning("known memory not recorded", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))
        else:
            self._recorded = known


def _recorded(path: Path) -> dict[str, int]:
    """Read what was recorded; what cannot be read, or cannot be, is not known."""
    try:
        found = KNOWN_MEMORY.load(read_regular_file(path, MAX_BYTES))
    except (ConfigError, OSError):
        return {}
    return {gpu: mib for gpu, mib in found.items() if type(mib) is int and 0 <= mib <= MOST_KNOWN_MIB}
