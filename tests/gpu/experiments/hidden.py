"""hidden (H16): memory that only file descriptors hold, and how such a descriptor looks in /proc.

A process makes memory by cuMemCreate, exports it, sends the descriptors to this process, which has no CUDA, and
releases it. What NVML lists then, what the device uses, and which open files a process has is recorded; the product's
rule for finding the holder is written from that. To tell a holder from others, the open files of an ordinary client,
of a program that only reads NVML, and of a process that took a copy with ``pidfd_getfd`` are recorded, too. At last a
process maps one of the pieces again, under a limit.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.gpu.experiments.h1 import lists_of, used_mib
from tests.gpu.experiments.scene import Scene
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged
from tests.gpu.kit.setup import ROOT

COUNT, PIECE_MIB, LIMIT_MIB = 3, 4096, 8192
SLACK_MIB: Final = 1024
"""Contexts come and go meanwhile."""
SETTLE_S: Final = 1.0
PROGRAM: Final = ROOT / "tests" / "gpu" / "exporter.py"
LAUNCH: Final = ROOT / "tests" / "gpu" / "kit" / "launch.py"
MANY: Final = 4096
"""Open files of a process that are looked at."""
CONTROL: Final = "nvidiactl"
FIELDS: Final = 16
"""Lines of fdinfo that are kept."""
HERE: Final = (
    "from tests.gpu.kit import standins; standins.ensure(); "
    "from tests.gpu.experiments.hidden import copied, read_nvml; "
)


@dataclass(slots=True)
class Holding:
    """Descriptors that this process holds, and what was seen."""

    backend: Backend
    before: int
    descriptors: list[int] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def see(self, moment: str, pid: int) -> None:
        """Write down what the device and NVML say; ``pid``: the process that is looked for."""
        lists = [rows for rows in lists_of(self.backend).values() if isinstance(rows, list)]
        rows = {row["pid"]: (row["usedGpuMemory"] or 0) >> 20 for found in lists for row in found}
        device = used_mib(self.backend) - self.before
        self.figures[moment] = {
            "device_mib": device, "listed_mib": sum(rows.values()), "rows": len(rows), "it_has_mib": rows.get(pid)
        }  # fmt: skip

    def files(self, whose: str, found: list[dict[str, Any]]) -> None:
        """Write down which device files a process has open."""
        self.figures.setdefault("open_files", {})[whose] = found


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Say which of the beliefs does not hold."""
    wrong, all_mib = [], COUNT * PIECE_MIB
    for moment in ("held", "maker_killed"):
        if figures[moment]["device_mib"] < all_mib - SLACK_MIB:
            wrong.append(f"{moment}: the device uses {figures[moment]['device_mib']} MiB of {all_mib} MiB")
        if figures[moment]["listed_mib"] > SLACK_MIB:
            wrong.append(f"{moment}: NVML lists {figures[moment]['listed_mib']} MiB")
    if figures["closed"]["device_mib"] > SLACK_MIB:
        wrong.append(f"{figures['closed']['device_mib']} MiB stay used when the descriptors are closed")
    counts = {whose: _controls(files) for whose, files in figures["open_files"].items()}
    if counts["this process"] - counts["this process before"] != COUNT or counts["a copy by pidfd_getfd"] != 1:
        wrong.append(f"open files of {CONTROL}: {counts}")
    said = f"{figures['held']['device_mib']} MiB under a limit of {LIMIT_MIB}, listed {figures['held']['listed_mib']}"
    after = f"after the kill {figures['maker_killed']['device_mib']}; open files of {CONTROL}: {counts}"
    return judged(wrong, f"{said}; {after}", **figures)


@experiment(
    "hidden",
    title="Memory that only file descriptors hold (H16)",
    hypothesis="Memory that was exported as descriptors and released is not bound by the pinned limit, stands in no "
    "row of NVML, stays after its maker was killed and is free when the descriptors are closed; each descriptor is an "
    "open file of the device nvidiactl, a copy by pidfd_getfd as well",
    needs=("mps",),
    limit_s=90,
    order=35,
    judge=judge_figures,
)
def hidden(backend: Backend) -> Result:
    """12 GiB under a limit of 8."""
    with Scene(backend) as scene:
        env = scene.environment(scene.daemon(), limit_mib=LIMIT_MIB)
        seen = Holding(backend, used_mib(backend))
        _others(scene, seen, env)
        seen.files("this process before", device_files(os.getpid()))
        try:
            _make(seen, env)
            seen.files("a copy by pidfd_getfd", _elsewhere(f"copied({os.getpid()}, {seen.descriptors[0]})"))
            _map(seen, env)
        finally:
            for each in seen.descriptors:
                os.close(each)
        time.sleep(SETTLE_S)
        seen.see("closed", 0)
    return judge_figures(seen.figures)


def _others(scene: Scene, seen: Holding, env: Mapping[str, str]) -> None:
    """An ordinary client, a plain CUDA process, and a program that reads NVML: what they have open."""
    for name, given in (("an MPS client", env), ("a plain CUDA process", scene.environment(None))):
        tenant = scene.tenant(given)
        seen.files(name, device_files(tenant.pid))
        tenant.client.close()
    seen.files("a reader of NVML", _elsewhere("read_nvml()"))


def _make(seen: Holding, env: Mapping[str, str]) -> None:
    """Have it made and sent; then its maker is killed."""
    mine, theirs = socket.socketpair()
    with _program(env, [str(theirs.fileno()), str(COUNT), str(PIECE_MIB)], theirs.fileno()) as maker:
        theirs.close()
        for _ in range(COUNT):
            seen.descriptors += socket.recv_fds(mine, 1, 1)[1]
        seen.see("held", maker.pid)
        seen.files("the maker", device_files(maker.pid))
        seen.files("this process", device_files(os.getpid()))
    mine.close()
    time.sleep(SETTLE_S)
    seen.see("maker_killed", maker.pid)


def _map(seen: Holding, env: Mapping[str, str]) -> None:
    """Another process uses a piece, under a limit that is larger, and under one that is smaller."""
    for name, limit in (("mapped", LIMIT_MIB), ("mapped_over_limit", PIECE_MIB // 2)):
        given = {**env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}M"}
        arguments = ["import", str(seen.descriptors[0]), str(PIECE_MIB)]
        try:
            with _program(given, arguments, seen.descriptors[0]) as importer:
                seen.see(name, importer.pid)
                seen.files("the importer", device_files(importer.pid))
        except NotMeasurable as error:
            seen.figures[name] = str(error)


def _controls(files: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["count"] for each in files if CONTROL in each["link"])


def device_files(pid: int) -> list[dict[str, Any]]:
    """Open device files and files of NVIDIA of a process: those that look the same are one row with their number."""
    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda each: int(each.name))[:MANY]:
        with suppress(OSError):
            link, status = str(entry.readlink()), entry.stat()
            if "nvidia" in link or (stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) not in {1, 5, 136}):
                info = (Path(f"/proc/{pid}/fdinfo") / entry.name).read_text().splitlines()[:FIELDS]
                device = [os.major(status.st_rdev), os.minor(status.st_rdev)]
                row = {"link": link, "device": device, "mode": oct(status.st_mode), "fdinfo": info}
                found.setdefault(json.dumps(row), {**row, "count": 0})["count"] += 1
    return list(found.values())


def copied(pid: int, descriptor: int) -> None:
    """Take a copy of another process's descriptor, and print what this one has open. Raises ``OSError``."""
    import ctypes  # noqa: PLC0415 - for the one call that Python does not have

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(438, os.pidfd_open(pid), descriptor, 0) < 0:  # pidfd_getfd
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    print(json.dumps(device_files(os.getpid())))


def read_nvml() -> None:
    """Read the GPUs as our enforcer does, and print what this process has open."""
    from enforcer.nvml.reader import NvmlReader  # noqa: PLC0415 - the copy above is made without NVML

    reader = NvmlReader()
    for each in reader.gpus():
        reader.sample(each.uuid)
    print(json.dumps(device_files(os.getpid())))


def _elsewhere(call: str) -> list[dict[str, Any]]:
    """Call one of the two above in a process of its own."""
    env = {**_bare({}), "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run(
        [sys.executable, "-c", HERE + call], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotMeasurable(f"{call}: {done.stderr.strip()[-300:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _bare(env: Mapping[str, str]) -> dict[str, str]:
    return {**{key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVIDIA_"))}, **env}


def hide(env: Mapping[str, str], count: int, mib: int, cgroup: str) -> tuple[list[int], str | None]:
    """Have a process of a cgroup hide so many pieces of so many MiB, and end.

    Returns: their descriptors, to be closed, and why there are no more; ``None``: these are all.
    """
    mine, theirs = socket.socketpair()
    why, kept = None, list[int]()
    with mine:
        with theirs:
            try:
                with _program(env, [str(theirs.fileno()), str(count), str(mib)], theirs.fileno(), cgroup):
                    pass
            except NotMeasurable as error:
                why = str(error)
        while found := socket.recv_fds(mine, 1, 1)[1]:
            kept += found
    return kept, why


@contextmanager
def _program(
    env: Mapping[str, str], arguments: Sequence[str], passed: int, cgroup: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start ``exporter.py`` and wait for its line; killed at the end. Raises ``NotMeasurable``: it did not work."""
    inside = [] if cgroup is None else [str(LAUNCH), "--cgroup", cgroup, "--", sys.executable]
    with subprocess.Popen(
        [sys.executable, *inside, str(PROGRAM), *arguments], env=_bare(env), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, pass_fds=[passed],
    ) as program:  # fmt: skip
        try:
            line = program.stdout.readline() if program.stdout is not None else ""
            answer = json.loads(line) if line.startswith("{") else {"error": "it ended"}
            if "error" in answer:
                raise NotMeasurable(f"exporter.py {' '.join(arguments)}: {answer['error']}")
            yield program
        finally:
            program.kill()
