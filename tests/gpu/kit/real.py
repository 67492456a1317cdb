"""The real machine: where its driver is, and whether the MPS programs are the driver's own."""

import os
from pathlib import Path

from tests.gpu.kit import find
from tests.gpu.kit.setup import Setup, python_of_others


def prepare(*, gpu: str = "", mps_control: str = "", mps_server: str = "", allow_mode_change: bool = False) -> Setup:
    """Look for everything; what is not there is left empty and said by the doctor. Changes nothing."""
    libraries = [find.library(name) for name in (find.CUDA, find.NVML)]
    own = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    folders = dict.fromkeys([*(str(found.parent) for found in libraries if found is not None), *own])
    driver = _driver(libraries)
    found = find.programs(driver, find.program_folders(libraries), mps_control, mps_server)
    return Setup(
        backend="real", gpu=gpu, environment={"LD_LIBRARY_PATH": ":".join(folders)} if folders else {},
        mps_control=found.control, mps_server=found.server,
        mps_problem=found.problem if driver else "no NVIDIA driver is loaded", python_of_others=python_of_others(),
        allow_mode_change=allow_mode_change,
    )  # fmt: skip


def _driver(libraries: list[Path | None]) -> str:
    """The loaded module's version; in sandboxes without that file, the one in the NVML library's own name."""
    named = [find.VERSION.search(found.resolve().name.encode()) for found in libraries if found is not None]
    return find.loaded_driver() or next((match[1].decode() for match in named if match), "")
