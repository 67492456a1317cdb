"""NVML that answers from memory: the simulator's library, which reads its files once (``remembered.c``)."""

import subprocess
from pathlib import Path
from typing import Final

from tests.fakes.gpu.build import BUILT, FLAGS, HERE, LIBRARY_FLAGS, compiler
from tests.fakes.gpu.need import need_library

NAME: Final = "libnvidia-ml.so.1"
WRAPPED: Final = ("sim_rows", "sim_used", "sim_fault", "sim_lie")


def remembering(folder: Path) -> Path:
    """Build it; returns the folder for LD_LIBRARY_PATH. Skips or fails where there is no compiler."""
    need_library()
    units = [*(HERE / unit for unit in BUILT[NAME]), Path(__file__).with_name("remembered.c")]
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    subprocess.run(
        [str(compiler()), *FLAGS, *LIBRARY_FLAGS, *wraps, "-o", str(folder / NAME), *map(str, units)], check=True
    )
    return folder
