"""The ``/dev/shm`` of an MPS client: whether a container brings its own, and who may open the server's file. Pure.

Before driver 580 the MPS server keeps a file ``cuda.shm.*`` there, which each client maps (NVIDIA/k8s-device-plugin
issue 467: 4,096 bytes, mode 0600). Linux decides by its owner and mode; capabilities apart, root may open every file.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from gpushare import contract

FIRST_WITHOUT_FILE: Final = 580
"""The first driver branch whose MPS server makes no file there. Measured on an H100 with 580.159.04, whose server logs
an anonymous region instead; that all of 580 are so, and no older branch is, is believed."""
SERVER_FILE: Final = "cuda.shm."
"""How the names of the server's files begin."""
MAX_FILES: Final = 256
"""So many names of a folder are looked at. Tenants can write there."""
ROOT: Final = 0
_OTHERS: Final = 0o006
_OWNER: Final = 0o600


class SharedMemory(StrEnum):
    """What the operator chose: chart value ``mps.sharedMemory``."""

    AUTO = "auto"
    """The node's before driver 580, whose MPS servers keep a file there; from 580 on each container's own."""
    NODE = "node"
    PRIVATE = "private"


def brings_memory(container: Mapping[str, Any]) -> bool:
    """Tell whether a container mounts a volume at /dev/shm, so that it keeps that one."""
    mounts = container.get("volumeMounts")
    paths = (
        [str(each.get("mountPath")) for each in mounts if isinstance(each, dict)] if isinstance(mounts, list) else []
    )
    wanted = _steps(contract.SHARED_MEMORY_PATH)
    return any(_steps(path) == wanted for path in paths)


def needs_server_file(driver: str) -> bool:
    """Tell whether MPS clients of a driver version (``580.159.04``) have to open their server's file.

    They have where the version is not known.
    """
    branch = driver.partition(".")[0]
    return not (branch.isascii() and branch.isdecimal()) or int(branch) < FIRST_WITHOUT_FILE


def may_open(user: int, owner: int, mode: int) -> bool:
    """Tell whether a user may read and write a file. Its group is not a container's, and does not count."""
    wanted = _OWNER if user == owner else _OTHERS
    return user == ROOT or mode & wanted == wanted


def barred(user: int, files: Iterable[tuple[int, int]]) -> bool:
    """Tell whether there are files, each an owner and a mode, and this user may open none of them."""
    found = tuple(files)
    return bool(found) and not any(may_open(user, owner, mode) for owner, mode in found)


def user_of(pod: Mapping[str, Any], container: Mapping[str, Any]) -> int | None:
    """Return the user a container runs as; ``None`` where its image decides."""
    spec = pod.get("spec")
    contexts = (container.get("securityContext"), spec.get("securityContext") if isinstance(spec, dict) else None)
    users = [each.get("runAsUser") for each in contexts if isinstance(each, dict)]
    return next((each for each in users if isinstance(each, int)), None)


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in {"", "."}]
