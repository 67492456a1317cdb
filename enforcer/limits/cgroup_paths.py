"""Where the cgroup of a container is: looked for where kubelets make them, and checked by its whole path."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from enforcer.attribution.cgroup import ContainerRef, container_in

ROOT: Final = Path("/sys/fs/cgroup")
QOS: Final = ("", "burstable", "besteffort")
FLAT: Final = ("kubepods", "kubelet/kubepods")
"""Of the cgroupfs driver."""
SLICES: Final = (("kubepods.slice", "kubepods"), ("kubelet.slice/kubelet-kubepods.slice", "kubelet-kubepods"))
"""Of the systemd driver: the folder, and what the names below it begin with."""


class CgroupFolders:
    """Finds them.

    Args:
        root: where the host's cgroup file systems are mounted.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def find(self, owner: ContainerRef) -> Path | None:
        """Find a container's own cgroup; ``None`` where it has none yet, or no more.

        In version 1 every hierarchy has one, and any of them names the container.
        """
        found = (each for mount in self._mounts() for each in _below(mount, owner))
        return next(found, None)

    def _mounts(self) -> Iterator[Path]:
        yield self.root
        if not (self.root / "cgroup.controllers").exists():
            yield from (Path(each.path) for each in _entries(self.root))


def pod_folders(pod_uid: str) -> Iterator[str]:
    """Name the places, relative to a hierarchy's root, in which a kubelet may have made a pod's cgroup."""
    underscored = pod_uid.replace("-", "_")
    for qos in QOS:
        yield from (f"{top}/{qos}/pod{pod_uid}" if qos else f"{top}/pod{pod_uid}" for top in FLAT)
        for folder, prefix in SLICES:
            name = f"{prefix}-{qos}" if qos else prefix
            yield (
                f"{folder}/{name}.slice/{name}-pod{underscored}.slice"
                if qos
                else f"{folder}/{name}-pod{underscored}.slice"
            )


def _below(mount: Path, owner: ContainerRef) -> Iterator[Path]:
    for pod in pod_folders(owner.pod_uid):
        for entry in _entries(mount / pod):
            if owner.container_id in entry.name and container_in(f"/{pod}/{entry.name}") == owner:
                yield Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return [each for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
