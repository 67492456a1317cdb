"""The file in /dev/shm that an MPS server makes and each of its clients has to open, as far as NVIDIA documents it.

NVIDIA/k8s-device-plugin issue 467: ``/dev/shm/cuda.shm.0.<xx>.1``, 4,096 bytes, mode 0600, required of clients. That
the first number is the user and the second the process, both in hexadecimal, is believed.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER: Final = Path("/dev/shm")
BYTES: Final = 4096
OWN: Final = 0o600


def name_of(server: int, uid: int) -> str:
    """Name the file of a server that runs as a user."""
    return f"cuda.shm.{uid:x}.{server:x}.1"


def make(server: int, uid: int, mode: int) -> None:
    """Make the file of a server. Raises ``OSError``: there is no room, and no half of it is left."""
    file = FOLDER / name_of(server, uid)
    try:
        file.write_bytes(bytes(BYTES))
        file.chmod(mode)
        with suppress(PermissionError):  # without the right to it, the server cannot be another user either
            os.chown(file, uid, uid)
    except OSError:
        remove(server, uid)
        raise


def remove(server: int, uid: int) -> None:
    """Remove it, if a tenant has not done so."""
    with suppress(OSError):
        (FOLDER / name_of(server, uid)).unlink()
