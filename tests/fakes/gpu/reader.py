"""A ``GpuReader`` for machines without a C compiler: the product's own reader over the simulator's Python door."""

from pathlib import Path

from enforcer.nvml.reader import NvmlReader
from tests.fakes.gpu.sim_nvml import SimNvml
from tests.fakes.gpu.state import Sim


class SimReader(NvmlReader):
    """Reads a simulated machine; every check and every fallback is the real reader's."""

    def __init__(self, sim: Sim | Path | None = None) -> None:
        """Take a machine, its folder, or by default the one named by ``GPU_SHARE_SIM``."""
        machine = Sim.from_environment() if sim is None else sim if isinstance(sim, Sim) else Sim(sim)
        super().__init__(SimNvml(machine))
