"""GPUs and GPU processes as NVML reports them, as frozen values. Pure.

Tuples with names: what it takes to define data classes would be a tenth of the process that asks NVML, which loads only
what it needs.
"""

from enum import IntEnum
from typing import Final, NamedTuple

MIB: Final = 2**20
"""Bytes. ``gpushare.quantity`` has it too, with all it takes to read what people write."""


class ComputeMode(IntEnum):
    """Who may open contexts on a GPU: NVML's numbers. MPS wants ``EXCLUSIVE_PROCESS``: who misses it gets nothing."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class Gpu(NamedTuple):
    """One GPU as NVML describes it. Memory in MiB; ``reserved_mib`` is what the driver keeps for itself.

    ``sms`` is the number of its multiprocessors, 0 where that is not known. A MIG instance is one with a ``parent``,
    the UUID of the GPU it was cut from, and a ``profile`` such as ``1g.10gb``.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # NVML's word; tuple.index, which it hides, is never asked
    minor: int
    model: str
    memory_mib: int
    reserved_mib: int
    compute_capability: tuple[int, int]
    pci_bus_id: str
    driver_version: str
    cuda_version: tuple[int, int]
    mig_enabled: bool = False
    parent: str | None = None
    profile: str = ""
    sms: int = 0


class GpuProcess(NamedTuple):
    """One process on one GPU: the union of NVML's compute, graphics and MPS lists. ``used_mib`` in MiB."""

    pid: int
    used_mib: int


class GpuSample(NamedTuple):
    """Memory use of one GPU at one moment, checked for plausibility. ``used_mib`` excludes the driver's reserve.

    ``clients`` are the pids in NVML's list of MPS clients.
    """

    uuid: str
    total_mib: int
    used_mib: int
    processes: tuple[GpuProcess, ...]
    clients: tuple[int, ...] = ()


Utilization = tuple[tuple[int, int], ...]
"""Percent of the time in which a process ran kernels, by pid, as NVML reports it for one GPU."""
