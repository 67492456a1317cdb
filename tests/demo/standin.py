"""The enforcer where a machine has no compiler or lets nobody make control groups: two adapters are replaced.

Everything behind them (judging, acting, recording) is the product's own.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enforcer import main as enforcer
from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import CgroupAttributor, read_stat
from tests.fakes.gpu.build import NoCompilerError, library_folder
from tests.fakes.gpu.reader import SimReader

ENV: Final = "GPU_SHARE_DEMO"
"""The folder of the notes, where they stand in for control groups."""
FOLDER: Final = "containers"


def note(folder: Path, pid: int, pod_uid: str, container_id: str) -> None:
    """Write down which container a process was started in."""
    containers = folder / FOLDER
    containers.mkdir(exist_ok=True)
    stat = read_stat(Path(f"/proc/{pid}/stat"))
    if stat is not None:
        (containers / f"{pid}-{stat.start}").write_text(f"{pod_uid} {container_id}")


class ListedContainers(CgroupAttributor):
    """Reads those notes instead of control groups."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / FOLDER

    def identify(self, pid: int) -> Identity | None:
        """Look at a process now; ``None`` when it has ended."""
        stat = read_stat(Path(f"/proc/{pid}/stat"))
        if stat is None or stat.state in {"Z", "X"}:
            return None
        try:
            owner = ContainerRef(*(self._folder / f"{pid}-{stat.start}").read_text().split())
        except OSError:
            owner = None
        return Identity(pid=pid, start=stat.start, owner=owner, kernel_thread=stat.kernel_thread)


def main(argv: Sequence[str]) -> int:
    """Run the enforcer with whatever has to be replaced here."""
    reader: SimReader | None = None
    try:
        library_folder()
    except NoCompilerError:
        reader = SimReader()
    listed = os.environ.get(ENV)
    return enforcer.main(argv, reader=reader, attributor=ListedContainers(Path(listed)) if listed else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
