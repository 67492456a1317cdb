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
_LOADED: Final = "is the NVIDIA driver loaded and reachable?"
_AWAY: Final = "the GPU may be gone"
_VERSIONS: Final = (
    "driver and library are of different versions; after an upgrade of the driver, restart this pod or reboot"
)
_DENIED: Final = "the enforcer may not ask; it has to be root and to see the devices /dev/nvidia*"
_PASSING: Final = "this may pass"
_CARD: Final = "look for the card in the kernel's log"
ERRORS: Final[Mapping[int, tuple[Reason, str]]] = {
    1: (Reason.NVML_UNAVAILABLE, _LOADED),
    2: (Reason.NVML_UNAVAILABLE, _AWAY),
    3: (Reason.NVML_UNAVAILABLE, "this GPU or driver cannot tell"),
    4: (Reason.NVML_DENIED, _DENIED),
    5: (Reason.NVML_UNAVAILABLE, _PASSING),
    6: (Reason.NVML_UNAVAILABLE, _AWAY),
    7: (Reason.NVML_UNAVAILABLE, "a list grew faster than it could be read"),
    8: (Reason.NVML_UNAVAILABLE, "the card's power cables are not properly attached"),
    9: (Reason.NVML_UNAVAILABLE, _LOADED),
    10: (Reason.NVML_HUNG, "the driver hangs"),
    11: (Reason.NVML_HUNG, "the kernel does not get the card's interrupts"),
    12: (Reason.NVML_UNAVAILABLE, _LOADED),
    13: (Reason.DRIVER_MISMATCH, _VERSIONS),
    14: (Reason.NVML_UNAVAILABLE, f"its infoROM is corrupted; {_CARD}"),
    15: (Reason.GPU_LOST, "it needs a reset"),
    16: (Reason.GPU_LOST, "it needs a reset"),
    17: (Reason.NVML_DENIED, _DENIED),
    18: (Reason.DRIVER_MISMATCH, _VERSIONS),
    19: (Reason.NVML_UNAVAILABLE, _PASSING),
    20: (Reason.NVML_UNAVAILABLE, "the machine has no memory left for the driver"),
    21: (Reason.NVML_UNAVAILABLE, _PASSING),
    22: (Reason.NVML_UNAVAILABLE, "this GPU or driver cannot tell"),
    23: (Reason.NVML_UNAVAILABLE, _PASSING),
    24: (Reason.NVML_UNAVAILABLE, "this GPU or driver cannot tell"),
    25: (Reason.DRIVER_MISMATCH, _VERSIONS),
    26: (Reason.DRIVER_MISMATCH, _VERSIONS),
    27: (Reason.NVML_UNAVAILABLE, _PASSING),
    28: (Reason.NVML_UNAVAILABLE, _AWAY),
    29: (Reason.NVML_UNAVAILABLE, _PASSING),
    30: (Reason.NVML_UNAVAILABLE, "this GPU or driver cannot tell"),
    999: (Reason.NVML_UNAVAILABLE, _LOADED),
}
"""By NVML's number: our reason, and what may help. Every number that nvidia-ml-py knows is here: a test says so."""


def classify_error(number: int, said: str) -> NvmlError:
    """Make the error that stands for one of NVML's; ``said`` are NVML's own words."""
    reason, hint = ERRORS.get(number, (Reason.NVML_UNAVAILABLE, _LOADED))
    if reason is Reason.GPU_LOST:
        return NvmlError(f"the driver has lost the GPU: {said}; {hint}", reason)
    return NvmlError(f"NVML does not answer: {said}; {hint}", reason)


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
        was = "" if memory_mib is None else f", which had {memory_mib} MiB"
        raise _nonsense(f"{sample.uuid}{was} has {sample.total_mib} MiB")
    for process in sample.processes:
        if not (0 < process.pid <= MOST_PID and 0 <= process.used_mib <= sample.total_mib):
            raise _nonsense(
                f"process {process.pid} holds {process.used_mib} MiB of the {sample.total_mib} MiB of {sample.uuid}"
            )
    held = sum(process.used_mib for process in sample.processes)
    if not 0 <= sample.used_mib <= sample.total_mib or held > sample.used_mib + SLACK_MIB:
        raise _nonsense(
            f"the processes on {sample.uuid} hold {held} MiB, the card {sample.used_mib} of {sample.total_mib} MiB"
        )


def check_gpu(gpu: Gpu) -> Gpu:
    """Return a GPU, or refuse one that cannot exist. Raises ``NvmlError`` (reason ``ImplausibleSample``)."""
    if not 0 < gpu.memory_mib <= MOST_MIB or not 0 <= gpu.reserved_mib < gpu.memory_mib:
        raise _nonsense(f"{gpu.uuid} has {gpu.memory_mib} MiB, {gpu.reserved_mib} of them for the driver")
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
    held: dict[int, int] = {}
    for rows in lists:
        own: dict[int, int] = {}
        for pid, amount in rows:
            if pid <= 0 or amount is None:
                raise _nonsense(f"not how much process {pid} holds on {uuid}")
            if own.setdefault(pid, amount) != amount:
                raise _nonsense(f"process {pid} holds {own[pid]} and {amount} bytes on {uuid}")
        for pid, amount in own.items():
            held[pid] = max(held.get(pid, 0), amount // MIB)
    return tuple(GpuProcess(pid, mib) for pid, mib in sorted(held.items()))


def _nonsense(said: str) -> NvmlError:
    return NvmlError(f"NVML says {said}", Reason.IMPLAUSIBLE_SAMPLE)
