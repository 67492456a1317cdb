"""Whether NVIDIA's container toolkit on a node gives GPUs to any container that asks by an environment variable."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from enforcer.nvml.driver_root import inside
from gpushare_cli.check.result import CheckResult, ok

SETTING: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
CONFIGS: Final = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""Of the distributions' packages, and of the GPU Operator, below the node's root."""
PROGRAMS: Final = ("usr/bin/nvidia-container-runtime", "usr/local/nvidia/toolkit/nvidia-container-runtime")
MAX_BYTES: Final = 1024 * 1024
HINT: Final = f"set {SETTING} = false in that file (GPU Operator: toolkit.env), then restart the container runtime"


def envvar(root: Path, bad: Callable[[str], CheckResult]) -> CheckResult:
    """Read the setting below the node's root; a container without a share may get every GPU unless it is false."""
    found = [file for each in CONFIGS if (file := inside(root, each)) is not None]
    if not found and any(inside(root, each) for each in PROGRAMS):
        return bad(
            f"{root / CONFIGS[0]} does not exist: by default, containers with NVIDIA_VISIBLE_DEVICES can get every GPU"
        )
    for file in found:
        try:
            value = _setting(file)
        except (OSError, ValueError) as error:
            return bad(f"{file} cannot be read: {error}")
        if value is not False:
            state = "is not set" if value is None else f"is {value!r:.40}"
            return bad(f"{file}: {SETTING} {state}: a container that sets NVIDIA_VISIBLE_DEVICES can get every GPU")
    return ok(str(found[0]) if found else f"not found below {root}")


def _setting(file: Path) -> object:
    """Return the value; ``None`` where it is not set. Raises OSError and ValueError."""
    with file.open("rb") as opened:
        content: dict[str, Any] = tomllib.loads(opened.read(MAX_BYTES).decode())
    return content.get(SETTING)
