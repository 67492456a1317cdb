"""Chooses each GPU's back end, sets the limits that are ours to set, and reads them back.

Of the back ends only the driver's limits of cgroups are set here: MPS reads a variable that CDI wrote, a MIG instance
is what it is. A limit is set as soon as the container has a cgroup, and again whenever another is read back. It is a
hard limit alone (``NvmlReader.set_cgroup_limit`` says why), so nothing has to be undone when the container goes.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from enforcer.attribution.cgroup import ContainerRef
from enforcer.attribution.usage import UsageSampler
from enforcer.limits.backend import Backend, Choice, RequestedBackend, choose
from enforcer.limits.cgroup_paths import CgroupFolders
from enforcer.nvml.types import Gpu
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Quota
from gpushare.errors import NvmlError
from gpushare.reasons import Reason

log = structlog.get_logger()

PAUSE: Final = 10
"""Turns that a limit which could not be set is left alone: every failure initialises NVML afresh."""
Key = tuple[str, str]
"""A container's id and a GPU's UUID."""


class CgroupLimits(Protocol):
    """The driver's limits of cgroups; ``enforcer.nvml.reader.NvmlReader`` has them."""

    def limits_cgroups(self, uuid: str, cgroup: str) -> bool:
        """Say whether there are any on a GPU. Raises ``NvmlError``."""

    def cgroup_limit_mib(self, uuid: str, cgroup: str) -> int | None:
        """Read one; ``None`` where none is set. Raises ``NvmlError``."""

    def set_cgroup_limit(self, uuid: str, cgroup: str, mib: int) -> None:
        """Set one. Raises ``NvmlError``."""


@dataclass(frozen=True, slots=True)
class AppliedLimit:
    """A limit as the back end keeps it: ``mib``, ``None`` where there is none; ``why`` it cannot be read."""

    mib: int | None = None
    why: str | None = None


class LimitApplier:
    """The limits of one node. Safe to use from several threads.

    Args:
        driver: the driver's limits.
        folders: where cgroups are.
        wanted: the operator's choice.
        modes: how GPUs are shared; what is shared through MPS has a daemon.
    """

    def __init__(
        self,
        driver: CgroupLimits,
        folders: CgroupFolders,
        wanted: RequestedBackend,
        modes: SharingModeController,
    ) -> None:
        self._driver, self._folders, self._wanted, self._modes = driver, folders, wanted, modes
        self._lock = threading.Lock()
        self._able: dict[str, bool] = {}
        self._choices: dict[str, Choice] = {}
        self._set: dict[Key, int] = {}
        self._failures: dict[Key, str] = {}
        self._pauses: dict[Key, int] = {}

    def backends(self) -> Mapping[str, Backend]:
        """Say, by UUID, which back end limits a GPU; one that could not be asked yet is left out."""
        return {gpu: choice.backend for gpu, choice in dict(self._choices).items()}

    def run_once(self, watch: UsageSampler, checkpoint: Checkpoint) -> None:
        """Do a turn for the GPUs that were sampled last and the quotas as they are."""
        self.apply([view.gpu for view in watch.latest], checkpoint.latest)

    def apply(self, gpus: Sequence[Gpu], quotas: Sequence[Quota]) -> None:
        """Choose for GPUs that are new, and set the limits that are not set."""
        with self._lock:
            self._choose(gpus)
            given = [quota for quota in quotas if quota.container_id and quota.memory_mib]
            mine = {_key(quota): quota for quota in given if self._sets(quota.gpu)}
            for kept in (self._set, self._failures, self._pauses):
                for key in kept.keys() - mine.keys():
                    del kept[key]
            for key, quota in mine.items():
                if self._set.get(key) != quota.most_mib and not self._rests(key):
                    self._put(key, quota)

    def forget(self) -> None:
        """Ask again which limits the driver supports: it was upgraded."""
        with self._lock:
            self._able.clear()

    def read(self, quota: Quota) -> AppliedLimit:
        """Read one limit back; another than was set is set again at the next turn."""
        with self._lock:
            if not self._sets(quota.gpu):
                return AppliedLimit()
            key, folder = _key(quota), self._folder(quota)
            if folder is None:
                return AppliedLimit(why="the enforcer does not find the container's cgroup")
            try:
                found = self._driver.cgroup_limit_mib(quota.gpu, str(folder))
            except NvmlError as error:
                return AppliedLimit(why=error.message)
            if found != quota.most_mib:
                self._set.pop(key, None)
            return AppliedLimit(found)

    def problems(self) -> Iterator[str]:
        """Say which choices cannot work and which limits cannot be set."""
        yield from (f"{gpu}: {choice.problem}" for gpu, choice in dict(self._choices).items() if choice.problem)
        yield from dict(self._failures).values()

    def _sets(self, gpu: str) -> bool:
        return gpu in self._choices and self._choices[gpu].backend is Backend.DRIVER_CGROUP

    def _choose(self, gpus: Sequence[Gpu]) -> None:
        choices = {gpu.uuid: choice for gpu in gpus if (choice := self._choice(gpu)) is not None}
        for gpu, choice in choices.items():
            if self._choices.get(gpu) != choice:
                log.info("limits kept", reason=str(Reason.LIMIT_BACKEND), gpu=gpu, backend=str(choice.backend))
        self._choices = choices

    def _choice(self, gpu: Gpu) -> Choice | None:
        if gpu.parent is not None:
            return Choice(Backend.MIG_INSTANCE)  # whatever is wanted: the setting is for GPUs that are shared
        if gpu.uuid not in self._able:
            try:
                self._able[gpu.uuid] = self._driver.limits_cgroups(gpu.uuid, str(self._folders.root))
            except NvmlError:
                return None
        return choose(mps=self._modes.has_daemon(gpu.uuid), cgroups=self._able[gpu.uuid], wanted=self._wanted)

    def _rests(self, key: Key) -> bool:
        self._pauses[key] = max(0, self._pauses.get(key, 0) - 1)
        return self._pauses[key] > 0

    def _put(self, key: Key, quota: Quota) -> None:
        folder = self._folder(quota)
        if folder is None:
            return  # not there yet, or no more
        try:
            self._driver.set_cgroup_limit(quota.gpu, str(folder), quota.most_mib)
        except NvmlError as error:
            self._pauses[key] = PAUSE
            self._complain(
                key,
                f"the driver refused the limit of {quota.namespace}/{quota.pod} container {quota.container}: "
                f"{error.message}",
            )
            return
        self._set[key] = quota.most_mib
        self._failures.pop(key, None)
        log.info(
            "limit set", reason=str(Reason.LIMIT_SET), namespace=quota.namespace, pod=quota.pod,
            container=quota.container, gpu=quota.gpu, memory_mib=quota.most_mib,
        )  # fmt: skip

    def _complain(self, key: Key, problem: str) -> None:
        if self._failures.get(key) != problem:
            log.warning("limit not set", reason=str(Reason.NOT_APPLIED), problem=problem)
        self._failures[key] = problem

    def _folder(self, quota: Quota) -> Path | None:
        return self._folders.find(ContainerRef(quota.pod_uid, quota.container_id or ""))


def _key(quota: Quota) -> Key:
    return quota.container_id or "", quota.gpu
