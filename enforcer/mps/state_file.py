"""What is written down about a GPU's MPS control daemon, for the enforcer that comes after us."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import read_stat
from enforcer.mps.launcher import folder_of
from enforcer.nvml.types import ComputeMode
from enforcer.runtime import files
from gpushare.errors import ConfigError, MpsError
from gpushare.files import read_regular_file
from gpushare.formats import MPS_DAEMON

FILE: Final = "daemon.json"
MAX_BYTES: Final = 64 * 1024
MAX_PID: Final = 2**22
"""The kernel's own limit."""


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """What the next enforcer has to know: whose the daemon is, and what the GPU (a UUID) was before."""

    pid: int | None = None
    start: int | None = None
    previous_mode: int | None = None
    gpu: str | None = None

    @property
    def plausible(self) -> bool:
        """Whether this can have been written by us: what is read decides whom to signal."""
        numbers = (self.pid, self.start, self.previous_mode)
        if not all(value is None or type(value) is int for value in numbers) or type(self.gpu) not in {str, type(None)}:
            return False
        return (self.pid is None or 0 < self.pid <= MAX_PID) and self.previous_mode in {None, *ComputeMode}


def noted_gpus(root: Path) -> frozenset[str]:
    """Name, by UUID, the GPUs of which a note was left below this directory."""
    found = ((file.parent.name, _read(file).gpu) for file in root.glob(f"*/{FILE}"))
    return frozenset(gpu for name, gpu in found if gpu is not None and name == folder_of(gpu))


class DaemonStateFile:
    """The note of a GPU's daemon, in its directory."""

    def __init__(self, directory: Path, gpu: str) -> None:
        self._file, self._gpu = directory / FILE, gpu

    def check_owner(self) -> None:
        """Leave another GPU's daemon alone, should its note lie here, and a newer release's. Raises ``MpsError``."""
        try:
            MPS_DAEMON.check(read_regular_file(self._file, MAX_BYTES))
        except ConfigError as error:
            raise MpsError(f"{self._gpu}: {error.message}") from error
        except OSError:
            return
        owner = _read(self._file).gpu
        if owner not in {None, self._gpu}:
            raise MpsError(
                f"the state file in {self._file.parent} is of another GPU's MPS control daemon ({owner}); the enforcer "
                f"leaves it alone and starts none for {self._gpu}"
            )

    def read(self) -> DaemonRecord:
        """Read it; an empty one where there is none that we can have written for this GPU."""
        note = _read(self._file)
        return note if note.gpu in {None, self._gpu} else DaemonRecord()

    def process(self) -> int | None:
        """Return the pid of the noted daemon, if it is still the same process."""
        note = self.read()
        stat = None if note.pid is None else read_stat(Path(f"/proc/{note.pid}/stat"))
        return note.pid if stat is not None and stat.start == note.start else None

    def write(self, note: DaemonRecord) -> None:
        """Replace it. Raises ``OSError``."""
        content = {"version": MPS_DAEMON.version, **asdict(replace(note, gpu=self._gpu))}
        files.replace(self._file, json.dumps(content).encode())

    def forget(self) -> None:
        """Remove it. Raises ``OSError``."""
        self._file.unlink(missing_ok=True)


def _read(file: Path) -> DaemonRecord:
    try:
        found = MPS_DAEMON.load(read_regular_file(file, MAX_BYTES))
    except (ConfigError, OSError):
        return DaemonRecord()
    note = DaemonRecord(**{each.name: found.get(each.name) for each in fields(DaemonRecord)})
    return note if note.plausible else DaemonRecord()
