"""The processes of one container, and the first of them, whose end is the end of all.

A container with a pid namespace of its own has a first process; when that ends, the kernel kills all others in one go,
and no fork is fast enough. A container without one (hostPID, shareProcessNamespace) has none that may be ended for
that: the first process of its namespace is the host's, or the pod's sandbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import CgroupAttributor, PidHandle, leads_namespace, namespace_pids, read_stat


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    """One process of a container; ``namespace_pids`` are its pids in each of its namespaces, from ours to its own."""

    identity: Identity
    namespace_pids: tuple[int, ...]


class ProcessTable(Protocol):
    """The processes of this node, as they are now."""

    def identify(self, pid: int) -> Identity | None:
        """Return who has a pid; ``None`` when that process has ended."""

    def pin(self, pid: int) -> PidHandle | None:
        """Open a pidfd of whatever has a pid; ``None`` when nothing has. Raises ``OSError``: too many open files."""

    def leads_namespace(self, pid: int) -> bool:
        """Return whether a process is the first of its pid namespace, so that the kernel kills the others with it."""

    def processes_of(self, container: ContainerRef) -> Sequence[ContainerProcess]:
        """List the processes of a container."""


@dataclass(frozen=True, slots=True)
class HostProcesses:
    """The processes that /proc shows.

    Args:
        attributor: attributes each to its container.
        handles: opens the pidfds.
    """

    attributor: CgroupAttributor
    handles: type[PidHandle] = PidHandle

    def identify(self, pid: int) -> Identity | None:
        """Return who has a pid; ``None`` when that process has ended."""
        return self.attributor.identify(pid)

    def pin(self, pid: int) -> PidHandle | None:
        """Open a pidfd of whatever has a pid; ``None`` when nothing has. Raises ``OSError``: too many open files."""
        return self.handles.open(pid)

    def leads_namespace(self, pid: int) -> bool:
        """Return whether a process is the first of its pid namespace, so that the kernel kills the others with it."""
        return leads_namespace(pid)

    def processes_of(self, container: ContainerRef) -> Sequence[ContainerProcess]:
        """List the processes of a container."""
        return list_processes(self.attributor, container)


def list_processes(
    attributor: CgroupAttributor, owner: ContainerRef, proc: Path = Path("/proc")
) -> list[ContainerProcess]:
    """Find all processes of a container that there are now. A corpse is none."""
    found = []
    for folder in (each for each in proc.iterdir() if each.name.isascii() and each.name.isdigit()):
        pid = int(folder.name)
        identity = attributor.identify(pid) if _may_be_in(folder, owner) else None
        if identity is not None and identity.owner == owner and (own := namespace_pids(pid, proc)):
            found.append(ContainerProcess(identity, own))
    return found


def init_process(family: Sequence[ContainerProcess], cgroup_inode: int | None) -> ContainerProcess | None:
    """Choose the first process of a container.

    Its namespace is the outermost of the container: none of the others is outside it. So neither a namespace that a
    tenant made inside counts, nor that of a container which has none of its own.

    Args:
        family: all processes of the container.
        cgroup_inode: of the container's cgroup; a container made again has another.
    """
    outermost = min((len(each.namespace_pids) for each in family), default=0)
    found = [each for each in family if len(each.namespace_pids) == outermost > 1 and each.namespace_pids[-1] == 1]
    return found[0] if len(found) == 1 and found[0].identity.cgroup_inode == cgroup_inode else None


def _may_be_in(folder: Path, owner: ContainerRef) -> bool:
    """Whether it is worth to read who this is: a machine has hundreds of processes, a container a few.

    One whose leader ends or has ended may have threads that live on; in cgroup v1 its file names no container any more.
    """
    try:
        text = (folder / "cgroup").read_bytes()
    except OSError:
        return False
    if owner.container_id.encode() in text:
        return True
    stat = read_stat(folder / "stat") if b":/\n" in text else None
    return stat is not None and stat.exiting
