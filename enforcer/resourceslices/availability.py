"""Which GPUs may be shared now: who else offers them, and how they are. Put together, and kept up to date."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.nvml.device_health import LOOK_EVERY, GpuConditions
from enforcer.nvml.types import Gpu
from enforcer.resourceslices.contention import Allocatable
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.devices import of_gpu
from enforcer.resourceslices.health_monitor import GpuHealthMonitor, HealthProbe, Tenants
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.runtime.background import run_periodically
from enforcer.status.events import NodeEventRecorder
from gpushare.errors import ClusterError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason


class GpuAvailability:
    """Judges this node's GPUs from outside (contended) and inside (ill).

    Args:
        cluster: the API server; ``None``: nobody else can offer anything, and nobody is told.
        node: this node's name.
        allocatable: asks the kubelet what device plugins offer.
    """

    def __init__(self, cluster: KubeClient | None, node: str, allocatable: Callable[[], Allocatable]) -> None:
        self._cluster, self._node = cluster, node
        self._reporter = NodeEventRecorder(cluster, node)
        self._contests = None if cluster is None else ContentionMonitor(cluster, node, allocatable, self._reporter)
        self._doctor: GpuHealthMonitor | None = None

    def contended(self, gpus: Sequence[Gpu]) -> Mapping[str, str]:
        """Say which of these GPUs somebody else offers, by UUID, as sentences. May take seconds."""
        return {} if self._contests is None else self._contests.look(gpus)

    def standing(self, gpus: Sequence[Gpu]) -> GpuConditions:
        """Say all that is known, after a look at who else offers these GPUs. May take seconds."""
        return GpuConditions(unhealthy=self._ill(), contended=self.contended(gpus))

    def now(self) -> GpuConditions:
        """Say all that is known, without looking."""
        return GpuConditions(unhealthy=self._ill(), contended={} if self._contests is None else self._contests.current)

    def health(self, views: Sequence[GpuSnapshot]) -> dict[str, Reason | None]:
        """Say by UUID why each GPU that was seen is unhealthy; ``None`` where it is healthy."""
        ill = self._ill()
        return {**dict(ill), **{view.gpu.uuid: of_gpu(ill, view.gpu) for view in views}}

    def examine(
        self,
        views: Callable[[], Sequence[GpuSnapshot]],
        examiner: HealthProbe,
        failures: Callable[[], Mapping[str, GpuShareError]],
        changed: threading.Event,
        stopped: threading.Event,
        tenants: Tenants,
    ) -> None:
        """Begin to look after health, from a thread that ends with the process.

        Args:
            views: see ``GpuHealthMonitor``, as for the next two.
            examiner: see there.
            failures: what is wrong with daemons.
            changed: set when the offer has to be made again at once.
            stopped: set when there is to be no other look.
            tenants: see ``GpuHealthMonitor``.
        """
        doctor = GpuHealthMonitor(views, examiner, failures, self._reporter, tenants)
        if self._cluster is not None:
            with suppress(ClusterError):  # then what was is found again, or is over
                doctor.remember(SlicePublisher(self._cluster, self._node).ill())
        self._doctor = doctor
        run_periodically(LOOK_EVERY, "health", lambda: changed.set() if doctor.turn() else None, stopped)

    @property
    def healed(self) -> threading.Event | None:
        """Set when a contest has ended; ``None`` where there is none."""
        return None if self._contests is None else self._contests.changed

    def problems(self) -> Iterator[str]:
        """Say what cannot be known now."""
        if self._contests is not None:
            yield from self._contests.problems()

    def _ill(self) -> Mapping[str, Reason]:
        return {} if self._doctor is None else self._doctor.ill
