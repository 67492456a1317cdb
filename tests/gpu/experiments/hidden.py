"""hidden (H16): memory that only file descriptors hold, and how such a descriptor looks in /proc.

A process makes memory by cuMemCreate, exports it, sends the descriptors to this process, which has no CUDA, and
releases it. What NVML lists then, what the device uses, and which open files a process has is recorded; the product's
rule for finding the holder has to be written from that.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

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
MANY: Final = 4096
"""Open files of a process that are looked at."""


@experiment(
    "hidden",
    title="Memory that only file descriptors hold (H16)",
    hypothesis="Memory that was exported as descriptors and released is not bound by the pinned limit, stands in no "
    "row of NVML, stays after its maker was killed and is free when the descriptors are closed; each descriptor is an "
    "open file of the device nvidiactl",
    needs=("mps",),
    limit_s=60,
    order=35,
)
def hidden(backend: Backend) -> Result:
    """12 GiB under a limit of 8."""
    with Scene(backend) as scene:
        env = scene.environment(scene.daemon(), limit_mib=LIMIT_MIB)
        figures: dict[str, Any] = {"open_files": {"this process before": device_files(os.getpid())}}
        before = used_mib(backend)
        mine, theirs = socket.socketpair()
        maker = _maker(env, theirs)
        descriptors: list[int] = []
        try:
            _await(maker)
            for _ in range(COUNT):
                descriptors += socket.recv_fds(mine, 1, 1)[1]
            figures["held"] = _seen(backend, before, maker.pid)
            figures["open_files"] |= {"the maker": device_files(maker.pid), "this process": device_files(os.getpid())}
            maker.kill()
            maker.wait()
            time.sleep(SETTLE_S)
            figures["maker_killed"] = _seen(backend, before, maker.pid)
            figures["open_files"]["a copy by pidfd_getfd"] = _copied(descriptors[0])
        finally:
            maker.kill()
            maker.wait()
            for each in descriptors:
                os.close(each)
        time.sleep(SETTLE_S)
        figures["closed"] = _seen(backend, before, maker.pid)
    return judge_figures(figures)


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
    files = figures["open_files"]
    more = len(files["this process"]) - len(files["this process before"])
    if more != COUNT or not all("nvidiactl" in each["link"] for each in files["this process"][-COUNT:]):
        wrong.append(f"the holder has {more} more device files: {files['this process'][-COUNT:]}")
    said = f"{figures['held']['device_mib']} MiB under a limit of {LIMIT_MIB}, listed {figures['held']['listed_mib']}"
    return judged(wrong, f"{said}; after the kill {figures['maker_killed']['device_mib']}", **figures)


def device_files(pid: int) -> list[dict[str, Any]]:
    """Open device files and files of NVIDIA of a process: link, device number, and what fdinfo says."""
    found = []
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda each: int(each.name))[:MANY]:
        with suppress(OSError):
            link, status = str(entry.readlink()), entry.stat()
            if "nvidia" in link or (stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) not in {1, 5, 136}):
                device = [os.major(status.st_rdev), os.minor(status.st_rdev)]
                more = (Path(f"/proc/{pid}/fdinfo") / entry.name).read_text().splitlines()[:16]
                found.append({"link": link, "device": device, "mode": oct(status.st_mode), "fdinfo": more})
    return found


def _copied(descriptor: int) -> list[dict[str, Any]]:
    """How a descriptor looks in a process that got a copy, as ``pidfd_getfd`` makes one; closed at once."""
    copy = os.dup(descriptor)
    try:
        link = str(Path(f"/proc/self/fd/{copy}").readlink())
        return [each for each in device_files(os.getpid()) if each["link"] == link][-1:]
    finally:
        os.close(copy)


def _seen(backend: Backend, before: int, maker: int) -> dict[str, Any]:
    lists = [rows for rows in lists_of(backend).values() if isinstance(rows, list)]
    rows = {row["pid"]: row["usedGpuMemory"] or 0 for found in lists for row in found}
    device, listed = used_mib(backend) - before, sum(rows.values()) >> 20
    return {"device_mib": device, "listed_mib": listed, "rows": len(rows), "maker_listed": maker in rows}


def _maker(env: Mapping[str, str], connection: socket.socket) -> subprocess.Popen[str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVIDIA_"))}
    with connection:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(connection.fileno()), str(COUNT), str(PIECE_MIB)],
            env={**own, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=[connection.fileno()],
        )  # fmt: skip


def _await(maker: subprocess.Popen[str]) -> None:
    """Wait for its line. Raises ``NotMeasurable`` where it made no memory."""
    output: IO[str] | None = maker.stdout
    line = output.readline() if output is not None else ""
    answer = json.loads(line) if line.startswith("{") else {"error": "it ended"}
    if "error" in answer:
        raise NotMeasurable(f"no memory was exported: {answer['error']}")
