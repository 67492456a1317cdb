"""``status.json``: what the enforcer sees and thinks, for ``gpu-share top``, ``explain`` and people. Pure.

Written whole (``node_status_file``). Memory in MiB, times in seconds; what is not known is null. Shape, version 1::

    {"version": 1, "node": "gpu-7", "time": "2026-11-20T22:16:05.123Z", "enforcing": true,
     "problems": ["..."], "problemReasons": ["MpsUnreachable"],
     "setup": {"driverRoot": "/driver-root", "kubeletRoot": "/var/lib/kubelet", "cdiRoot": "/var/run/cdi",
               "anyPidNamespace": false},
     "auditLog": {"seq": 42, "hash": "sha256:..."},
     "kills": {"lastMinute": 0, "allowed": 3, "breakerOpen": false},
     "gpus": [{"uuid": "GPU-...", "index": 0, "model": "...", "mode": "mps", "profile": null,
               "memoryMib": 16384, "reservedMib": 512, "usedMib": 9000, "utilizationPercent": 30,
               "unaccountedMib": 12288, "knownMib": 8, "withheldMib": 4096,
               "descriptorHolders": [{"container": "asr/tts-0/model", "descriptors": 3, "processes": 1,
                                      "pids": [31337]}],
               "hiddenIn": {"container": "asr/tts-0/model", "mib": 11776},
               "blind": null, "blindReason": null, "blindFor": null,
               "unhealthy": "GpuLost",
               "contended": "a device plugin offers it as nvidia.com/gpu"}],
     "containers": [{"namespace": "asr", "pod": "tts-0", "podUid": "...", "container": "model", "containerId": "...",
                     "gpu": "GPU-...", "usedMib": 5000, "peakMib": 5200, "quotaMib": 4096, "reservedMib": 4096,
                     "ceilingMib": 4352, "limitMib": null, "borrowedMib": null, "utilizationPercent": 30,
                     "computePercent": 25, "limit": null, "onExceed": "kill", "graceSeconds": 5.0,
                     "state": "Warned", "overFor": 1.5, "budgetUsed": 0.0, "mpsClients": 1, "mpsClientsAllowed": 1,
                     "killIn": 3.5, "sentence": "model holds ...",
                     "processes": [{"pid": 31337, "usedMib": 5000}]}],
     "strangers": [{"gpu": "GPU-...", "pid": 99, "usedMib": 300, "podUid": null, "containerId": null}],
     "failures": [{"namespace": "asr", "pod": "tts-0", "podUid": "...", "container": "model", "gpu": "GPU-...",
                   "reason": "GpuFull", "sentence": "...", "finished": 1763678165.0, "holders": ["a/b/c: 9216 MiB"]}]}

``mode`` is how a GPU is shared, null where it is not; ``profile`` a MIG instance's. ``peakMib`` is null where the pod
has no status file; ``utilizationPercent`` is of the last 5 s, null where the driver does not report it, and null of a
container unless ``mode`` is ``time-slicing``: of MPS clients the driver reports their server alone.
``unaccountedMib`` is in use and counted for nobody, ``knownMib`` what is in use beyond NVML's rows without any share
(``enforcer.attribution.unaccounted``); null of a GPU in MIG mode. ``withheldMib`` of it new shares do not get.
``descriptorHolders`` are the containers with descriptors that may hold it, with how many ``processes`` and the first
``MAX_PIDS`` of their pids. ``hiddenIn`` is the one that must have at least so much of it, null where that is not known
(``enforcer.detection.hidden``).
``limit`` says whether the container's limit is in force, null until that was looked at: ``{"state": "InForce",
"backend": "mps-v2", "sentence": "..."}`` (``enforcer.limits.verification``). ``state`` is one of
``enforcer.detection.types.Phase``, or ``Unknown``; ``blind`` a sentence while the GPU cannot be read, with its reason
and for how many seconds; ``unhealthy`` the reason of its taint, ``contended`` who else offers it. A process of
``strangers`` belongs to no container with a quota on that GPU. A container whose ``quotaMib`` is 0 was given nothing
there and is listed while it holds something all the same. ``limitMib`` is null where it may not borrow, else what it
may hold, of which ``borrowedMib`` are above ``quotaMib`` now. ``failures`` are containers that likely failed for want
of GPU memory, the latest last, with the usage of each container then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from enforcer.attribution.snapshot import GpuSnapshot, UsageByContainer, total_mib, unattributed_processes
from enforcer.audit.record import ChainHead
from enforcer.detection.detector import phase, recent_kills
from enforcer.detection.forecast import describe, seconds_until_kill, used_seconds
from enforcer.detection.hidden import Finding
from enforcer.detection.lending import borrowed_mib
from enforcer.detection.nvml_outage import EVERYWHERE, Outages, container_message
from enforcer.detection.types import DetectorConfig, DetectorState
from enforcer.nvml.device_health import GpuConditions
from enforcer.quota.from_claims import known
from enforcer.quota.types import LimitStatus, Mode, OnExceed, Quota
from enforcer.runtime.problem import Problem
from gpushare.formats import NODE_STATUS

NAME: Final = "status.json"
BLIND: Final = "Unknown"
MAX_PIDS: Final = 8
"""A container's processes with descriptors that are named: a tenant may have any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that one look led to."""

    node: str
    time: str
    now: float
    enforcing: bool
    views: Sequence[GpuSnapshot]
    quotas: Sequence[Quota]
    state: DetectorState
    rules: DetectorConfig
    head: ChainHead
    problems: Sequence[Problem]
    standing: GpuConditions = field(default_factory=GpuConditions)
    failures: Sequence[Mapping[str, Any]] = ()
    proven: Mapping[tuple[str, str], LimitStatus] = field(default_factory=dict)
    sight: Outages = field(default_factory=dict)
    unaccounted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """MiB that nobody is counted for, and MiB known to be the driver's, by GPU."""
    hidden: Mapping[str, Finding] = field(default_factory=dict)
    """Who may hold it, by GPU."""
    peaks: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """MiB, by pod UID, container and GPU."""
    utilization: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Percent, by container id and GPU."""
    gpu_utilization: Mapping[str, int] = field(default_factory=dict)
    """Percent, by GPU."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """Flags by which ``gpu-share check --node`` finds what this enforcer uses."""
    edition: int = 0
    """Two snapshots of one number differ in their times only; 0: unknown. See ``enforcer.status.node_status_file``."""


def status_quotas(state: DetectorState, quotas: Sequence[Quota]) -> tuple[Quota, ...]:
    """Pick what is worth showing: of containers that were given nothing, those that hold something or did lately."""
    return tuple(quota for quota in quotas if quota.granted or state.of(quota).used_mib or state.of(quota).used)


def status(snapshot: Snapshot) -> dict[str, Any]:
    """Put a snapshot into the shape above."""
    readings = {view.gpu.uuid: view.reading for view in snapshot.views}
    return {
        "version": NODE_STATUS.version,
        "node": snapshot.node,
        "time": snapshot.time,
        "enforcing": snapshot.enforcing,
        "problems": list(snapshot.problems),
        "problemReasons": sorted({str(each.reason) for each in snapshot.problems}),
        "setup": dict(snapshot.setup),
        "auditLog": {"seq": snapshot.head.seq, "hash": snapshot.head.hash},
        "kills": {
            "lastMinute": recent_kills(snapshot.state, snapshot.now, snapshot.rules),
            "allowed": snapshot.rules.kills,
            "breakerOpen": snapshot.state.open,
        },
        "gpus": [_gpu(view, snapshot) for view in snapshot.views],
        "containers": [_container(snapshot, quota, readings) for quota in snapshot.quotas],
        "strangers": [row for view in snapshot.views for row in _strangers(view, snapshot.quotas)],
        "failures": list(snapshot.failures),
    }


def _gpu(view: GpuSnapshot, snapshot: Snapshot) -> dict[str, Any]:
    standing, blind = snapshot.standing, snapshot.sight.get(view.gpu.uuid)
    return {
        "uuid": view.gpu.uuid,
        "index": view.gpu.index,
        "model": view.gpu.model,
        "mode": standing.modes.get(view.gpu.uuid),
        "profile": view.gpu.profile or None,
        "memoryMib": view.gpu.memory_mib,
        "reservedMib": view.gpu.reserved_mib,
        "usedMib": None if view.sample is None else view.sample.used_mib,
        "utilizationPercent": snapshot.gpu_utilization.get(view.gpu.uuid),
        **_unaccounted(snapshot, view.gpu.uuid),
        "blind": None if view.problem is None else view.problem.message,
        "blindReason": None if view.problem is None else str(view.problem.reason),
        "blindFor": None if blind is None else round(snapshot.now - blind.since, 1),
        "unhealthy": standing.unhealthy.get(view.gpu.uuid),
        "contended": standing.contended.get(view.gpu.uuid),
    }


def _unaccounted(snapshot: Snapshot, gpu: str) -> dict[str, Any]:
    mib, known = snapshot.unaccounted.get(gpu, (None, None))
    found = snapshot.hidden.get(gpu, Finding())
    owner = None if found.owner is None else {"container": _name(found.owner), "mib": found.owner_mib}
    holders = [
        {
            "container": _name(each.quota),
            "descriptors": each.descriptors,
            "processes": len(each.holders),
            "pids": [e.identity.pid for e in each.holders[:MAX_PIDS]],
        }
        for each in found.suspects
    ]
    return {
        "unaccountedMib": mib, "knownMib": known, "withheldMib": found.withheld_mib, "descriptorHolders": holders,
        "hiddenIn": owner,
    }  # fmt: skip


def _name(quota: Quota) -> str:
    return f"{quota.namespace}/{quota.pod}/{quota.container}"


def _container(snapshot: Snapshot, quota: Quota, readings: Mapping[str, UsageByContainer | None]) -> dict[str, Any]:
    case = snapshot.state.of(quota)
    reading = readings.get(quota.gpu)
    holders = () if reading is None else reading.get(quota.container_id or "", ())
    blind = reading is None
    view = next((each for each in snapshot.views if each.gpu.uuid == quota.gpu), None)
    clients = None if quota.clients is None else mps_clients(view, quota)
    return {
        "namespace": quota.namespace,
        "pod": quota.pod,
        "podUid": quota.pod_uid,
        "container": quota.container,
        "containerId": quota.container_id,
        "gpu": quota.gpu,
        "usedMib": None if blind else sum(holder.used_mib for holder in holders),
        "peakMib": snapshot.peaks.get((quota.pod_uid, quota.container, quota.gpu)),
        "utilizationPercent": _utilization(snapshot, quota),
        "quotaMib": quota.memory_mib,
        "reservedMib": quota.reserved_mib,
        "ceilingMib": quota.ceiling_mib,
        "limitMib": quota.limit_mib,
        "borrowedMib": borrowed_mib(quota, total_mib(holders)) if quota.limit_mib and not blind else None,
        "computePercent": quota.compute_percent,
        "onExceed": str(quota.on_exceed),
        "graceSeconds": quota.grace_seconds,
        "state": BLIND if blind else str(phase(snapshot.state, quota, snapshot.now)),
        "limit": _limit(snapshot.proven.get((quota.container_id or "", quota.gpu))),
        "overFor": round(case.over_for, 1),
        "budgetUsed": round(used_seconds(snapshot.state, quota, snapshot.now), 1),
        "mpsClients": clients,
        "mpsClientsAllowed": quota.clients,
        "killIn": _kill_in(snapshot, quota),
        "sentence": _sentence(snapshot, quota, blind=blind) + _too_many(quota, clients),
        "processes": [{"pid": holder.identity.pid, "usedMib": holder.used_mib} for holder in holders],
    }


def _utilization(snapshot: Snapshot, quota: Quota) -> int | None:
    if snapshot.standing.modes.get(quota.gpu) != Mode.TIME_SLICING:
        return None
    return snapshot.utilization.get((quota.container_id or "", quota.gpu))


def mps_clients(view: GpuSnapshot | None, quota: Quota) -> int | None:
    """Count a container's processes in NVML's list of MPS clients; ``None`` where the GPU cannot be read."""
    if view is None or view.sample is None or view.reading is None:
        return None
    clients = frozenset(view.sample.clients)
    return sum(each.identity.pid in clients for each in view.reading.get(quota.container_id or "", ()))


def _too_many(quota: Quota, clients: int | None) -> str:
    if clients is None or quota.clients is None or clients <= quota.clients:
        return ""
    return f"; it has {clients} MPS clients, more than the {quota.clients} that its share reserves"


def _sentence(snapshot: Snapshot, quota: Quota, *, blind: bool) -> str:
    if not blind or quota.container_id is None:
        return describe(snapshot.state, _as_evaluated(snapshot, quota), snapshot.now, snapshot.rules)
    unseen = snapshot.sight.get(quota.gpu) or snapshot.sight.get(EVERYWHERE)
    return container_message(quota.container, unseen, snapshot.now)


def _limit(found: LimitStatus | None) -> dict[str, Any] | None:
    return None if found is None else {"state": str(found.state), "backend": found.backend, "sentence": found.sentence}


def _kill_in(snapshot: Snapshot, quota: Quota) -> float | None:
    left = seconds_until_kill(snapshot.state, _as_evaluated(snapshot, quota), snapshot.now, snapshot.rules)
    return None if left is None else round(left, 1)


def _as_evaluated(snapshot: Snapshot, quota: Quota) -> Quota:
    """Return the quota as the detector took it."""
    return quota if snapshot.enforcing else replace(quota, on_exceed=OnExceed.WARN)


def _strangers(view: GpuSnapshot, quotas: Sequence[Quota]) -> list[dict[str, Any]]:
    with_quota = known([quota for quota in quotas if quota.gpu == view.gpu.uuid])
    return [
        {
            "gpu": view.gpu.uuid,
            "pid": holder.identity.pid,
            "usedMib": holder.used_mib,
            "podUid": None if holder.identity.owner is None else holder.identity.owner.pod_uid,
            "containerId": None if holder.identity.owner is None else holder.identity.owner.container_id,
        }
        for holder in unattributed_processes(view, with_quota)
    ]
