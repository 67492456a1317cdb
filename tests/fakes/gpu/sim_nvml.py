"""The simulator in nvidia-ml-py's words, in Python: the second door, for machines without a C compiler.

Only the functions that ``enforcer.nvml.reader.NvmlReader`` calls. A test compares it with ``nvml.c``.
"""

import time
from types import SimpleNamespace
from typing import Any

import pynvml  # noqa: TID251 - its error classes are what the reader catches

from gpushare.quantity import MIB
from tests.fakes.gpu.state import Fault, Machine, MachineGpu, Sim


class SimNvml:
    """Answers like the module ``pynvml`` over a state folder; handles are the machine's GPUs."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._machine: Machine | None = None
        self._met: dict[Fault, int] = {}

    def nvmlInitWithFlags(self, _: int) -> None:  # noqa: N802 - NVML's names
        self._fault("nvmlInitWithFlags")
        try:
            self._machine = self._sim.machine
        except OSError:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED) from None

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._call("nvmlShutdown")
        self._machine = None

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._call("nvmlSystemGetDriverVersion").driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return self._call("nvmlSystemGetCudaDriverVersion_v2").cuda

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._call("nvmlDeviceGetCount_v2").gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> MachineGpu:  # noqa: N802
        return self._call("nvmlDeviceGetHandleByIndex_v2").gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> MachineGpu:  # noqa: N802
        machine = self._call("nvmlDeviceGetHandleByUUID")
        found = [gpu for gpu in (*machine.gpus, *machine.instances) if gpu.uuid == uuid]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetUUID(self, gpu: MachineGpu) -> str:  # noqa: N802
        self._call("nvmlDeviceGetUUID", gpu)
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: MachineGpu) -> str:  # noqa: N802
        self._call("nvmlDeviceGetName", gpu)
        return gpu.name

    def nvmlDeviceGetMinorNumber(self, gpu: MachineGpu) -> int:  # noqa: N802
        self._call("nvmlDeviceGetMinorNumber", gpu)
        return gpu.minor

    def nvmlDeviceGetCudaComputeCapability(self, gpu: MachineGpu) -> tuple[int, int]:  # noqa: N802
        self._call("nvmlDeviceGetCudaComputeCapability", gpu)
        return _capability(gpu)

    def nvmlDeviceGetNumGpuCores(self, gpu: MachineGpu) -> int:  # noqa: N802
        self._call("nvmlDeviceGetNumGpuCores", gpu)
        return gpu.sms * (64 if _capability(gpu) <= (8, 0) else 128)

    def nvmlDeviceGetPciInfo(self, gpu: MachineGpu) -> Any:  # noqa: N802
        self._call("nvmlDeviceGetPciInfo_v3", gpu)
        return SimpleNamespace(busId=gpu.pci)

    def nvmlDeviceGetMemoryInfo(self, gpu: MachineGpu, version: int | None = None) -> Any:  # noqa: N802
        self._call("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", gpu)
        scripted = [f.used_mib for f in self._sim.faults() if f.used_mib is not None and f.gpu in {None, gpu.uuid}]
        used = scripted[-1] if scripted else self._sim.used(gpu.uuid)
        reserved = gpu.reserved_mib if version else 0
        taken = used + gpu.reserved_mib
        return SimpleNamespace(
            total=gpu.memory_mib * MIB,
            reserved=reserved * MIB,
            used=(taken - reserved) * MIB,
            free=max(0, gpu.memory_mib - taken) * MIB,
        )

    def nvmlDeviceGetMigMode(self, gpu: MachineGpu) -> list[int]:  # noqa: N802
        self._call("nvmlDeviceGetMigMode", gpu)
        major, minor = _capability(gpu)
        if gpu.parent or major < 8 or (major == 8 and minor != 0):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu.mig)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: MachineGpu) -> int:  # noqa: N802
        self._call("nvmlDeviceGetMaxMigDeviceCount", gpu)
        return 7 if gpu.mig else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: MachineGpu, index: int) -> MachineGpu:  # noqa: N802
        instances = self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu).instances
        for each in instances:
            if (each.parent, each.minor) == (gpu.uuid, index):
                return each
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetAttributes(self, gpu: MachineGpu) -> Any:  # noqa: N802
        self._call("nvmlDeviceGetAttributes_v2", gpu)
        slices = int(next(part for part in gpu.name.split()[::-1] if "g." in part).rpartition("g.")[0][-1])
        size = gpu.memory_mib
        return SimpleNamespace(
            gpuInstanceSliceCount=slices, computeInstanceSliceCount=slices, memorySizeMB=size,
            multiprocessorCount=gpu.sms,
        )  # fmt: skip

    def nvmlDeviceGetComputeMode(self, gpu: MachineGpu) -> int:  # noqa: N802
        self._call("nvmlDeviceGetComputeMode", gpu)
        return self._sim.compute_mode(gpu.uuid)

    def nvmlDeviceSetComputeMode(self, gpu: MachineGpu, mode: int) -> None:  # noqa: N802
        self._call("nvmlDeviceSetComputeMode", gpu)
        self._sim.set_compute_mode(gpu.uuid, mode)

    def nvmlDeviceGetProcessUtilization(self, gpu: MachineGpu, after: int) -> list[Any]:  # noqa: N802 - NVML's own name
        self._call("nvmlDeviceGetProcessUtilization", gpu)
        if gpu.mig or gpu.parent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        ran = self._sim.ran_kernels(gpu.uuid, after)
        if not ran:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(pid=pid, timeStamp=when, smUtil=50) for pid, when in ran.items()]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._mismatch("nvmlDeviceGetComputeRunningProcesses", gpu, "compute", "mps")

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._mismatch("nvmlDeviceGetGraphicsRunningProcesses", gpu, "graphics")

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._mismatch("nvmlDeviceGetMPSComputeRunningProcesses", gpu, "mps")

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._rows("nvmlDeviceGetComputeRunningProcesses_v2", gpu, "compute", "mps")

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._rows("nvmlDeviceGetGraphicsRunningProcesses_v2", gpu, "graphics")

    def nvmlDeviceGetMPSComputeRunningProcesses_v2(self, gpu: MachineGpu) -> list[Any]:  # noqa: N802
        return self._rows("nvmlDeviceGetMPSComputeRunningProcesses_v2", gpu, "mps")

    def _mismatch(self, name: str, gpu: MachineGpu, *kinds: str) -> list[Any]:
        try:
            return self._rows(f"{name}_v3", gpu, *kinds)
        except pynvml.NVMLError_FunctionNotFound as error:
            raise pynvml.NVMLLibraryMismatchError(name) from error

    def _rows(self, name: str, gpu: MachineGpu, *kinds: str) -> list[Any]:
        self._call(name, gpu)
        by_pid = {pid: [h for h in holdings if h.gpu == gpu.uuid] for pid, holdings in self._sim.processes().items()}
        rows = {
            pid: _total([h.memory_mib for h in mine])
            for pid, mine in by_pid.items()
            if any(h.kind in kinds for h in mine)
        }
        for fault in self._sim.faults():
            new = fault.pid is not None and not by_pid.get(fault.pid)
            if (
                fault.pid is not None
                and fault.gpu in {None, gpu.uuid}
                and ((new and "compute" in kinds) or fault.pid in rows)
            ):
                rows[fault.pid] = fault.memory_mib if isinstance(fault.memory_mib, int) else None
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)
            for pid, mib in sorted(rows.items())
        ]

    def _call(self, name: str, gpu: MachineGpu | None = None) -> Machine:
        if self._machine is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self._fault(name, gpu)
        return self._machine

    def _fault(self, name: str, gpu: MachineGpu | None = None) -> None:
        uuid = None if gpu is None else gpu.uuid
        for fault in self._sim.faults():
            if fault.call not in {"*", name} or (fault.gpu is not None and fault.gpu != uuid):
                continue
            past = self._met.get(fault, 0) - (fault.after or 0)
            self._met[fault] = self._met.get(fault, 0) + 1
            if past < 0 or (fault.times and past >= fault.times):
                continue
            time.sleep((fault.delay_ms or 0) / 1000)
            if fault.error:
                raise pynvml.NVMLError(fault.error)


def _capability(gpu: MachineGpu) -> tuple[int, int]:
    major, minor = gpu.cc.split(".")
    return int(major), int(minor)


def _total(amounts: list[int | None]) -> int | None:
    return None if None in amounts else sum(amount for amount in amounts if amount is not None)
