"""What the driver itself says of the GPU, asked by the product's own reader outside of any container."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.reader import NvmlReader
from tests.gpu.kit import find

SIMULATED: Final = Path("/var/lib/gpu-share/simulator/driver")


def ask(backend: str) -> dict[str, Any]:
    """One look, in a process of its own: uuid, model, driver, compute mode, MiB used, MiB by pid.

    Raises:
        RuntimeError: the driver cannot be asked.
    """
    command = [sys.executable, "-m", "tests.gpu.parcel.truth", backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise RuntimeError(f"the driver cannot be asked: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _look(backend: str) -> dict[str, Any]:
    if backend == "fake":
        DriverRoot(SIMULATED).load()
    elif (library := find.library(find.NVML)) is not None:
        ctypes.CDLL(str(library))  # nvidia-ml-py finds it by its name then
    reader = NvmlReader()
    gpu = reader.gpus()[0]
    sample = reader.sample(gpu.uuid)
    return {
        "uuid": gpu.uuid,
        "model": gpu.model,
        "driver": gpu.driver_version,
        "compute_mode": reader.compute_mode(gpu.uuid).name,
        "total_mib": sample.total_mib,
        "used_mib": sample.used_mib,
        "processes": {str(row.pid): row.used_mib for row in sample.processes},
    }


if __name__ == "__main__":
    print(json.dumps(_look(sys.argv[1])))
