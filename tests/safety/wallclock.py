"""Builds ``wallclock.c``, the library that moves the wall clock of one process."""

import subprocess
from pathlib import Path
from typing import Final

from tests.fakes.gpu.build import compiler
from tests.support.need import missing

SOURCE: Final = Path(__file__).with_name("wallclock.c")
SECONDS: Final = "GPU_SHARE_WALL_SECONDS"
"""Variable that says how far the clock is off from the start."""


def library(folder: Path) -> Path:
    """The library for LD_PRELOAD, built into ``folder``; without a compiler the test is skipped, in CI failed."""
    if (cc := compiler()) is None:
        missing("no C compiler to build the wall clock's library")
    made = folder / "wallclock.so"
    subprocess.run([cc, "-shared", "-fPIC", "-O2", "-o", made, SOURCE], check=True)
    return made


def environment(folder: Path, seconds: int) -> dict[str, str]:
    """What a process needs whose clock is off by so many seconds."""
    return {"LD_PRELOAD": str(library(folder)), SECONDS: str(seconds)}
