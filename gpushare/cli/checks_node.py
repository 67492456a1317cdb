"""Questions to this machine: can it serve shares of its GPUs?"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from enforcer.driver_root import PROGRAM, DriverRoot
from enforcer.gpu import NvmlReader
from enforcer.proc import in_initial_pid_namespace
from gpushare.cli.findings import Checker, Finding, fine, warning, wrong
from gpushare.errors import MpsError, NvmlError

Verdict = Callable[[str], Finding]
CATEGORY: Final = "this machine"


def checkers(driver: DriverRoot, *, required: bool) -> list[Checker]:
    """Return the questions. Unless ``required``, a machine without GPUs is something to look at and nothing wrong."""
    bad = wrong if required else warning
    return [
        Checker(
            category=CATEGORY,
            description="GPUs through NVML",
            ask=lambda: gpus(NvmlReader(load=driver.load), bad),
            hint="a GPU node needs the NVIDIA driver and libnvidia-ml.so.1; elsewhere this is as it should be",
        ),
        Checker(
            category=CATEGORY,
            description="MPS control program",
            ask=lambda: mps(driver, bad),
            hint=f"{PROGRAM} comes with the NVIDIA driver's compute utilities",
        ),
        Checker(
            category=CATEGORY,
            description="initial pid namespace",
            ask=lambda: pid_namespace(Path("/proc"), bad),
            hint="the enforcer needs hostPID: true, or it would take one process for another",
        ),
    ]


def gpus(reader: NvmlReader, bad: Verdict) -> Finding:
    """Ask NVML for its GPUs."""
    try:
        found = reader.gpus()
    except NvmlError as error:
        return bad(error.message)
    finally:
        reader.close()
    if not found:
        return bad("the driver is there, and no GPU")
    return fine(", ".join(f"{gpu.model} {gpu.memory_mib} MiB" for gpu in found))


def mps(driver: DriverRoot, bad: Verdict) -> Finding:
    """Tell where the MPS control program is: below the driver's root, or on the PATH."""
    try:
        where = shutil.which(str(driver.program()))
    except MpsError as error:
        return bad(error.message)
    return fine(where) if where else bad(f"{PROGRAM} is not on the PATH")


def pid_namespace(proc: Path, bad: Verdict) -> Finding:
    """Tell whether processes here have the numbers the driver knows them by."""
    try:
        initial = in_initial_pid_namespace(proc)
    except OSError as error:
        return bad(f"cannot be read: {error.strerror}")
    return fine() if initial else bad("this is a container's own")
