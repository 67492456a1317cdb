"""One GPU at one moment, and what follows from that. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.nvml.types import Gpu, GpuSample
from enforcer.quota.types import Quota
from gpushare.errors import NvmlError


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process and the MiB it holds on the GPU in question."""

    identity: Identity
    used_mib: int


UsageByContainer = Mapping[str, tuple[ProcessUsage, ...]]
"""The usage of one GPU at one moment: the processes of each container, by container id; see also ``beyond_sums``."""


def total_mib(holders: Sequence[ProcessUsage]) -> int:
    """Return their MiB together."""
    return sum(holder.used_mib for holder in holders)


@dataclass(frozen=True, kw_only=True)
class GpuSnapshot:
    """One GPU at one moment; without a sample we were blind, and ``problem`` says why.

    ``quotas`` are those that were known then. ``unknown_mib`` are of processes that live and do not show whose they
    are: who is over without them is over, and who seems within may not be. The problem says that, too.
    """

    gpu: Gpu
    sample: GpuSample | None = None
    holders: tuple[ProcessUsage, ...] = ()
    problem: NvmlError | None = None
    quotas: tuple[Quota, ...] = ()
    unknown_mib: int = 0

    @cached_property
    def reading(self) -> UsageByContainer | None:
        """By container, and by pod UID what is beyond the pod's sum; ``None`` when blind. Sorted once, for all."""
        if self.sample is None:
            return None
        by_container: dict[str, list[ProcessUsage]] = defaultdict(list)
        for holder in self.holders:
            if holder.identity.owner is not None:
                by_container[holder.identity.owner.container_id].append(holder)
        found = {container: tuple(holders) for container, holders in by_container.items()}
        return {**found, **beyond_sums(self.holders, [each for each in self.quotas if each.gpu == self.gpu.uuid])}

    @property
    def free_mib(self) -> int:
        """MiB that the device can give away; 0 when blind."""
        return 0 if self.sample is None else max(0, self.gpu.memory_mib - self.gpu.reserved_mib - self.sample.used_mib)

    @property
    def gap_mib(self) -> int:
        """MiB that the device uses and no row has: see ``enforcer.attribution.unaccounted``."""
        return 0 if self.sample is None else max(0, self.sample.used_mib - sum(each.used_mib for each in self.holders))


def beyond_sums(holders: Sequence[ProcessUsage], quotas: Sequence[Quota]) -> UsageByContainer:
    """Return, by pod UID, the processes with which a pod holds more of a GPU than its claims reserved there.

    A container counts with no more than its quota: what it holds beyond that is its own violation. A process that no
    quota explains, because its container's name is unknown, counts whole and goes first.

    Args:
        holders: of one GPU.
        quotas: on that GPU; pods without a row of their own are left out.
    """
    by_pod: dict[str, list[ProcessUsage]] = defaultdict(list)
    for holder in holders:
        if holder.identity.owner is not None:
            by_pod[holder.identity.owner.pod_uid].append(holder)
    pods = [each for each in quotas if each.whole_pod and each.pod_uid in by_pod]
    found = {pod.pod_uid: _beyond_sum(pod, by_pod[pod.pod_uid], quotas) for pod in pods}
    return {uid: beyond for uid, beyond in found.items() if beyond}


def _beyond_sum(pod: Quota, holders: Sequence[ProcessUsage], quotas: Sequence[Quota]) -> tuple[ProcessUsage, ...]:
    """Choose the largest processes without a quota until the pod is within its sum, then the largest of the others."""
    own = {each.container_id: each for each in quotas if each.pod_uid == pod.pod_uid and not each.whole_pod}
    used: dict[str | None, int] = defaultdict(int)
    for holder in holders:
        used[_container(holder.identity.owner)] += holder.used_mib
    counted = sum(min(mib, own[each].memory_mib) if each in own else mib for each, mib in used.items())
    tolerance = max((each.ceiling_mib - each.most_mib for each in own.values()), default=0)
    excess = counted - (pod.reserved_mib or 0) - tolerance
    chosen: list[ProcessUsage] = []
    for holder in sorted(holders, key=lambda each: (_container(each.identity.owner) in own, -each.used_mib)):
        if excess <= 0:
            break
        chosen.append(holder)
        excess -= holder.used_mib
    return tuple(chosen)


def unattributed_processes(view: GpuSnapshot, known: frozenset[str]) -> tuple[ProcessUsage, ...]:
    """Processes that hold memory of a GPU and belong to no container with a quota. They are shown, never killed."""
    return tuple(each for each in view.holders if _container(each.identity.owner) not in known)


def _container(owner: ContainerRef | None) -> str | None:
    return None if owner is None else owner.container_id
