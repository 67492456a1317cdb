"""How much of the time GPUs and processes run kernels, as NVML reports it of processes."""

from collections.abc import Mapping
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.runtime.clock import CLOCK, Clock
from gpushare.errors import NvmlError

SECONDS: Final = 5.0
"""Between samples. NVML keeps its own for some seconds only."""
WHOLE: Final = 100


class UtilizationMonitor:
    """Asks NVML every few seconds.

    Args:
        watch: samples the GPUs.
        reader: asks NVML.
    """

    def __init__(self, watch: UsageSampler, reader: GpuReader, clock: Clock = CLOCK) -> None:
        self._watch, self._reader, self._clock = watch, reader, clock
        self._before = round(clock.wall() * 1e6)
        self.latest: Mapping[tuple[str, str], int] = {}
        """Percent, by container id and GPU. Of MPS clients it is wrong: see ``by_container``. Replaced whole."""
        self.gpus: Mapping[str, int] = {}
        """Percent, by GPU, of those for which the driver reports it. Replaced whole, never changed."""

    def turn(self) -> None:
        """Ask about each GPU that can be read."""
        now, found, gpus = round(self._clock.wall() * 1e6), dict[tuple[str, str], int](), dict[str, int]()
        for view in self._watch.latest:
            rows = self._rows(view)
            if rows is not None:
                gpus[view.gpu.uuid] = min(WHOLE, sum(rows.values()))
                found |= {(container, view.gpu.uuid): share for container, share in by_container(view, rows).items()}
        self.latest, self.gpus, self._before = found, gpus, now

    def _rows(self, view: GpuSnapshot) -> Mapping[int, int] | None:
        try:
            rows = None if view.reading is None else self._reader.utilization(view.gpu.uuid, self._before)
        except NvmlError:
            return None
        return None if rows is None else dict(rows)


def by_container(view: GpuSnapshot, percent: Mapping[int, int]) -> Mapping[str, int]:
    """Add up the utilization of each container's processes, at most 100.

    The driver reports the kernels of all MPS clients under the pid of the MPS server (H100, driver 580.159.04,
    2026-11-26), so where a GPU is shared through MPS these figures say nothing.
    """
    return {
        container: min(WHOLE, sum(percent.get(each.identity.pid, 0) for each in holders))
        for container, holders in (view.reading or {}).items()
    }
