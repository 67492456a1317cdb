"""Looking: what each GPU holds right now, and whose processes those are. Shared by the loop and those who act."""

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import structlog

from enforcer.attribute import Attributor, Owner
from enforcer.judge import Holder, Reading
from enforcer.model import Gpu, GpuReader, GpuSample, Quota
from gpushare.errors import NvmlError

log = structlog.get_logger()

ENUMERATE_EVERY: Final = 60
"""Looks after which the GPUs are counted again: they come and go with the driver only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One GPU at one moment; without a sample we were blind, and ``problem`` says why."""

    gpu: Gpu
    sample: GpuSample | None = None
    holders: tuple[Holder, ...] = ()
    problem: NvmlError | None = None

    @property
    def reading(self) -> Reading | None:
        """By container; ``None`` when blind."""
        if self.sample is None:
            return None
        by_container: dict[str, list[Holder]] = defaultdict(list)
        for holder in self.holders:
            if holder.identity.owner is not None:
                by_container[holder.identity.owner.container_id].append(holder)
        return {container: tuple(holders) for container, holders in by_container.items()}

    @property
    def unattributed_mib(self) -> int:
        """Used by no process we see: managed memory, other pid namespaces, processes just ended."""
        return 0 if self.sample is None else max(0, self.sample.used_mib - sum(each.used_mib for each in self.holders))


class Watch:
    """Looks at GPUs, one question at a time, whoever asks."""

    def __init__(self, reader: GpuReader, attributor: Attributor) -> None:
        self._reader, self._attributor = reader, attributor
        self._lock = threading.Lock()
        self._gpus: tuple[Gpu, ...] = ()
        self._looks = 0

    def look(self) -> tuple[View, ...]:
        """Look at every GPU.

        Raises:
            NvmlError: the GPUs cannot even be counted, and never could.
        """
        with self._lock:
            if self._looks % ENUMERATE_EVERY == 0:
                self._enumerate()
            views = tuple(self._view(gpu) for gpu in self._gpus)
            blind = any(view.sample is None for view in views)
            self._looks = 0 if blind else self._looks + 1
            return views

    def holders(self, quota: Quota) -> tuple[Holder, ...] | None:
        """Who in one container holds how much of one GPU now; ``None`` when blind."""
        with self._lock:
            gpu = next((gpu for gpu in self._gpus if gpu.uuid == quota.gpu), None)
            reading = None if gpu is None else self._view(gpu).reading
        return None if reading is None else reading.get(quota.container_id or "", ())

    def _enumerate(self) -> None:
        try:
            self._gpus = self._reader.gpus()
        except NvmlError as error:
            if not self._gpus:
                raise
            log.warning("GPUs not counted again", reason=str(error.reason), error=error.message)

    def _view(self, gpu: Gpu) -> View:
        try:
            sample = self._reader.sample(gpu.uuid)
        except NvmlError as error:
            return View(gpu=gpu, problem=error)
        seen = ((self._attributor.identify(process.pid), process.used_mib) for process in sample.processes)
        holders = tuple(Holder(identity, mib) for identity, mib in seen if identity is not None)
        return View(gpu=gpu, sample=sample, holders=holders)


def strangers(view: View, known: frozenset[str]) -> tuple[Holder, ...]:
    """Processes that hold memory of a GPU and belong to no container with a quota. They are shown, never killed."""
    return tuple(each for each in view.holders if _container(each.identity.owner) not in known)


def _container(owner: Owner | None) -> str | None:
    return None if owner is None else owner.container_id
