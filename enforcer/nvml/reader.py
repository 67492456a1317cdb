"""NVML, through nvidia-ml-py: which GPUs there are and who holds how much of them.

NVML lies in known ways (lists that outgrow their buffer, rows without an amount, structs of another version), and what
is read here ends lives. So nothing leaves this module unchecked: an answer that cannot be true is an ``NvmlError`` with
reason ``ImplausibleSample``, and the caller has no sample at that moment.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, ParamSpec, TypeVar

import pynvml

from enforcer.nvml import multiprocessors
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import MIB, ComputeMode, Gpu, GpuSample, Utilization
from enforcer.nvml.validation import check, check_gpu, classify_error, merge_process_lists
from gpushare.errors import NvmlError
from gpushare.patterns import Search
from gpushare.reasons import Reason

ATTEMPTS: Final = 3
"""A list may outgrow the buffer that was measured for it; then it is read again."""
LISTS: Final = (  # MPS clients last
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
MIG_ON: Final = 1
PROFILE: Final = Search(r"([0-9]c\.)?[0-9]g\.[0-9]{1,4}gb(\+[a-z.]{1,16})?$", 128)
WHOLE: Final = 100
"""Percent of a GPU's time."""
XID: Final = 8
"""The event type of critical errors (nvml.h, ``nvmlEventTypeXidCriticalError``)."""
SILENT: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
"""What a card without that ability, or a driver older than the question, answers."""
LOST: Final = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)

_FIELD: Final = ctypes.Structure.__getattribute__

P = ParamSpec("P")
R = TypeVar("R")


class NvmlReader(GpuReader):
    """Reads GPUs through NVML. After any failure the library is initialised afresh; handles never outlive a failure.

    Memory is compared without the driver's reserve where NVML can tell it apart (its second memory call); elsewhere
    ``GpuSample.used_mib`` contains it, which only makes the check laxer.

    Args:
        library: nvidia-ml-py, or something that answers like it.
        driver: the node's driver, to load its library from; ``None``: the system's.
    """

    def __init__(self, library: ModuleType | Any = pynvml, driver: DriverRoot | None = None) -> None:
        self._nvml: Any = library
        self._driver = driver
        self._started = False
        self._handles: dict[str, Any] = {}
        self._seen: dict[int, Gpu] = {}
        self._parts: dict[str, tuple[Gpu, ...]] = {}
        self._listed: set[tuple[str, str]] = set()
        self._events: Any = None
        self._lock = threading.RLock()
        """Handles are shared, and a failure drops them all: one question at a time."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Enumerate the GPUs in NVML's order, then the MIG instances on them. One that is lost is as it was before.

        Raises:
            NvmlError: the library, the driver or one of the GPUs does not answer.
        """
        return self._guarded(self._read_gpus)

    def sample(self, uuid: str) -> GpuSample:
        """Read who holds how much on one GPU.

        Raises:
            NvmlError: no answer, or (reason ``ImplausibleSample``) one that cannot be true.
        """
        return self._guarded(self._read_sample, uuid)

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Say who may open contexts on a GPU. Raises ``NvmlError``."""
        return self._guarded(lambda: ComputeMode(self._nvml.nvmlDeviceGetComputeMode(self._handle(uuid))))

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may open contexts on a GPU; needs root. Raises ``NvmlError``."""
        self._guarded(lambda: self._nvml.nvmlDeviceSetComputeMode(self._handle(uuid), int(mode)))

    def limits_cgroups(self, uuid: str, cgroup: str) -> bool:
        """Say whether the driver keeps memory limits of cgroups on a GPU (R615 and newer; not in MIG mode).

        Args:
            uuid: the GPU.
            cgroup: any directory of the cgroup file system, to ask about.

        Raises:
            NvmlError: the driver does not answer.
        """
        return self._guarded(lambda: self._read_limit(uuid, cgroup) is not None)

    def cgroup_limit_mib(self, uuid: str, cgroup: str) -> int | None:
        """Read a cgroup directory's hard limit in MiB, rounded down; ``None``: none is set. Raises ``NvmlError``."""
        found = self._guarded(self._read_limit, uuid, cgroup)
        return None if found in {None, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX} else found // MIB

    def set_cgroup_limit(self, uuid: str, cgroup: str, mib: int) -> None:
        """Let allocations in a cgroup fail that would bring it above ``mib``; needs root. Raises ``NvmlError``.

        Hard alone: a soft limit is a reservation, and one that is not taken back before its cgroup goes, as when a
        container crashes, is lost to the cgroups above until they go too.
        """
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), 0, mib * MIB)
        self._guarded(lambda: self._nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), wanted))

    def ailment(self, uuid: str) -> Reason | None:
        """Say whether a GPU has memory errors that only a reset repairs. Raises ``NvmlError``."""
        return self._guarded(self._read_ailment, uuid)

    def critical_errors(self) -> list[tuple[str, int]]:
        """Say which critical errors (XIDs) happened since the last question; the first hears nothing of the past.

        Raises:
            NvmlError: the library does not answer.
        """
        return self._guarded(self._read_errors)

    def utilization(self, uuid: str, after: int) -> Utilization | None:
        """Read how much of the time after a moment each process ran kernels; ``None``: the driver does not report it.

        Args:
            uuid: the GPU.
            after: microseconds since 1970.

        Raises:
            NvmlError: the library does not answer.
        """
        return self._guarded(self._read_utilization, uuid, after)

    def close(self) -> None:
        """Let go of the library; the next question initialises it again."""
        with self._lock:
            self._handles.clear()
            if self._events is not None:
                with suppress(pynvml.NVMLError):
                    self._nvml.nvmlEventSetFree(self._events)
                self._events = None
            if self._started:
                self._started = False
                with suppress(pynvml.NVMLError):
                    self._nvml.nvmlShutdown()

    def _guarded(self, ask: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            try:
                if not self._started:
                    if self._driver is not None:
                        self._driver.load()
                    self._nvml.nvmlInitWithFlags(0)
                    self._started = True
                return ask(*args, **kwargs)
            except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, OSError) as error:
                self.close()
                raise classify_error(_number(error), str(error)) from error
            except (IndexError, ValueError) as error:
                self.close()
                message = f"the enforcer cannot parse NVML's answer: {error}"
                raise NvmlError(message, Reason.IMPLAUSIBLE_SAMPLE) from error

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _read_gpus(self) -> tuple[Gpu, ...]:
        nvml = self._nvml
        driver = nvml.nvmlSystemGetDriverVersion()
        cuda = divmod(nvml.nvmlSystemGetCudaDriverVersion_v2(), 1000)
        system = driver, (cuda[0], cuda[1] // 10)
        found = {index: self._read_known(index, *system) for index in range(nvml.nvmlDeviceGetCount())}
        if found and not any(found.values()):
            raise NvmlError("the driver has lost every GPU; reset the GPUs or reboot the node", Reason.GPU_LOST)
        self._seen = {index: gpu for index, gpu in found.items() if gpu is not None}
        instances = [each for gpu in self._seen.values() for each in self._instances(gpu)]
        return (*self._seen.values(), *(each._replace(index=len(found) + n) for n, each in enumerate(instances)))

    def _instances(self, gpu: Gpu) -> tuple[Gpu, ...]:
        """Describe the MIG instances of a GPU; as they were where it is lost now."""
        with suppress(*LOST):
            self._parts[gpu.uuid] = tuple(self._read_instances(gpu)) if gpu.mig_enabled else ()
        return self._parts.get(gpu.uuid, ())

    def _read_instances(self, gpu: Gpu) -> Iterator[Gpu]:
        handle = self._handle(gpu.uuid)
        for position in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError_NotFound):  # what was destroyed leaves a hole
                yield self._instance(gpu, self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position))

    def _instance(self, parent: Gpu, handle: Any) -> Gpu:
        memory = self._memory(handle)
        name = self._nvml.nvmlDeviceGetName(handle)
        return check_gpu(parent._replace(
            uuid=self._nvml.nvmlDeviceGetUUID(handle), memory_mib=memory["total"],
            reserved_mib=memory["reserved"], mig_enabled=False, parent=parent.uuid,
            profile=self._profile(name, handle), sms=multiprocessors.possible(
                self._count(lambda: self._nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount)),
        ))  # fmt: skip

    def _profile(self, name: str, handle: Any) -> str:
        """Read it from the instance's name, ``... MIG 1g.10gb``; else work it out; empty where neither can be."""
        named = PROFILE.search(name)
        if named is not None:
            return named[0]
        with suppress(*SILENT):
            found = self._nvml.nvmlDeviceGetAttributes(handle)
            parts, all_parts = found.computeInstanceSliceCount, found.gpuInstanceSliceCount
            part = "" if parts == all_parts else f"{parts}c."
            return f"{part}{all_parts}g.{-(-found.memorySizeMB // 1024)}gb"
        return ""

    def _read_known(self, index: int, driver: str, cuda: tuple[int, int]) -> Gpu | None:
        """Describe one GPU; as it was where it is lost now, ``None`` where it was never seen."""
        try:
            return self._read_gpu(index, self._nvml.nvmlDeviceGetHandleByIndex(index), driver, cuda)
        except LOST:
            return self._seen.get(index)

    def _read_gpu(self, index: int, handle: Any, driver: str, cuda: tuple[int, int]) -> Gpu:
        nvml = self._nvml
        memory = self._memory(handle)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
        found = Gpu(
            uuid=nvml.nvmlDeviceGetUUID(handle),
            index=index,
            minor=nvml.nvmlDeviceGetMinorNumber(handle),
            model=nvml.nvmlDeviceGetName(handle),
            memory_mib=memory["total"],
            reserved_mib=memory["reserved"],
            compute_capability=(major, minor),
            pci_bus_id=bus_id.decode() if isinstance(bus_id, bytes) else bus_id,
            driver_version=driver,
            cuda_version=cuda,
            mig_enabled=self._count(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) == MIG_ON,
            sms=multiprocessors.of_cores(self._count(lambda: nvml.nvmlDeviceGetNumGpuCores(handle)), (major, minor)),
        )
        return check_gpu(found)

    @staticmethod
    def _count(ask: Callable[[], int]) -> int:
        with suppress(*SILENT):
            return int(ask())
        return 0  # the driver does not say

    def _read_sample(self, uuid: str) -> GpuSample:
        handle = self._handle(uuid)
        for _ in range(ATTEMPTS - 1):
            sample = self._look(uuid, handle)
            # A process that ended between the two questions makes what cannot be true: look again before saying so.
            with suppress(NvmlError):
                check(sample, self._size(uuid))
                return sample
        sample = self._look(uuid, handle)
        check(sample, self._size(uuid))
        return sample

    def _size(self, uuid: str) -> int | None:
        """MiB of a GPU when it was counted; ``None`` where it was not."""
        parts = (part for found in self._parts.values() for part in found)
        return next((gpu.memory_mib for gpu in (*self._seen.values(), *parts) if gpu.uuid == uuid), None)

    def _look(self, uuid: str, handle: Any) -> GpuSample:
        # The lists come first: what is allocated in between then makes the total larger, and accuses nobody.
        rows = [[(row.pid, row.usedGpuMemory) for row in self._list(name, uuid, handle)] for name in LISTS]
        memory, clients = self._memory(handle), tuple(sorted({pid for pid, _ in rows[-1]}))
        processes = merge_process_lists(uuid, rows)
        return GpuSample(uuid, memory["total"], memory["used"], processes=processes, clients=clients)

    def _memory(self, handle: Any) -> Mapping[str, int]:
        """Total, reserved and used in MiB, rounded down."""
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except SILENT:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            return {"total": info.total // MIB, "reserved": 0, "used": info.used // MIB}
        return {name: getattr(info, name) // MIB for name in ("total", "reserved", "used")}

    def _read_limit(self, uuid: str, cgroup: str) -> int | None:
        """Bytes; ``None`` where the driver knows no such limits."""
        asked = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=cgroup.encode())
        try:
            self._nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), asked)
        except (*SILENT, pynvml.NVMLLibraryMismatchError):
            return None
        return int(asked.hardLimit)

    def _read_ailment(self, uuid: str) -> Reason | None:
        handle = self._handle(uuid)
        with suppress(*SILENT):
            _, _, pending, failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
            return Reason.ECC_UNCORRECTABLE if pending or failed else None
        with suppress(*SILENT):  # before Ampere pages are retired, rows are not remapped
            return Reason.ECC_UNCORRECTABLE if self._nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) else None
        return None

    def _read_errors(self) -> list[tuple[str, int]]:
        if self._events is None:
            self._events = self._nvml.nvmlEventSetCreate()
            for index in range(self._nvml.nvmlDeviceGetCount()):
                with suppress(*SILENT, *LOST):
                    handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                    self._nvml.nvmlDeviceRegisterEvents(handle, XID, self._events)
        found: list[tuple[str, int]] = []
        with suppress(pynvml.NVMLError_Timeout, *LOST):
            while True:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                found.append((self._nvml.nvmlDeviceGetUUID(event.device), int(event.eventData)))
        return found

    def _read_utilization(self, uuid: str, after: int) -> Utilization | None:
        handle = self._handle(uuid)
        try:
            rows = self._nvml.nvmlDeviceGetProcessUtilization(handle, after)
        except pynvml.NVMLError_NotFound:  # nobody has
            return ()
        except pynvml.NVMLError:
            return None  # of no use to detection, so no reason to initialise the library afresh
        # Some drivers write rows without a process, or with a share of more than all.
        return tuple(sorted({row.pid: row.smUtil for row in rows if row.pid and row.smUtil <= WHOLE}.items()))

    def _list(self, name: str, uuid: str, handle: Any) -> list[Any]:
        try:
            rows = self._either(name, handle)
        except SILENT:
            # Old drivers know no MPS list and headless cards no graphics list; the compute list is indispensable.
            # A list that could be read before is not one of those: its processes have not left because it fails.
            if name == LISTS[0] or (name, uuid) in self._listed:
                raise
            return []
        self._listed.add((name, uuid))
        return rows

    def _either(self, name: str, handle: Any) -> list[Any]:
        try:
            return self._outgrown(getattr(self._nvml, name), handle)
        except (pynvml.NVMLLibraryMismatchError, pynvml.NVMLError_FunctionNotFound):
            # An older driver: the same rows under the older name.
            return self._outgrown(getattr(self._nvml, f"{name}_v2"), handle)

    def _outgrown(self, read: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
        for _ in range(ATTEMPTS - 1):
            with suppress(pynvml.NVMLError_InsufficientSize, IndexError):
                return read(handle)
        return read(handle)


class Row:
    """A process in one of NVML's lists, of any version of those: what of it is asked for here."""

    __slots__ = ("pid", "usedGpuMemory")

    def __init__(self, struct: Any) -> None:
        self.pid: int = _FIELD(struct, "pid")
        self.usedGpuMemory: int | None = _FIELD(struct, "usedGpuMemory")
        """Bytes; nvidia-ml-py sets it to ``None`` where NVML does not say."""


def read_rows_lightly() -> None:
    """Have nvidia-ml-py make a ``Row`` of each process, in all of this program.

    Its own way, which copies every field of each by its name and looks whether it is a text, takes longer than all
    else that is done for a sample.
    """
    pynvml.nvmlStructToFriendlyObject = Row


def _number(error: Exception) -> int:
    """NVML's number for what nvidia-ml-py raises."""
    if isinstance(error, pynvml.NVMLLibraryMismatchError):
        return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return int(getattr(error, "value", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
