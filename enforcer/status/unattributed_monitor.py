"""Asks now and then which processes ran kernels, for the hint of ``enforcer.status.unattributed``."""

from collections.abc import Mapping
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import ran_kernels
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.unattributed import Growth, Sample, Track, matters, sampled
from gpushare.errors import NvmlError

SECONDS: Final = 5.0
"""Between samples: five of them are half a minute."""


class UnattributedMonitor:
    """Keeps a track of each GPU, and asks the driver for more only where that grows.

    Args:
        watch: samples the GPUs.
        reader: knows which processes ran kernels.
    """

    def __init__(self, watch: UsageSampler, reader: GpuReader, clock: Clock = CLOCK) -> None:
        self._watch, self._reader, self._clock = watch, reader, clock
        self._tracks: dict[str, Track] = {}
        self._before = 0
        """When the samples before were taken, microseconds."""

    def growth(self) -> Mapping[str, Growth]:
        """Return what was found, by GPU; never waits."""
        return {gpu: track.growth for gpu, track in dict(self._tracks).items() if track.growth is not None}

    def turn(self) -> None:
        """Take a sample of each GPU that can be read."""
        now = round(self._clock.wall() * 1e6)
        for view in self._watch.latest:
            before, mib = self._tracks.get(view.gpu.uuid, Track()), view.unattributed_mib
            if view.sample is None:  # who ran kernels meanwhile is not asked for later
                self._tracks[view.gpu.uuid] = Track(growth=before.growth)
            else:
                ran = self._ran(view) if matters(before, mib) else None
                self._tracks[view.gpu.uuid] = sampled(before, Sample(mib, ran))
        self._before = now

    def _ran(self, view: GpuSnapshot) -> frozenset[str] | None:
        """Name the containers that ran kernels; ``None`` where one of the processes is of no container that is seen."""
        try:
            pids = ran_kernels(self._reader.utilization(view.gpu.uuid, self._before))
        except NvmlError:
            return None
        owners = {each.identity.pid: each.identity.owner for each in view.holders}
        found = [owners.get(pid) for pid in pids or ()]
        known = [owner.container_id for owner in found if owner is not None]
        return None if pids is None or len(known) < len(found) else frozenset(known)
