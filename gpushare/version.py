"""Which version of gpu-share runs."""

import os
import sys
from contextlib import suppress
from functools import cache
from typing import Final

from gpushare.patterns import Pattern

_METADATA: Final = Pattern(r"gpu_share-(?P<version>[0-9A-Za-z.+!_-]{1,60})\.dist-info", 80)


@cache
def installed() -> str:
    """Return the installed version, or ``0`` for a bare checkout that was never installed.

    The name of the metadata's folder has it. ``importlib.metadata`` would add megabytes to the sidecar.
    """
    for folder in sys.path:
        with suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):  # noqa: PTH208 - pathlib is not in the sidecar
                if found := _METADATA.fullmatch(name):
                    return str(found["version"])
    return "0"
