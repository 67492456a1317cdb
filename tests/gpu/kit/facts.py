"""What a machine is and what it lacks; asked in a child process, where the driver's libraries can be found by name."""

import ctypes
import importlib.util
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from enforcer.attribution.procfs import in_initial_pid_namespace
from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import ComputeMode, Gpu
from gpushare.errors import NvmlError
from tests.fakes.gpu.state import ENV
from tests.gpu.kit import cgroups
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.find import CUDA, NVML, loaded_driver
from tests.gpu.kit.launch import MAPPED_ROOT
from tests.gpu.kit.machine import MODE_REFUSED
from tests.gpu.kit.result import NotMeasurable
from tests.gpu.kit.setup import LAUNCH, Setup

BUSY_MIB: Final = 1024
"""Used by nobody we can see: more than a driver's own overhead, so somebody is there."""
SHM: Final = Path("/dev/shm")


class NoGpuError(RuntimeError):
    """There is not a GPU to measure; the sentence says why."""


def look(setup: Setup) -> tuple[str, Facts]:
    """Everything that can be known without a CUDA context. Returns the GPU's UUID, empty where there is none."""
    known: dict[str, Any] = dict(_surroundings())
    missing: dict[str, str] = {}
    gpu: Gpu | None = None
    reader = NvmlReader()
    try:
        gpu = choose(reader.gpus(), setup.gpu)
        known |= _state(reader, gpu)
    except (NvmlError, NoGpuError) as error:
        missing["nvml"] = missing["idle"] = str(error)
    if "busy" in known:
        missing["idle"] = known["busy"]
    missing |= {need: said for need, check in _checks(setup, known).items() if (said := check())}
    known["libraries"] = loaded_libraries()
    known["simulated"] = signs_of_simulation(known["libraries"])
    return (gpu.uuid if gpu else ""), _facts(gpu, missing, known)


def choose(gpus: tuple[Gpu, ...], wanted: str) -> Gpu:
    """The GPU to measure: by UUID, by NVML's index, else the first without MIG.

    Raises:
        NoGpuError: there is none like that.
    """
    found = [gpu for gpu in gpus if wanted in {gpu.uuid, str(gpu.index)} or (not wanted and not gpu.mig_enabled)]
    if not found:
        there = ", ".join(f"{gpu.index} {gpu.uuid}{' (MIG)' if gpu.mig_enabled else ''}" for gpu in gpus) or "none"
        raise NoGpuError(f"no GPU {wanted or 'without MIG'} to measure; there are: {there}")
    return found[0]


def loaded_libraries() -> list[str]:
    """The driver's libraries in this process, as the kernel names them: also how a fake is told from a driver."""
    with suppress(OSError):
        rows = Path("/proc/self/maps").read_text().splitlines()
        names = {row.split(maxsplit=5)[5] for row in rows if len(row.split(maxsplit=5)) == 6}
        return sorted(name for name in names if NVML.split(".so")[0] in name or CUDA.split(".so")[0] in name)
    return []


def signs_of_simulation(libraries: list[str]) -> list[str]:
    """What gives a simulator away, whatever the run was called: its variable, and its libraries' own bytes."""
    signs = [f"{ENV} is set"] if os.environ.get(ENV) else []
    for name in libraries:
        with suppress(OSError):
            if ENV.encode() in Path(name).read_bytes():
                signs.append(f"{Path(name).name} is a simulator's")
    return signs


def _facts(gpu: Gpu | None, missing: dict[str, str], known: dict[str, Any]) -> Facts:
    base = Facts(kernel=platform.release(), uid=os.geteuid(), missing=missing, known=known, driver=loaded_driver())
    if gpu is None:
        return base
    return Facts(
        driver=gpu.driver_version, cuda=".".join(map(str, gpu.cuda_version)), model=gpu.model,
        memory_mib=gpu.memory_mib - gpu.reserved_mib, compute_capability=".".join(map(str, gpu.compute_capability)),
        kernel=base.kernel, uid=base.uid, missing=missing, known=known,
    )  # fmt: skip


def _surroundings() -> Iterator[tuple[str, Any]]:
    yield "sandbox", sandbox()
    yield "cpus", len(os.sched_getaffinity(0))
    if SHM.is_dir():
        space = os.statvfs(SHM)
        yield "shm_mib", space.f_frsize * space.f_blocks // (1 << 20)
    with suppress(NotMeasurable):
        yield "cgroup", str(cgroups.find())


def sandbox(proc: Path = Path("/proc"), root: Path = Path("/")) -> str:
    """What kind of machine this looks like from inside."""
    with suppress(OSError):
        version = (proc / "version").read_text()
        if "gVisor" in version or platform.release().startswith("4.4.0"):
            return "gVisor"
    for marker, name in (("run/.containerenv", "Podman"), (".dockerenv", "Docker")):
        if (root / marker).exists():
            return name
    with suppress(OSError):
        if "kubepods" in (proc / "self/cgroup").read_text():
            return "Kubernetes pod"
    for folder in ("sys/class/dmi/id/product_name", "sys/class/dmi/id/sys_vendor"):
        with suppress(OSError):
            return f"machine: {(root / folder).read_text().strip()}"
    return "Firecracker" if "-fc-" in platform.release() else "machine or virtual machine"


def _state(reader: NvmlReader, gpu: Gpu) -> dict[str, Any]:
    sample = reader.sample(gpu.uuid)
    state: dict[str, Any] = {"used_mib": sample.used_mib, "reserved_mib": gpu.reserved_mib}
    mode = _mode(reader, gpu, state)
    if sample.processes or sample.used_mib > BUSY_MIB:
        pids = ", ".join(str(each.pid) for each in sample.processes) or "none NVML shows us"
        state["busy"] = f"GPU busy: {sample.used_mib} MiB used, by processes {pids}"
    elif mode is not ComputeMode.DEFAULT:
        state["busy"] = f"GPU busy: its compute mode is {mode.name}, so somebody serves it; stop that MPS daemon first"
    return state


def _mode(reader: NvmlReader, gpu: Gpu, state: dict[str, Any]) -> ComputeMode:
    """A GPU that does not say counts as in the mode every GPU is in."""
    try:
        mode = reader.compute_mode(gpu.uuid)
    except NvmlError as error:
        state["compute_mode_unknown"] = error.message
        return ComputeMode.DEFAULT
    state["compute_mode"] = mode.name
    return mode


def _checks(setup: Setup, known: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """Each says what is wrong, or nothing."""
    return {
        "cuda": lambda: _no_cuda(setup),
        "mps": lambda: setup.mps_problem if not setup.mps_control else "",
        "root": lambda: "" if os.geteuid() == 0 else f"not root but uid {os.geteuid()}",
        "mode-change": lambda: "" if setup.allow_mode_change else MODE_REFUSED,
        "initial-pidns": lambda: "" if in_initial_pid_namespace() else "not in the initial pid namespace",
        "cgroup": lambda: "" if "cgroup" in known else _no_cgroup(),
        "mounts": lambda: _no_mounts(setup),
        "user-namespace": lambda: _no_user_namespace(setup),
        "kernel-log": _no_kernel_log,
        "torch": lambda: "" if importlib.util.find_spec("torch") else "PyTorch is not installed",
    }


def _no_cuda(setup: Setup) -> str:
    if not Path(setup.client).exists():
        return f"the CUDA client {Path(setup.client).name} is not in this checkout"
    try:
        ctypes.CDLL(CUDA)
    except OSError as error:
        return f"{CUDA} cannot be loaded: {error}"
    return ""


def _no_cgroup() -> str:
    try:
        cgroups.find()
    except NotMeasurable as error:
        return str(error)
    return ""


def _no_mounts(setup: Setup) -> str:
    command = [setup.python, "-S", str(LAUNCH), "--private-shm", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no private mount namespace: {done.stdout.strip() or done.stderr.strip()}"


def _no_user_namespace(setup: Setup) -> str:
    command = [setup.python, "-S", str(LAUNCH), "--uid", str(MAPPED_ROOT), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no user namespace: {done.stdout.strip() or done.stderr.strip()}"


def _no_kernel_log() -> str:
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"the kernel's log cannot be read: {error}"
    return "" if done.returncode == 0 else f"the kernel's log cannot be read: {done.stderr.strip()}"
