"""The status of one pod: the content of the status file that its sidecar reads. Pure.

``sidecar/pod_status.py`` documents the shape. A pod learns its own figures, and of others on its GPU only how much they
hold together: whose that is, or how many they are, is nothing a tenant needs, so nothing of it comes in here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from enforcer.attribution.snapshot import GpuSnapshot, UsageByContainer
from enforcer.detection.detector import phase
from enforcer.quota.types import Quota
from enforcer.status.messages import Message
from enforcer.status.node_status import BLIND, Snapshot
from gpushare.formats import POD_STATUS

NAME: Final = "status.json"


Peaks = Mapping[tuple[str, str], int]
"""The most MiB that a container of a pod was seen to hold on a GPU, by container and GPU."""


def by_pod(quotas: Sequence[Quota]) -> dict[str, tuple[Quota, ...]]:
    """Sort quotas by the pod's UID."""
    found: dict[str, tuple[Quota, ...]] = {}
    for quota in quotas:
        found[quota.pod_uid] = (*found.get(quota.pod_uid, ()), quota)
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the node, sorted once for all pods: GPUs by UUID, with who holds what by container id."""

    snapshot: Snapshot
    views: Mapping[str, GpuSnapshot]
    readings: Mapping[str, UsageByContainer | None]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Sort a snapshot."""
        views = {view.gpu.uuid: view for view in snapshot.views}
        return cls(snapshot, views, {gpu: view.reading for gpu, view in views.items()})

    def used(self, quota: Quota) -> int | None:
        """MiB that a container holds on the GPU of its quota; ``None`` when blind."""
        reading = self.readings.get(quota.gpu)
        return None if reading is None else sum(each.used_mib for each in reading.get(quota.container_id or "", ()))


def pod_status(
    seen: Seen, quotas: Sequence[Quota], messages: Sequence[Message], serves: Callable[[str], bool], peaks: Peaks
) -> dict[str, Any]:
    """Write one pod's status.

    Args:
        seen: what one look at the node led to.
        quotas: this pod's, at least one.
        messages: this pod's, oldest first.
        serves: whether the MPS daemon of a GPU, by UUID, takes clients.
        peaks: this pod's, this look included.
    """
    gpus = tuple(dict.fromkeys(quota.gpu for quota in quotas))
    waiting = [why for gpu in gpus if (why := _hindrance(gpu, seen.readings.get(gpu), serves))]
    return {
        "version": POD_STATUS.version,
        "time": seen.snapshot.time,
        "ready": not waiting,
        "waiting": "; ".join(waiting),
        "gpus": [_gpu(seen, seen.views[gpu], quotas) for gpu in gpus if gpu in seen.views],
        "containers": [_container(seen, quota, peaks) for quota in quotas],
        "messages": [{"time": each.time, "text": each.text} for each in messages],
    }


def _hindrance(gpu: str, reading: UsageByContainer | None, serves: Callable[[str], bool]) -> str:
    """Why a share of that GPU is not ready; empty when it is. NVML's own words may name other tenants' processes."""
    if reading is None:
        return f"NVML cannot read {gpu} at the moment"
    return "" if serves(gpu) else f"the MPS daemon of {gpu} does not accept clients at the moment"


def _gpu(seen: Seen, view: GpuSnapshot, quotas: Sequence[Quota]) -> dict[str, Any]:
    own = sum(seen.used(quota) or 0 for quota in quotas if quota.gpu == view.gpu.uuid)
    return {
        "uuid": view.gpu.uuid,
        "model": view.gpu.model,
        "memoryMiB": view.gpu.memory_mib - view.gpu.reserved_mib,
        "usedByOthersMiB": None if view.sample is None else max(0, view.sample.used_mib - own),
    }


def _container(seen: Seen, quota: Quota, peaks: Peaks) -> dict[str, Any]:
    used = seen.used(quota)
    return {
        "container": quota.container,
        "gpu": quota.gpu,
        "usedMiB": used,
        "peakMiB": peaks.get((quota.container, quota.gpu)),
        "quotaMiB": quota.memory_mib,
        "limitMiB": quota.limit_mib,
        "state": BLIND if used is None else str(phase(seen.snapshot.state, quota, seen.snapshot.now)),
    }
