"""A freezer of cgroup v1: the one thing here that keeps SIGKILL pending. That of v2 lets a killed process end."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.integration.processes.containers import wait_for
from tests.support.need import missing

FREEZER: Final = Path("/sys/fs/cgroup/freezer")


@contextmanager
def freezer() -> Iterator[Path]:
    """A cgroup to freeze processes in; they are thawed at the end, and have to end within 30 s of that."""
    folder = FREEZER / f"gpu-share-safety-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        missing(f"no cgroup v1 freezer, and nothing else here makes a process hang: {error}")
    try:
        yield folder
    finally:
        thaw(folder)
        wait_for(lambda: (folder / "cgroup.procs").read_text() == "", 30)
        folder.rmdir()


def freeze(folder: Path, pid: int) -> None:
    """Freeze a process, and wait until it is."""
    (folder / "cgroup.procs").write_text(str(pid))
    (folder / "freezer.state").write_text("FROZEN")
    wait_for(lambda: (folder / "freezer.state").read_text().strip() == "FROZEN", 30)


def thaw(folder: Path) -> None:
    """Let what is frozen there go on."""
    (folder / "freezer.state").write_text("THAWED")
