"""One GPU at one moment, and what follows from that. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.nvml.types import Gpu, GpuSample
from gpushare.errors import NvmlError


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process and the MiB it holds on the GPU in question."""

    identity: Identity
    used_mib: int


UsageByContainer = Mapping[str, tuple[ProcessUsage, ...]]
"""The usage of one GPU at one moment: the processes of each container, by container id."""


def total_mib(holders: Sequence[ProcessUsage]) -> int:
    """Return their MiB together."""
    return sum(holder.used_mib for holder in holders)


@dataclass(frozen=True, kw_only=True)
class GpuSnapshot:
    """One GPU at one moment; without a sample we were blind, and ``problem`` says why."""

    gpu: Gpu
    sample: GpuSample | None = None
    holders: tuple[ProcessUsage, ...] = ()
    problem: NvmlError | None = None

    @cached_property
    def reading(self) -> UsageByContainer | None:
        """By container; ``None`` when blind. Sorted once, for all who ask."""
        if self.sample is None:
            return None
        by_container: dict[str, list[ProcessUsage]] = defaultdict(list)
        for holder in self.holders:
            if holder.identity.owner is not None:
                by_container[holder.identity.owner.container_id].append(holder)
        return {container: tuple(holders) for container, holders in by_container.items()}

    @property
    def gap_mib(self) -> int:
        """MiB that the device uses and no row has: see ``enforcer.attribution.unaccounted``."""
        return 0 if self.sample is None else max(0, self.sample.used_mib - sum(each.used_mib for each in self.holders))


def unattributed_processes(view: GpuSnapshot, known: frozenset[str]) -> tuple[ProcessUsage, ...]:
    """Processes that hold memory of a GPU and belong to no container with a quota. They are shown, never killed."""
    return tuple(each for each in view.holders if _container(each.identity.owner) not in known)


def _container(owner: ContainerRef | None) -> str | None:
    return None if owner is None else owner.container_id
