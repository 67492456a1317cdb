"""What NVML's answers are worth: which error means what, and which answers cannot be true. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from enforcer.nvml.types import MIB, Gpu, GpuProcess, GpuSample
from gpushare.errors import NvmlError
from gpushare.reasons import Reason

SLACK_MIB: Final = 256
"""Lists and totals are read one after the other; this much may move in between."""
MOST_MIB: Final = 2**24
"""16 TiB: no card has that much, and a number that was never written usually has."""
MOST_PID: Final = 2**22
"""The kernel's own bound."""
_LOADED: Final = "check that the NVIDIA driver is loaded"
_MEANINGS: Final[Mapping[tuple[Reason, str], tuple[int, ...]]] = {
    (Reason.NVML_UNAVAILABLE, _LOADED): (1, 9, 12, 999),
    (Reason.NVML_UNAVAILABLE, "the GPU may have fallen off the bus"): (2, 6, 28),
    (Reason.NVML_UNAVAILABLE, "this GPU or driver does not support the query"): (3, 22, 24, 30),
    (Reason.NVML_DENIED, "this process needs root and access to the devices /dev/nvidia*"): (4, 17),
    (Reason.NVML_UNAVAILABLE, "the error may be temporary"): (5, 19, 21, 23, 27, 29),
    (Reason.NVML_UNAVAILABLE, "the process list grew while NVML copied it"): (7,),
    (Reason.NVML_UNAVAILABLE, "the power cables of the GPU are not properly attached"): (8,),
    (Reason.NVML_HUNG, "the driver hangs"): (10,),
    (Reason.NVML_HUNG, "the kernel does not get the interrupts of the GPU"): (11,),
    (
        Reason.DRIVER_MISMATCH,
        "driver and library have different versions; after a driver upgrade, restart this pod or reboot the node",
    ): (13, 18, 25, 26),
    (Reason.NVML_UNAVAILABLE, "the infoROM of the GPU is corrupted; read the kernel log for this GPU"): (14,),
    (Reason.GPU_LOST, "reset the GPU or reboot the node"): (15, 16),
    (Reason.NVML_UNAVAILABLE, "the machine has no memory left for the driver"): (20,),
}
ERRORS: Final = {number: meaning for meaning, numbers in _MEANINGS.items() for number in numbers}
"""By NVML's number: our reason, and what may help. Every number that nvidia-ml-py knows is here: a test says so."""


def classify_error(number: int, cause: str) -> NvmlError:
    """Make the error that stands for one of NVML's; ``cause`` is NVML's own message."""
    reason, hint = ERRORS.get(number, (Reason.NVML_UNAVAILABLE, _LOADED))
    what = "the driver cannot use the GPU" if reason is Reason.GPU_LOST else "NVML returned an error"
    return NvmlError(f"{what}: {cause.rstrip('.')}; {hint}", reason)


def check(sample: GpuSample, memory_mib: int | None = None) -> None:
    """Refuse a sample that cannot be true.

    Args:
        sample: as read.
        memory_mib: what the card had when it was counted; ``None``: that is not known.

    Raises:
        NvmlError: the card has another size than before, a process holds more than all of it, or all together more
            than is used (reason ``ImplausibleSample``).
    """
    if not 0 < sample.total_mib <= MOST_MIB or sample.total_mib != (memory_mib or sample.total_mib):
        was = "" if memory_mib is None else f", but {memory_mib} MiB before"
        raise _nonsense(f"{sample.uuid} with {sample.total_mib} MiB{was}")
    for process in sample.processes:
        if not (0 < process.pid <= MOST_PID and 0 <= process.used_mib <= sample.total_mib):
            raise _nonsense(
                f"process {process.pid} with {process.used_mib} MiB on {sample.uuid}, which has {sample.total_mib} MiB"
            )
    used = sum(process.used_mib for process in sample.processes)
    if not 0 <= sample.used_mib <= sample.total_mib or used > sample.used_mib + SLACK_MIB:
        raise _nonsense(
            f"processes with {used} MiB on {sample.uuid}, but {sample.used_mib} of {sample.total_mib} MiB in use"
        )


def check_gpu(gpu: Gpu) -> Gpu:
    """Return a GPU, or refuse one that cannot exist. Raises ``NvmlError`` (reason ``ImplausibleSample``)."""
    if not 0 < gpu.memory_mib <= MOST_MIB or not 0 <= gpu.reserved_mib < gpu.memory_mib:
        raise _nonsense(f"{gpu.uuid} with {gpu.memory_mib} MiB, {gpu.reserved_mib} MiB of them reserved for the driver")
    return gpu


def merge_process_lists(uuid: str, lists: Iterable[Iterable[tuple[int, int | None]]]) -> tuple[GpuProcess, ...]:
    """Unite the lists of a GPU's processes: one stands in several with the same total, so the largest counts.

    Args:
        uuid: the GPU.
        lists: pids and bytes, ``None`` where NVML does not say.

    Raises:
        NvmlError: an amount is missing, or a list shows a process twice with different amounts (reason
            ``ImplausibleSample``): nobody knows which is true, or whether they add up.
    """
    used: dict[int, int] = {}
    for rows in lists:
        own: dict[int, int] = {}
        for pid, amount in rows:
            if pid <= 0 or amount is None:
                raise _nonsense(f"no amount of memory for process {pid} on {uuid}")
            if own.setdefault(pid, amount) != amount:
                raise _nonsense(f"process {pid} twice on {uuid}, with {own[pid]} and {amount} bytes")
        for pid, amount in own.items():
            used[pid] = max(used.get(pid, 0), amount // MIB)
    return tuple(GpuProcess(pid, mib) for pid, mib in sorted(used.items()))


def _nonsense(cause: str) -> NvmlError:
    return NvmlError(f"NVML reports impossible values: {cause}", Reason.IMPLAUSIBLE_SAMPLE)
