"""What reads the GPUs, as the enforcer asks it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from enforcer.nvml.types import Gpu, GpuSample, Utilization


class GpuReader(Protocol):
    """Reads the GPUs: ``enforcer.nvml.client.NvmlClient``; the simulator where there is no compiler."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Enumerate the GPUs. Raises ``NvmlError``."""

    def sample(self, uuid: str) -> GpuSample:
        """Read one GPU. Raises ``NvmlError`` when it does not answer or answers nonsense: blind means no kill."""

    def utilization(self, _uuid: str, _after: int) -> Utilization | None:
        """Read each process's utilization after a moment, microseconds since 1970; ``None``: nothing reports it.

        Raises ``NvmlError``.
        """
        return None

    def batch(self) -> AbstractContextManager[object]:
        """Bound the time of all that this thread asks meanwhile; here it is not bounded."""
        return nullcontext()
