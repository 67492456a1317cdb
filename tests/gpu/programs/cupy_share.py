"""CuPy in a share."""

import importlib
from typing import Any

from tests.gpu.programs import common

cupy: Any = importlib.import_module("cupy")  # of the machine that is measured, not of this project
matrix = cupy.ones((2048, 2048), cupy.float32)
common.run(
    lambda: float((matrix @ matrix).sum()),
    lambda: cupy.ones((common.BLOCK_MIB << 18,), cupy.int32),
    cupy.cuda.memory.OutOfMemoryError,
)
