"""What the parts of the DRA driver are built from."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.claim_wait import ClaimWait
from enforcer.dra.checkpoint import ClaimStore
from enforcer.limits.applier import LimitApplier
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.informer import PodListener
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.devices import InventoryPolicy
from enforcer.runtime.manager import Wake
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder
from enforcer.status.metrics import Metrics
from gpushare import defaults
from gpushare.host_access import HostAccess
from gpushare.kube_client import KubeClient
from gpushare.memory_fraction import Reserve
from gpushare.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class DraPluginConfig:
    """What the driver is given."""

    node: str
    state: Path
    run: Path
    kubelet_root: Path
    cdi_root: Path
    policy: InventoryPolicy
    cluster: KubeClient
    writer: ApiWriter
    store: ClaimStore
    watch: UsageSampler
    attributor: CgroupAttributor
    metrics: Metrics
    modes: SharingModeController
    modes_changed: threading.Event
    """Set when the claims were read: then it is known how GPUs are shared."""
    mps: MpsSupervisor | None
    """Of the daemons; ``None``: no GPU is shared through MPS."""
    limiter: LimitApplier
    checkpoint: Checkpoint
    """Its quotas know the containers of pods that are gone from the API server."""
    events: EventRecorder
    availability: GpuAvailability
    """Of the GPUs; the kubelet follows their health."""
    claim_wait: ClaimWait
    listeners: Sequence[PodListener]
    """Gets the node's pods."""
    upgrade: DriverUpgrade
    """Of the node's GPU driver; while it lasts claims are refused."""
    registered: threading.Event
    """Set whenever the kubelet has (again) taken the driver in: slices have to be checked then."""
    quotas_changed: Wake
    """Set when quotas have to be worked out again."""
    shared_memory: SharedMemory = SharedMemory.AUTO
    """Whether clients of MPS get the node's shared memory of MPS."""
    host_network: bool = False
    """Whether sharing pods may use hostNetwork."""
    reserve: Reserve = field(default_factory=Reserve)
    """What limits keep in reserve of the memory that programs may use."""
    framework_variables: bool = True
    """Whether frameworks get variables."""
    default_compute: int | str = defaults.DEFAULT_COMPUTE
    """What a container has of the compute that asks for none: percent, ``none`` or ``memory``."""

    def host_access(self) -> HostAccess:
        """Return what sharing pods may reach of the node: nothing that gpu-share and the kubelet keep there."""
        folders = (self.state, self.run, self.kubelet_root, self.cdi_root)
        return HostAccess(protected=tuple(map(str, folders)), network=self.host_network)
