"""Processes and mounts of a node, read from /proc without the product's code. Pids are the machine's."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

DAEMONS: Final = (b"nvidia-cuda-mps-control", b"tests.fakes.gpu.mps_daemon")
"""Programs that serve MPS, NVIDIA's and the simulated one."""
PIPES: Final = b"CUDA_MPS_PIPE_DIRECTORY="
SESSION: Final = 3
"""Index of the session in /proc/PID/stat, counted behind the command name (proc(5), field 6)."""
UID: Final = 36
"""Characters of a UID."""


def pids(cgroup: str) -> Iterator[int]:
    """Processes of the node with that control group."""
    mark = f"/{cgroup}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        if mark in read(int(entry.name), "cgroup"):
            yield int(entry.name)


def serving(cgroup: str) -> dict[str, list[int]]:
    """By MPS directory, the control daemons that serve it; not the servers that they start."""
    places: dict[str, list[int]] = {}
    for pid in pids(cgroup):
        if is_daemon(read(pid, "cmdline").split(b"\0")) and leads(pid):
            places.setdefault(pipe(pid), []).append(pid)
    return places


def is_daemon(words: Sequence[bytes]) -> bool:
    """Whether a command line is that of a control daemon, or of a server that it forked."""
    return b"-f" in words and any(word.endswith(DAEMONS) for word in words)


def pipe(pid: int) -> str:
    """Directory of the pipes of an MPS daemon."""
    found = next((each for each in read(pid, "environ").split(b"\0") if each.startswith(PIPES)), b"")
    return found.removeprefix(PIPES).decode()


def leads(pid: int) -> bool:
    """Whether a process leads a session: a daemon does, and a server stays in its daemon's, also when that is gone."""
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return bool(fields) and int(fields[SESSION]) == pid


def pod_of(pid: int) -> str:
    """UID of the pod of a process; empty where it has none."""
    for line in read(pid, "cgroup").decode(errors="replace").splitlines():
        for part in line.split("/"):
            if part.startswith("pod") and len(part) >= len("pod") + UID:
                return part.removeprefix("pod")[:UID]
    return ""


def mounted(holder: int) -> set[str]:
    """Pod UIDs in the mount table of the process that holds the node's namespaces."""
    paths = (line.split()[1] for line in read(holder, "mounts").decode(errors="replace").splitlines())
    return {where.split("/kubelet/pods/")[1].split("/")[0] for where in paths if "/kubelet/pods/" in where}


def read(pid: int, name: str) -> bytes:
    """Return a file of a process; nothing where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
