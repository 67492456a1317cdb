"""Tenants that are hard to end, compiled once, and a container's first process as runtimes start it."""

import functools
import hashlib
import subprocess
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import read_stat
from tests.fakes.gpu.build import compiler
from tests.integration.processes.containers import PROJECT, Container, wait_for
from tests.support.need import missing

SOURCE: Final = Path(__file__).with_name("tenant.c")


@functools.cache
def program() -> Path:
    """The compiled program."""
    cc = compiler()
    if cc is None:
        missing("no C compiler (cc, gcc or clang; or set CC): the tenants that are hard to end are written in C")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    made = PROJECT / ".build" / "safety" / f"tenant-{digest}"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        scratch = made.with_suffix(f".{id(made):x}")
        command = [str(cc), "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(scratch), str(SOURCE)]
        subprocess.run(command, check=True)
        scratch.rename(made)
    return made


def tenant(container: Container, mode: str, *, own: bool = False) -> subprocess.Popen[str]:
    """Start one and wait until it is there. With ``own``, what is returned waits for it from outside its namespace."""
    return started(container, mode, own=own)[0]


def started(
    container: Container, mode: str, state: str = "", *, own: bool = False
) -> tuple[subprocess.Popen[str], int]:
    """As ``tenant``, with the pid of the one that is to hold memory, once it is in that state (a letter of proc(5))."""
    words = [str(program()), mode, str(container.cgroup / "cgroup.procs"), *(["own"] if own else [])]
    process = subprocess.Popen(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    container.processes.append(process)
    assert process.stdout
    if not (said := process.stdout.readline().strip()).isdigit():
        missing(f"no such tenant can be had here: {said}")
    wait_for(lambda: bool(container.pids()), 10)
    wait_for(lambda: not state or state_of(int(said)) == state, 30)
    return process, int(said)


def state_of(pid: int) -> str:
    """The letter of its first thread's state; nothing where it has gone."""
    stat = read_stat(Path(f"/proc/{pid}/stat"))
    return stat.state if stat else ""


def forget(container: Container, process: subprocess.Popen[str]) -> None:
    """Take one that has ended off a container's list."""
    process.wait(30)
    container.processes.remove(process)
    if process.stdout is not None:
        process.stdout.close()
