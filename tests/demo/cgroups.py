"""Control groups named as the kubelet names a container's, so that the enforcer attributes processes as on a node."""

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mounts")
ROOT: Final = "kubepods"
QOS: Final = "burstable"


@dataclass(slots=True)
class Cgroups:
    """Makes groups below one hierarchy and removes exactly what it made."""

    hierarchy: Path
    made: list[Path] = field(default_factory=list)

    @classmethod
    def available(cls) -> "Cgroups | None":
        """Find a hierarchy where groups can be made; ``None`` without the right, or where a kubelet owns the name."""
        for mount in hierarchies():
            if (mount / ROOT).exists() or not os.access(mount, os.W_OK):
                continue
            groups = cls(mount)
            try:
                groups._make(mount / ROOT)
                groups._make(mount / ROOT / QOS)
            except OSError:
                groups.remove()
                continue
            if groups._joinable(mount / ROOT / QOS):
                return groups
            groups.remove()
        return None

    @staticmethod
    def _joinable(folder: Path) -> bool:
        """Return whether a process can be in such a group: cpuset (v1) wants processors assigned first."""
        command = joining(folder / "cgroup.procs", ["true"])
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def container(self, pod_uid: str, container_id: str) -> Path:
        """Make a container's group and return the file that takes its processes."""
        pod = self.hierarchy / ROOT / QOS / f"pod{pod_uid}"
        self._make(pod)
        self._make(pod / container_id)
        return pod / container_id / "cgroup.procs"

    def remove(self) -> None:
        """Remove the groups; their processes have to be gone."""
        for folder in reversed(self.made):
            with suppress(OSError):
                folder.rmdir()
        self.made.clear()

    def _make(self, folder: Path) -> None:
        folder.mkdir()
        self.made.append(folder)


def hierarchies() -> list[Path]:
    """Return the mounted hierarchies, the unified one (v2) first."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return []
    found = {kind: [Path(point) for _, point, type_, *_ in mounts if type_ == kind] for kind in ("cgroup2", "cgroup")}
    return found["cgroup2"] + found["cgroup"]


def joining(procs: Path | None, command: list[str]) -> list[str]:
    """Return a command that first moves itself into a group, so that no process of it was ever outside."""
    if procs is None:
        return command
    return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *command]
