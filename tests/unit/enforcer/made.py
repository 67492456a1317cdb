"""Plain values for the enforcer's tests."""

from typing import Any

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.quota.types import Quota

GPU = "GPU-00000000-0000-0000-0000-000000000001"
OTHER_GPU = "GPU-00000000-0000-0000-0000-000000000002"
DEVICE, OTHER_DEVICE = GPU.lower(), OTHER_GPU.lower()
"""What their devices are called."""
CONTAINER = "c" * 64
NEIGHBOUR = "d" * 64
POD = "0a1b2c3d-1111-2222-3333-444455556666"


def quota(**changes: Any) -> Quota:
    values: dict[str, Any] = {
        "claim_uid": "claim-1",
        "namespace": "asr",
        "pod": "tts-0",
        "pod_uid": POD,
        "container": "model",
        "container_id": CONTAINER,
        "gpu": GPU,
        "memory_mib": 4096,
        "grace_seconds": 5.0,
        "tolerance_mib": 0,
    }
    return Quota(**(values | changes))


def neighbour(**changes: Any) -> Quota:
    return quota(**({"container_id": NEIGHBOUR, "pod": "other-0", "pod_uid": POD.replace("0a", "ff")} | changes))


def holder(pid: int, mib: int, container: str = CONTAINER, pod: str = POD) -> ProcessUsage:
    return ProcessUsage(Identity(pid=pid, start=pid * 10, owner=ContainerRef(pod, container), cgroup_inode=7), mib)
