"""Looking: what each GPU holds right now, and whose processes those are. Shared by the loop and those who act."""

import threading
from collections.abc import Collection, Sequence
from itertools import count
from typing import Final

import structlog

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.container_names import ContainerNames
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage, total_mib
from enforcer.attribution.stale_pids import Known, carry_over, update
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota
from gpushare.errors import NvmlError
from gpushare.reasons import Reason

log = structlog.get_logger()

ENUMERATE_EVERY: Final = 60
"""Looks after which the GPUs are counted again: they come and go with the driver only."""

Row = tuple[GpuProcess, Identity | None]
"""A process of NVML's list, and who has its pid now; ``None``: nobody any more."""
Seen = tuple[Gpu, GpuSample, list[Row], tuple[GpuProcess, ...], tuple[Quota, ...]]
"""A GPU, its sample, the rows of it, those of processes that live and do not show whose they are, and the quotas."""


class UsageSampler:
    """Looks at GPUs, one question at a time, from any caller.

    Args:
        reader: a door to the GPUs.
        attributor: tells whose a process is, and whether one of which it does not know that has ended.
        changed: set when other GPUs are there than before.
        checkpoint: the quotas in force; ``None``: no sum of a pod is looked at.
        names: hears which containers hold GPU memory; ``None``: nobody does.
    """

    def __init__(
        self,
        reader: GpuReader,
        attributor: CgroupAttributor,
        changed: Sequence[threading.Event] = (),
        checkpoint: Checkpoint | None = None,
        names: ContainerNames | None = None,
    ) -> None:
        self._reader, self._attributor, self._changed = reader, attributor, changed
        self._checkpoint, self._names = checkpoint, names
        self._lock = threading.Lock()
        self._gpus: tuple[Gpu, ...] = ()
        self._looks = 0
        self._number = 0
        self._read: dict[str, int] = {}
        """Number of the look at which each was read last."""
        self._known: dict[str, Known] = {}
        """What each GPU's list had last; see ``enforcer.attribution.stale_pids``."""
        self._seen: dict[str, tuple[Seen, GpuSnapshot]] = {}
        """What was put together last of what; where that is the same again, so is the view."""
        self.latest: tuple[GpuSnapshot, ...] = ()
        """What was seen last."""
        self.problem: str | None = None
        self._list_error = ""
        """Why the GPUs cannot be counted, where they never could; ``None`` where they could."""

    def sample(self) -> tuple[GpuSnapshot, ...]:
        """Look at every GPU.

        Raises:
            NvmlError: the GPUs cannot even be counted, and never could.
        """
        with self._lock:
            if self._looks % ENUMERATE_EVERY == 0:
                self._enumerate()
            with self._reader.batch():
                found = {gpu.uuid: self._view(gpu) for gpu in self._in_turn()}
            views = tuple(found[gpu.uuid] for gpu in self._gpus)
            self._number += 1
            was = self._read
            self._read = {uuid: self._number if view.sample else was.get(uuid, 0) for uuid, view in found.items()}
            # Where there is none, or one cannot be read, the next look may find more.
            unsure = not views or any(view.sample is None for view in views)
            self._looks = 0 if unsure else self._looks + 1
            self.latest = views
            self._notice(views)
            return views

    def sample_some(self, uuids: Collection[str]) -> tuple[GpuSnapshot, ...]:
        """Look at some GPUs between two looks at all; what they hold is not ``latest``."""
        with self._lock, self._reader.batch():
            return tuple(self._view(gpu) for gpu in self._gpus if gpu.uuid in uuids)

    def _notice(self, views: Sequence[GpuSnapshot]) -> None:
        owners = (each.identity.owner for view in views for each in view.holders)
        if self._names is not None:
            self._names.notice({each for each in owners if each is not None})

    def _in_turn(self) -> list[Gpu]:
        """Those first that were not read for longest: where time is short, each has its turn."""
        return sorted(self._gpus, key=lambda gpu: self._read.get(gpu.uuid, 0))

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        """Who in one container holds how much of one GPU now; ``None`` when that is not known."""
        with self._lock:
            gpu = next((gpu for gpu in self._gpus if gpu.uuid == quota.gpu), None)
            view = None if gpu is None else self._view(gpu)
        if view is None or view.reading is None:
            return None
        found = view.reading.get(quota.container_id or "", ())
        return None if view.unknown_mib and total_mib(found) <= quota.ceiling_mib else found

    def _enumerate(self) -> None:
        before = self._gpus
        try:
            self._gpus = merge_gpu_lists(before, self._reader.gpus())
            self.problem, self._list_error = None, ""
        except NvmlError as error:
            if not before:
                self.problem = f"the enforcer cannot list the GPUs of this node: {error.message}"
                raise
            if error.message != self._list_error:  # it may last for minutes, at several samples a second
                log.warning("GPU list not refreshed", reason=str(error.reason), error=error.message)
            self._list_error = error.message
        if [gpu.uuid for gpu in before] != [gpu.uuid for gpu in self._gpus]:
            for event in self._changed:
                event.set()

    def _view(self, gpu: Gpu) -> GpuSnapshot:
        try:
            sample = self._reader.sample(gpu.uuid)
        except NvmlError as error:
            self._known[gpu.uuid] = carry_over(self._known.get(gpu.uuid, {}))
            self._seen.pop(gpu.uuid, None)
            return GpuSnapshot(gpu=gpu, problem=error)
        whose = [(process, self._attributor.identify(process.pid)) for process in sample.processes]
        unknown = [each for each, who in whose if who is None and self._attributor.is_alive(each.pid)]
        rows = [row for row in whose if row[0] not in unknown]
        seen = gpu, sample, rows, tuple(unknown), () if self._checkpoint is None else self._checkpoint.latest
        last = self._seen.get(gpu.uuid)
        if last is None or last[0] != seen:
            last = self._seen[gpu.uuid] = seen, self._put_together(*seen)
        return last[1]

    def _put_together(
        self, gpu: Gpu, sample: GpuSample, rows: Sequence[Row], unknown: Sequence[GpuProcess], quotas: tuple[Quota, ...]
    ) -> GpuSnapshot:
        before = self._known.get(gpu.uuid, {})
        stay = {each.pid: before[each.pid] for each in unknown if each.pid in before}
        self._known[gpu.uuid] = known = {**stay, **update(before, rows)}
        holders = [ProcessUsage(who, known[process.pid].own_mib) for process, who in rows if who is not None]
        return GpuSnapshot(
            gpu=gpu, sample=sample, holders=tuple(holders), problem=_hidden(unknown[0].pid) if unknown else None,
            quotas=quotas, unknown_mib=sum(each.used_mib for each in unknown),
        )  # fmt: skip


def _hidden(pid: int) -> NvmlError:
    return NvmlError(
        f"process {pid} holds GPU memory, but /proc does not show whose it is; mount /proc without hidepid, and check "
        "the enforcer's limit of open files",
        Reason.PROCESS_HIDDEN,
    )


def merge_gpu_lists(before: Sequence[Gpu], found: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Take in a count of the GPUs: one that was there stays, under its index, and is unreadable where it is gone.

    A GPU that falls off its bus leaves the count, and those behind it move up; an operator may have named some by
    index, and theirs must not come to mean another card. Only an enforcer that starts afresh forgets.
    """
    known = {gpu.uuid: gpu for gpu in before}
    present = {gpu.uuid: gpu for gpu in found}
    # A MIG instance is another matter: it is destroyed on purpose, and nothing falls off.
    stays = [gpu for gpu in before if gpu.uuid in present or gpu.parent is None]
    old = [present.get(gpu.uuid, gpu)._replace(index=gpu.index) for gpu in stays]
    taken = {gpu.index for gpu in stays}
    new = []
    for gpu in (each for each in found if each.uuid not in known):
        index = next(free for free in count(gpu.index) if free not in taken)
        taken.add(index)
        new.append(gpu._replace(index=index))
    return tuple(sorted([*old, *new], key=lambda gpu: gpu.index))
