"""The simulator's state folder: which GPUs a machine has, which process says it holds how much, which calls fail.

Every file is small text, written whole and renamed into place, so that any process, in C or Python, may read at any
time. Layout (``nvml.c`` reads the same):

- ``machine``: ``driver=``, ``nvml=``, ``cuda=`` lines, then one ``gpu`` line of TAB-separated ``key=value`` per GPU:
  ``uuid``, ``name``, ``memory_mib``, ``reserved_mib``, ``cc``, ``minor``, ``pci`` and optionally ``mig=1``;
  ``mig`` lines are instances, with ``parent`` and their position as ``minor``;
- ``processes/<pid>``: one line per holding, ``gpu=<uuid>``, ``memory_mib=<n>``, ``kind=compute|graphics|mps``, and
  ``start=<field 22 of /proc/pid/stat>`` so that a reused pid inherits nothing. A dead process or a zombie holds nothing
  (a zombie leader whose other threads live does). ``seen=device``: in the card's total but in no process's row, as
  managed memory; ``seen=rows``: the other way round, as what another process exported; ``seen=after``: in both once the
  process ``of`` that started at ``of_start`` has ended, as what it exported;
- ``world``: how hardware behaves where nobody knows it yet, see ``world.py``; ``sticky/<pid>``: the error that every
  CUDA call of a process returns from now on; ``servers/<uuid>``: the MPS server of a GPU;
- ``ecc/<uuid>``, ``no-mps/<uuid>``, ``no-terminate/<uuid>``: see ``mark``;
- ``nvidiactl/<name>``: memory behind a descriptor, see ``exports.py``;
- ``kernels/<pid>``: when that process last ran a kernel, ``gpu=``, ``start=`` and ``time_us=`` since 1970;
- ``faults``: see ``Fault``; ``compute_mode/<uuid>``; ``limits/<uuid>-<hash>``; ``xid``: critical errors that happened;
- ``mps``: see ``MpsFault``.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from tests.fakes.gpu import cgroup_limits, exports
from tests.fakes.gpu.machine import MACHINES as MACHINES  # noqa: PLC0414 - for those who know it from here
from tests.fakes.gpu.machine import Machine as Machine  # noqa: PLC0414 - for those who know it from here
from tests.fakes.gpu.machine import MachineGpu as MachineGpu  # noqa: PLC0414 - for those who know it from here
from tests.fakes.gpu.machine import line_of

ENV: Final = "GPU_SHARE_SIM"
KINDS: Final = ("compute", "graphics", "mps")
FOLDERS: Final = (
    "processes",
    "compute_mode",
    "limits",
    "sticky",
    "servers",
    "ecc",
    "no-mps",
    "no-terminate",
    "kernels",
    exports.FOLDER,
)
DEAD: Final = ("Z", "X", "x")


class OutOfGpuMemoryError(Exception):
    """The card has less memory left than was asked for, as CUDA would say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Memory of one kind one process says it holds on one GPU. ``None``: NVML does not know how much."""

    gpu: str
    memory_mib: int | None
    kind: str = "compute"
    seen: str = "both"
    of: tuple[int, int] | None = None

    @property
    def waits(self) -> bool:
        """Whether it counts for another process as yet: the one that exported it."""
        return self.of is not None and started(self.of[0]) == self.of[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong, one of four kinds.

    - ``call`` (an NVML function, or ``*``) answers ``error``, after ``delay_ms``; only for ``gpu`` if given; the first
      ``after`` calls of a process are spared, then ``times`` calls are hit (0: all);
      with ``signal`` the process ends by that signal, with ``hold`` the call comes back when this script is another;
    - ``lie``, a list's function, says it wrote ``more`` rows than there was room for;
    - ``pid``: a row of that pid is shown on ``gpu`` with ``memory_mib`` whoever holds it, ``none`` for not available;
    - ``used_mib``: what the device total of ``gpu`` says instead of the truth.
    """

    call: str | None = None
    error: int | None = None
    delay_ms: int | None = None
    after: int | None = None
    times: int | None = None
    gpu: str | None = None
    pid: int | None = None
    memory_mib: int | str | None = None
    used_mib: int | None = None
    signal: int | None = None
    hold: int | None = None
    lie: str | None = None
    more: int | None = None

    def line(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return line_of(None, {name: value for name, value in values.items() if value is not None})

    @classmethod
    def parse(cls, line: str) -> Self:
        raw = dict(part.split("=", 1) for part in line.split("\t"))
        texts = {"call", "gpu", "lie"}
        return cls(**{key: v if key in texts or not v.isdigit() else int(v) for key, v in raw.items()})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsFault:
    """What the stand-in for MPS does to one command: hang for a while, and answer something else."""

    command: str
    answer: str | None = None
    hang_ms: int | None = None


class Sim:
    """A simulated machine in a folder. Safe to use from any number of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, machine: Machine | str) -> Self:
        """Make a machine (``Machine`` or the name of a file in ``machines/``) come to life in ``folder``."""
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        sim = cls(folder)
        sim.become(Machine.named(machine) if isinstance(machine, str) else machine)
        return sim

    @classmethod
    def from_environment(cls) -> Self:
        """The machine of this process. Raises ``KeyError`` where ``GPU_SHARE_SIM`` is not set."""
        return cls(Path(os.environ[ENV]))

    def become(self, machine: Machine) -> None:
        """Change the hardware; NVML shows it to those who initialise from now on."""
        _write(self.folder / "machine", machine.text())

    @property
    def machine(self) -> Machine:
        return Machine.parse((self.folder / "machine").read_text())

    def gpu(self, uuid: str) -> MachineGpu:
        """One GPU. Raises ``ValueError`` naming those that exist."""
        machine = self.machine
        gpus = {gpu.uuid: gpu for gpu in (*machine.gpus, *machine.instances)}
        if uuid not in gpus:
            raise ValueError(f"no GPU {uuid!r}; there are {', '.join(gpus)}")
        return gpus[uuid]

    def register(self, pid: int, gpu: str, mib: int | None, kind: str = "compute") -> None:
        """Say that ``pid`` now holds ``mib`` of that kind on that GPU, whatever it held before. Nothing is checked."""
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
        with self._locked():
            rest = [h for h in self._read(pid) if (h.gpu, h.kind) != (gpu, kind)]
            self._put(pid, [*rest, Holding(gpu=gpu, memory_mib=mib, kind=kind)])

    def allocate(self, pid: int, gpu: str, mib: int, kind: str = "compute", seen: str = "both") -> None:
        """Take ``mib`` more, as a CUDA program would. ``seen="device"``: in no row.

        Raises:
            OutOfGpuMemoryError: the card, or the process's cgroup, has less left.
        """
        usable = self.gpu(gpu).usable_mib
        with self._locked():
            left = min(usable - self.used(gpu), cgroup_limits.left(self.folder, gpu, pid, self._used_by_pid(gpu)))
            if mib > left:
                raise OutOfGpuMemoryError(f"{gpu} has {left} MiB left, {mib} MiB were asked for")
            mine = self._read(pid)
            had = sum(h.memory_mib or 0 for h in mine if (h.gpu, h.kind, h.seen) == (gpu, kind, seen))
            rest = [h for h in mine if (h.gpu, h.kind, h.seen) != (gpu, kind, seen)]
            self._put(pid, [*rest, Holding(gpu=gpu, memory_mib=had + mib, kind=kind, seen=seen)])

    def show(self, pid: int) -> None:
        """Let what the process holds in no row stand in its row from now on, as a row that comes late does."""
        with self._locked():
            self._put(pid, [replace(h, seen="both") if h.seen == "device" else h for h in self._read(pid)])

    def free(self, pid: int, gpu: str | None = None) -> bool:
        """Take away all that ``pid`` holds (on one GPU). Returns whether it held anything."""
        with self._locked():
            mine = self._read(pid)
            rest = [h for h in mine if gpu is not None and h.gpu != gpu]
            self._put(pid, rest)
            return len(rest) != len(mine)

    def processes(self) -> dict[int, tuple[Holding, ...]]:
        """What every live process is seen to hold."""
        found = {pid: tuple(h for h in holdings if h.seen != "device" and not h.waits) for pid, holdings in self._all()}
        return {pid: holdings for pid, holdings in found.items() if holdings}

    def tenants(self) -> dict[int, tuple[Holding, ...]]:
        """The same without MPS servers, which hold memory of their own."""
        rows = [_row(_text(file)) for file in (self.folder / "servers").iterdir()]
        servers = {int(row["pid"]) for row in rows if row and row["start"] == str(started(int(row["pid"])))}
        return {pid: holdings for pid, holdings in self.processes().items() if pid not in servers}

    def used_by_tenants(self, gpu: str) -> int:
        """MiB that processes which are no MPS server are seen to hold on a GPU."""
        rows = (each for holdings in self.tenants().values() for each in holdings)
        return sum(each.memory_mib or 0 for each in rows if each.gpu == gpu)

    def _all(self) -> Iterator[tuple[int, list[Holding]]]:
        pids = sorted(int(file.name) for file in (self.folder / "processes").iterdir() if file.name.isdigit())
        return ((pid, self._read(pid)) for pid in pids)

    def used(self, gpu: str) -> int:
        """MiB held on a GPU by live processes and descriptors; the driver's reserve is not in it."""
        return sum(mib for _, mib in self._used_by_pid(gpu)) + self.exported(gpu)

    def exported(self, gpu: str) -> int:
        """MiB of a GPU that descriptors alone hold: their makers have released them or ended."""
        return exports.used_mib(self.folder / exports.FOLDER, gpu, started)

    def _used_by_pid(self, gpu: str) -> list[tuple[int, int]]:
        every = ((pid, h) for pid, holdings in self._all() for h in holdings)
        return [(pid, h.memory_mib or 0) for pid, h in every if h.gpu == gpu and h.seen != "rows" and not h.waits]

    def strike(self, pid: int, gpu: str, error: int, *, fault: bool = False, wrong: bool = False) -> None:
        """From now on every CUDA call of a process fails, or computes wrongly.

        With ``fault`` its GPU's MPS server takes nobody while it lives.
        """
        start = started(pid)
        if start is not None:
            row = {"gpu": gpu, "start": start, "error": error}
            row |= {name: 1 for name, true in (("fault", fault), ("wrong", wrong)) if true}
            with self._locked():
                _write(self.folder / "sticky" / str(pid), line_of(None, row) + "\n")

    def struck(self, pid: int) -> int:
        """The error that every CUDA call of a live process returns; 0: none."""
        row = _row(_text(self.folder / "sticky" / str(pid)))
        return int(row.get("error", 0)) if row and row["start"] == str(started(pid)) else 0

    def faulted(self, gpu: str) -> list[int]:
        """Live processes that a fault on a GPU struck: its MPS server takes nobody until they are gone."""
        rows = {file.name: _row(_text(file)) for file in (self.folder / "sticky").iterdir() if file.name.isdigit()}
        here = {int(pid): row for pid, row in rows.items() if row.get("fault") and row["gpu"] == gpu}
        return sorted(pid for pid, row in here.items() if str(started(pid)) == row["start"])

    def serve(self, gpu: str, pid: int) -> None:
        """Say that ``pid`` is the MPS server of a GPU."""
        _write(self.folder / "servers" / gpu, f"pid={pid}\tstart={started(pid)}\n")

    def open_to_all(self) -> None:
        """Let processes of other users live on this machine too."""
        for folder in (self.folder, *(self.folder / name for name in FOLDERS)):
            folder.chmod(0o777)
        for name in ("lock", "xid"):
            (self.folder / name).touch()
            (self.folder / name).chmod(0o666)

    def fail(self, *faults: Fault) -> None:
        """Let these things go wrong from now on, and nothing else; without arguments all is well again."""
        _write(self.folder / "faults", "".join(fault.line() + "\n" for fault in faults))

    def faults(self) -> tuple[Fault, ...]:
        text = _text(self.folder / "faults")
        return tuple(Fault.parse(line) for line in text.splitlines() if line)

    def fail_mps(self, *faults: MpsFault) -> None:
        """Let these MPS commands go wrong from now on, and no others."""
        _write(self.folder / "mps", json.dumps([[f.command, f.answer, f.hang_ms] for f in faults]))

    def mps_fault(self, command: str) -> MpsFault | None:
        """What is scripted for a command."""
        rows = json.loads(_text(self.folder / "mps") or "[]")
        found = (MpsFault(command=c, answer=answer, hang_ms=hang) for c, answer, hang in rows)
        return next((fault for fault in found if fault.command == command), None)

    def compute_mode(self, gpu: str) -> int:
        """NVML's number: 0 DEFAULT, 2 PROHIBITED, 3 EXCLUSIVE_PROCESS."""
        return int(_text(self.folder / "compute_mode" / gpu) or 0)

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        _write(self.folder / "compute_mode" / gpu, f"{mode}\n")

    def run_kernel(self, pid: int, gpu: str) -> None:
        """Say that a process used a GPU's engines just now."""
        row = {"gpu": gpu, "start": started(pid), "time_us": time.time_ns() // 1000}
        _write(self.folder / "kernels" / str(pid), line_of(None, row) + "\n")

    def ran_kernels(self, gpu: str, after: int) -> dict[int, int]:
        """When live processes last ran kernels on a GPU, by pid; those after a moment (microseconds since 1970)."""
        rows = {
            int(file.name): _row(_text(file)) for file in (self.folder / "kernels").iterdir() if file.name.isdigit()
        }
        alive = {pid: row for pid, row in rows.items() if row.get("start") == str(started(pid)) != "None"}
        here = {pid: row for pid, row in alive.items() if row["gpu"] == gpu}
        return {pid: int(row["time_us"]) for pid, row in sorted(here.items()) if int(row["time_us"]) > after}

    def raise_xid(self, gpu: str, number: int) -> None:
        """Let a critical error happen; event sets that wait for it are told."""
        with self._locked(), (self.folder / "xid").open("a") as file:
            file.write(f"gpu={gpu}\txid={number}\n")

    def mark(self, what: str, gpu: str, *, wrong: bool = True) -> None:
        """Let something last.

        ``ecc``: memory errors that only a reset repairs; ``no-mps``: no MPS daemon lives on it; ``no-terminate``: its
        clients cannot be terminated.
        """
        _write(self.folder / what / gpu, f"{int(wrong)}\n")

    def marked(self, what: str, gpu: str) -> bool:
        return _text(self.folder / what / gpu).strip() == "1"

    def environment(self, library: Path | None = None) -> dict[str, str]:
        """What a process needs in its environment, before exec, to live on this machine."""
        base = {ENV: str(self.folder)}
        return base if library is None else base | {"LD_LIBRARY_PATH": str(library)}

    def _read(self, pid: int) -> list[Holding]:
        start = started(pid)
        lines = _text(self.folder / "processes" / str(pid)).splitlines() if start is not None else []
        rows = [_row(line) for line in lines]
        return [_holding(row) for row in rows if row.get("start", str(start)) == str(start)]

    def _put(self, pid: int, holdings: list[Holding]) -> None:
        file = self.folder / "processes" / str(pid)
        if not holdings:
            file.unlink(missing_ok=True)
            return
        start = started(pid)
        stamp = {} if start is None else {"start": start}
        rows = [
            {"gpu": h.gpu, "memory_mib": _number(h.memory_mib), "kind": h.kind, **stamp, "seen": h.seen}
            | ({"of": h.of[0], "of_start": h.of[1]} if h.of is not None else {})
            for h in holdings
        ]
        _write(file, "".join(line_of(None, row) + "\n" for row in rows))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def started(pid: int) -> int | None:
    """Start time (field 22 of /proc/pid/stat) of a process with a live thread, else ``None``."""
    state, start = _stat(f"/proc/{pid}/stat")
    if state in DEAD:
        alive = (_stat(f"/proc/{pid}/task/{tid}/stat")[0] for tid in _tasks(pid))
        return start if any(found and found not in DEAD for found in alive) else None
    return start


def _stat(file: str) -> tuple[str, int | None]:
    try:
        fields = Path(file).read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", None
    return fields[0], int(fields[19])


def _tasks(pid: int) -> list[str]:
    try:
        return [task.name for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _holding(row: Mapping[str, str]) -> Holding:
    memory = None if row["memory_mib"] == "none" else int(row["memory_mib"])
    of = (int(row["of"]), int(row["of_start"])) if "of" in row else None
    return Holding(gpu=row["gpu"], memory_mib=memory, kind=row["kind"], seen=row.get("seen", "both"), of=of)


def _row(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.strip().split("\t") if part)


def _number(mib: int | None) -> str:
    return "none" if mib is None else str(mib)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    # Dots and letters: readers of processes/ take only names made of digits.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    temporary.write_text(text)
    temporary.rename(file)
