"""What the containers of this node are called, and where their termination messages are, as the node shows it.

The kubelet keeps a file for each container, for its termination message, and has it mounted into the container::

    <the kubelet's folder>/pods/<pod UID>/containers/<name>/<8 hex digits>

``/proc/<pid>/mountinfo`` shows that path, and the device it is on, whatever the mount is called inside. A volume has
another path on that device, or is on another device. The runtime makes the mount before the container's first process
runs, so that one has it; a process may lose it in a mount namespace of its own. A name is learned once for a container.
A process can at most take the name of another container of its pod, and the pod's sum bounds what that may hold.
"""

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from enforcer.attribution.cgroup import MAX_TEXT, ContainerRef, container_of
from enforcer.attribution.procfs import read_stat
from enforcer.quota.types import Quota
from gpushare.patterns import Pattern

MOST_BYTES: Final = 256 * 1024
"""Of a table of mounts; a container's own has a few KiB. A process with a longer one shows no name."""
FIRST: Final = 4
"""So many processes of a container are looked at, those that started first."""
_UID: Final = r"[0-9a-f-]{32,36}"
_NAME: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_FILE: Final = r"[0-9a-f]{8}(?://deleted)?"
_BELOW: Final = Pattern(rf"{_NAME}/{_FILE}", 256)
_OWN: Final = Pattern(rf"(?s)(?P<folder>.*)/pods/{_UID}/containers/{_NAME}/{_FILE}", 4096)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder: the device that its file system is on, and its path in there."""

    device: str
    path: str


def kubelet_folder(root: Path, mounts: str) -> Place | None:
    """Find the file system and the path of the kubelet's folder; ``None`` where neither way shows them.

    Args:
        root: the folder. In a container the enforcer sees some folders below it, but not that of the pods.
        mounts: the enforcer's own table of mounts. In a container it shows the file that the kubelet keeps for that.
    """
    if not (root / "pods").is_dir():
        own = [(mount, _OWN.fullmatch(mount.place.path)) for mount in _mounts(mounts)]
        return next((Place(mount.place.device, found["folder"]) for mount, found in own if found is not None), None)
    above = [each for each in _mounts(mounts) if root.is_relative_to(each.point)]
    if not above:
        return None
    mount = max(reversed(above), key=lambda each: len(each.point))  # of two at one point the later covers the other
    return Place(mount.place.device, str(Path(mount.place.path) / root.relative_to(mount.point)).rstrip("/"))


def file_in(mounts: str, folder: Place, pod_uid: str) -> str | None:
    """Read the end of the path of a container's file, ``<name>/<digits>``, from its table of mounts.

    ``None`` where it shows none, or those of more than one container.
    """
    front = f"{folder.path}/pods/{pod_uid}/containers/"
    places = [each.place for each in _mounts(mounts)]
    mine = [
        each.path.removeprefix(front) for each in places if each.device == folder.device and each.path.startswith(front)
    ]
    names = {None if _BELOW.fullmatch(each) is None else name_of(each) for each in mine}
    return mine[-1] if len(names) == 1 and None not in names else None


def name_of(file: str) -> str:
    """Return the container's name of what ``file_in`` returns."""
    return file.partition("/")[0]


class ContainerNames:
    """Knows the containers that run, by pod UID and name.

    Args:
        root: the kubelet's folder.
        changed: set when quotas have to be worked out again.
        proc: where procfs is mounted.
    """

    def __init__(self, root: Path, changed: threading.Event, proc: Path = Path("/proc")) -> None:
        self._root, self._changed, self._proc = root.absolute(), changed, proc
        self._folder: Place | None = None
        self._names: Mapping[ContainerRef, str | None] = {}
        self._files: Mapping[ContainerRef, str] = {}
        self._holding: AbstractSet[ContainerRef] = frozenset()
        self.problem: str | None = None
        """What operators have to know; ``None`` where nothing is wrong."""

    def notice(self, holding: AbstractSet[ContainerRef]) -> None:
        """Take in which containers hold GPU memory; what a new one is called has to be found out."""
        if not holding <= self._holding:
            self._changed.set()
        self._holding = holding

    def joined(self, quotas: Sequence[Quota], before: Sequence[Quota]) -> tuple[Quota, ...]:
        """Look at the processes of this node, and give each quota the id of the container that it is for.

        A container that asked for nothing in a pod with a share gets a quota of 0 MiB on the GPUs of that pod: another
        of its pod can give it the way to one.

        Args:
            quotas: of this node.
            before: earlier ones. They know containers that showed their name once and lost the mount since, and those
                that have ended: such an id stays until the container is made again.
        """
        own = _read(self._proc / "self/mountinfo", MOST_BYTES)
        self._folder = self._folder or kubelet_folder(self._root.resolve(), own)
        running = self._running()
        ids = Counter(each.container_id for each in running)
        twice = {each for each in running if ids[each.container_id] > 1}
        earlier = {ContainerRef(each.pod_uid, each.container_id or ""): each.container for each in before}
        seen = {each: self._files.get(each) or self._file(each, pids) for each, pids in running.items()}
        self._files = {each: file for each, file in seen.items() if file and each not in twice}
        shown = {each: name_of(file) for each, file in self._files.items()}
        self._names = {
            each: None if each in twice else shown.get(each) or self._names.get(each) or earlier.get(each)
            for each in running
        }
        self.problem = self._problem({each.pod_uid for each in quotas}, twice)
        ended = {(each.pod_uid, each.container): each.container_id for each in before if each.container_id not in ids}
        alive = {(each.pod_uid, name): each.container_id for each, name in self._names.items() if name}
        known = ended | alive
        found = [
            each if each.whole_pod else replace(each, container_id=known.get((each.pod_uid, each.container)))
            for each in quotas
        ]
        return (*found, *_without_quota(found, alive))

    def _problem(self, pods: AbstractSet[str], twice: AbstractSet[ContainerRef]) -> str | None:
        """Name a container that is unknown: one without a name only if it uses a GPU in a pod with a share."""
        if twice:
            return (
                f"container id {min(each.container_id for each in twice)} is in the cgroups of two pods; neither counts"
            )
        unnamed = [e for e, name in self._names.items() if name is None and e in self._holding and e.pod_uid in pods]
        if not unnamed:
            return None
        return (
            f"the enforcer does not see which container of its pod {unnamed[0].container_id[:12]} is (pod UID "
            f"{unnamed[0].pod_uid}); its GPU memory counts against what the pod reserved; restart the container"
        )

    def _running(self) -> Mapping[ContainerRef, Sequence[int]]:
        """List the containers that have a process, oldest first, each with its first processes."""
        found: dict[ContainerRef, list[tuple[int, int]]] = defaultdict(list)
        for pid in (int(each.name) for each in self._proc.iterdir() if each.name.isascii() and each.name.isdigit()):
            owner = self._owner(pid)
            stat = None if owner is None else read_stat(self._proc / str(pid) / "stat")
            if owner is not None and stat is not None:
                found[owner].append((stat.start, pid))
        ordered = sorted(found, key=lambda each: min(found[each]))
        return {each: [pid for _, pid in sorted(found[each])[:FIRST]] for each in ordered}

    def termination_message(self, container: ContainerRef) -> Path | None:
        """Return the path, for the enforcer, of a running container's termination message; ``None`` if not known."""
        file = self._files.get(container)
        if file is None:
            return None
        # In a container, what started it sees the node's files: the runtime.
        root = Path("/") if (self._root / "pods").is_dir() else self._proc / str(os.getppid()) / "root"
        return root / self._root.relative_to("/") / "pods" / container.pod_uid / "containers" / file

    def _file(self, owner: ContainerRef, pids: Sequence[int]) -> str | None:
        if self._folder is None:
            return None
        for pid in pids:
            file = file_in(_read(self._proc / str(pid) / "mountinfo", MOST_BYTES), self._folder, owner.pod_uid)
            if file is not None and self._owner(pid) == owner:  # else the pid is another's by now
                return file
        return None

    def _owner(self, pid: int) -> ContainerRef | None:
        return container_of(_read(self._proc / str(pid) / "cgroup", MAX_TEXT))


def _without_quota(quotas: Sequence[Quota], alive: Mapping[tuple[str, str], str]) -> Iterator[Quota]:
    granted = {(each.pod_uid, each.container, each.gpu) for each in quotas}
    for pod in (each for each in quotas if each.whole_pod):
        for (uid, name), container_id in sorted(alive.items()):
            if uid == pod.pod_uid and (uid, name, pod.gpu) not in granted:
                yield replace(pod, container=name, container_id=container_id, reserved_mib=0)


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    place: Place


def _mounts(table: str) -> Iterator[_Mount]:
    for line in table.split("\n"):
        fields = line.split(" ", 5)
        if len(fields) > 5:  # noqa: PLR2004 - proc(5): id, parent, device, path, mount point
            yield _Mount(fields[4], Place(fields[2], fields[3]))


def _read(path: Path, most: int) -> str:
    """Read a file of procfs; empty where it cannot be read or is longer."""
    try:
        with path.open("rb") as file:
            found = file.read(most + 1)
    except OSError:
        return ""
    return "" if len(found) > most else found.decode("utf-8", "surrogateescape")
