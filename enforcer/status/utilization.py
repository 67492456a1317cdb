"""How much of the time each container runs kernels, as NVML reports it of processes."""

from collections.abc import Mapping
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.runtime.clock import CLOCK, Clock
from gpushare.errors import NvmlError

SECONDS: Final = 5.0
"""Between samples. NVML keeps its own for some seconds only."""


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
        """Percent, by container id and GPU, of those for which it is known. Replaced whole, never changed."""

    def turn(self) -> None:
        """Ask about each GPU that can be read."""
        now, found = round(self._clock.wall() * 1e6), dict[tuple[str, str], int]()
        for view in self._watch.latest:
            for container, percent in self._of(view).items():
                found[container, view.gpu.uuid] = percent
        self.latest, self._before = found, now

    def _of(self, view: GpuSnapshot) -> Mapping[str, int]:
        try:
            rows = None if view.reading is None else self._reader.utilization(view.gpu.uuid, self._before)
        except NvmlError:
            return {}
        return {} if rows is None or view.reading is None else by_container(view, dict(rows))


def by_container(view: GpuSnapshot, percent: Mapping[int, int]) -> Mapping[str, int]:
    """Add up the utilization of each container's processes, at most 100.

    The driver may report the kernels of MPS clients under the pid of the MPS server. A container without a row is then
    not idle but unknown, and left out.
    """
    reading = view.reading or {}
    pids = {container: [each.identity.pid for each in holders] for container, holders in reading.items()}
    seen = {pid for each in pids.values() for pid in each}
    complete = all(pid in seen for pid, share in percent.items() if share)
    return {
        container: min(100, sum(percent.get(pid, 0) for pid in each))
        for container, each in pids.items()
        if complete or any(pid in percent for pid in each)
    }
