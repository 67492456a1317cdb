"""The tests' kubelet: control groups as the real one names them, processes in them, a file mounted into each container.

Everything is real but the container: the process, its cgroup, its mount namespace, its pid in the node's own namespace.
"""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane.bed import PODS, Bed
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.processes import Process, end, spawn

CGROUPS: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("memory", "pids", "")
"""Hierarchies of cgroup v1 that will do, then v2's root."""
RUNTIME: Final = "containerd"
JOIN: Final = 'mount --bind "$1" "$1" && echo $$ > "$0" && shift && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running process that plays the container ``name`` of a pod."""

    pod: Object
    name: str
    container_id: str
    process: Process


def hierarchy() -> Path | None:
    """Where this process may make control groups; None where it may not."""
    for controller in CONTROLLERS:
        root = CGROUPS / controller
        if (root / "cgroup.procs").exists() and os.access(root / "cgroup.procs", os.W_OK):
            with suppress(OSError):
                probe = root / f"gpu-share-probe-{os.getpid()}"
                probe.mkdir()
                probe.rmdir()
                return root
    return None


@dataclass(slots=True, kw_only=True)
class Kubelet:
    """Runs containers of pods bound to ``node``. ``root`` is the cgroup hierarchy.

    In ``logs`` are the output of containers and the folder ``kubelet``.
    """

    bed: Bed
    node: str
    root: Path
    logs: Path
    containers: list[Container] = field(default_factory=list)
    _made: list[Path] = field(default_factory=list)

    def run(self, pod: Object, name: str, command: Sequence[str], env: Mapping[str, str]) -> Container:
        """Start a container of a bound pod and report it in the pod's status, as a kubelet does."""
        assert pod["spec"]["nodeName"] == self.node
        container_id = secrets.token_hex(32)
        procs = self._group(pod, container_id) / "cgroup.procs"
        kept = self.logs / "kubelet" / "pods" / pod["metadata"]["uid"] / "containers" / name / secrets.token_hex(4)
        kept.parent.mkdir(parents=True)
        kept.touch()
        joining = ["unshare", "--mount", "/bin/sh", "-c", JOIN, str(procs), str(kept), *command]
        log = self.logs / f"{pod['metadata']['name']}-{name}.log"
        process = spawn(f"{pod['metadata']['name']}/{name}", joining, log, {**os.environ, **env}, echo=False)
        started = Container(pod=pod, name=name, container_id=container_id, process=process)
        self.containers.append(started)
        self._report(pod)
        return started

    def output(self, container: Container) -> str:
        """What a container has printed."""
        return Path(container.process.log).read_text()

    def close(self) -> None:
        """End all containers, remove their control groups, and let their pods go."""
        end([each.process for each in self.containers], patience=1)
        for each in self.containers:
            self.bed.delete_pod(each.pod["metadata"]["namespace"], each.pod["metadata"]["name"])
        for group in reversed(self._made):
            with suppress(OSError):
                group.rmdir()
        self.containers.clear()
        self._made.clear()

    def _group(self, pod: Object, container_id: str) -> Path:
        qos = pod["status"]["qosClass"].lower()
        levels = ["kubepods", *([] if qos == "guaranteed" else [qos]), f"pod{pod['metadata']['uid']}", container_id]
        group = self.root
        for level in levels:
            group /= level
            with suppress(FileExistsError):
                group.mkdir()
                self._made.append(group)
        return group

    def _report(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        mine = [each for each in self.containers if each.pod["metadata"]["uid"] == uid]
        where = path(CORE_V1, PODS, pod["metadata"]["name"], pod["metadata"]["namespace"]) + "/status"
        status = {"phase": "Running", "containerStatuses": [_status(each) for each in mine]}
        self.bed.cluster.patch(where, {"status": status})


def tenant(gpu: str, mib: int, *, grow_to: int | None = None, after: float = 1.0) -> list[str]:
    """A program that holds GPU memory, and more of it later."""
    growth = ["--grow-to", str(grow_to), "--after", str(after)] if grow_to else []
    return [sys.executable, "-m", "tests.fakes.gpu.tenant", "--gpu", gpu, "--mib", str(mib), *growth]


def _status(container: Container) -> Object:
    return {
        "name": container.name,
        "image": "example.invalid/app:1",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "started": True,
        "containerID": f"{RUNTIME}://{container.container_id}",
        "state": {"running": {}},
    }
