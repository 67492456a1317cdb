"""The directories of one MPS control daemon."""

import os
import shutil
from pathlib import Path
from typing import Final

LOG_TAIL: Final = 400


def clear(pipe: Path) -> None:
    """Remove what lies in a pipe directory: a tenant that runs as root can put links and locks there.

    The directory itself stays, because containers have it mounted. Raises ``OSError``.
    """
    pipe.chmod(0o755)
    for entry in list(os.scandir(pipe)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink(missing_ok=True)


def log_tail(log: Path) -> str:
    """Return the end of a daemon's log, or why there is none."""
    try:
        return (log / "control.log").read_text(errors="replace")[-LOG_TAIL:].strip()
    except OSError as error:
        return str(error)
