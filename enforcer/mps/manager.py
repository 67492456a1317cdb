"""The MPS control daemons of a node: one for each GPU that is shared, and none for any other."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

from enforcer.mps.daemon import PROGRAM, ComputeModes, MpsDaemon, MpsHealth
from gpushare.errors import GpuShareError, MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()


class MpsManager:
    """The daemons of all shared GPUs of a node."""

    def __init__(self, daemons: Mapping[str, MpsDaemon]) -> None:
        self._daemons = dict(daemons)
        self._absent: set[str] = set(self._daemons.keys() - self.noted())

    @classmethod
    def for_gpus(
        cls, limits_mib: Mapping[str, int], root: Path, binary: Path = PROGRAM, modes: ComputeModes | None = None
    ) -> Self:
        """A daemon for each GPU of ``limits_mib`` (UUID to what shares can have), each in ``root/<UUID>``."""
        made = {gpu: MpsDaemon(gpu, root / gpu, binary, limit_mib=mib, modes=modes) for gpu, mib in limits_mib.items()}
        return cls(made)

    @property
    def daemons(self) -> Mapping[str, MpsDaemon]:
        """All of them by GPU, those that do not run included."""
        return self._daemons

    def pipes(self) -> dict[str, Path]:
        """By GPU, the directory that tenants get as their pipe directory."""
        return {gpu: daemon.pipe for gpu, daemon in self._daemons.items()}

    def answers(self, gpu: str) -> bool:
        """Say whether a GPU's daemon serves. Raises ``MpsError`` where it is there but blocked."""
        return gpu in self._daemons and self._daemons[gpu].answers()

    def noted(self) -> frozenset[str]:
        """The GPUs whose daemon was started and not stopped since, also by an enforcer before us."""
        return frozenset(gpu for gpu, daemon in self._daemons.items() if daemon.noted)

    def marked(self) -> frozenset[str]:
        """The GPUs that had a daemon, and are not what they were before it yet: it runs, or their compute mode is."""
        return frozenset(gpu for gpu, daemon in self._daemons.items() if daemon.marked)

    def end(self, gpu: str) -> dict[str, GpuShareError]:
        """End one daemon, and give its GPU its compute mode back; by UUID, what went wrong."""
        try:
            self._daemons[gpu].stop()
        except GpuShareError as error:
            log.error(error.message, reason=error.reason, gpu=gpu)  # noqa: TRY400 - a sentence, no traceback
            return {gpu: error}
        self._absent |= {gpu}
        return {}

    def start(self, gpus: Collection[str] | None = None) -> dict[str, GpuShareError]:
        """Start those of ``gpus`` (``None``: all) that are not there; by UUID, what went wrong with which."""
        chosen = self._chosen(gpus)
        failures: dict[str, GpuShareError] = {}
        for gpu, daemon in chosen.items():
            try:
                daemon.start()
            except GpuShareError as error:
                failures[gpu] = error
                log.error(error.message, reason=error.reason, gpu=gpu)  # noqa: TRY400 - a sentence, no traceback
        # One that never served has no clients; one that is merely blocked may have many.
        failed = {gpu for gpu, error in failures.items() if error.reason is not Reason.CONTROL_BLOCKED}
        self._absent = failed | (self._daemons.keys() - chosen.keys() - self.noted())
        return failures

    def health(self, gpus: Collection[str] | None = None) -> dict[str, MpsHealth | GpuShareError]:
        """Ask those of ``gpus`` (``None``: all); by UUID, how each is or why that cannot be said."""
        found: dict[str, MpsHealth | GpuShareError] = {}
        for gpu, daemon in self._chosen(gpus).items():
            try:
                found[gpu] = daemon.health()
            except GpuShareError as error:
                found[gpu] = error
        return found

    def terminate(self, pid: int, gpu: str | None = None) -> bool | None:
        """Terminate an MPS client, of one GPU or wherever it is one; see ``MpsDaemon.terminate``."""
        served = {name: daemon for name, daemon in self._daemons.items() if name not in self._absent}
        answers = [daemon.terminate(pid) for name, daemon in served.items() if gpu in {None, name}]
        if False in answers:
            return False
        return True if True in answers else None

    def pids(self) -> frozenset[int]:
        """All daemons' and servers' processes that can be known now: never a target."""
        found: set[int] = set()
        for daemon in self._daemons.values():
            with suppress(MpsError):
                found |= daemon.pids()
        return frozenset(found)

    def stop(self) -> None:
        """Stop all of them. Raises the last ``NvmlError`` after trying every one."""
        last: GpuShareError | None = None
        for daemon in self._daemons.values():
            try:
                daemon.stop()
            except GpuShareError as error:
                last = error
        if last is not None:
            raise last

    def _chosen(self, gpus: Collection[str] | None) -> dict[str, MpsDaemon]:
        return {gpu: daemon for gpu, daemon in self._daemons.items() if gpus is None or gpu in gpus}
