"""The demo's node: one simulated GPU, containers that are control groups, and the real enforcer watching them."""

import secrets
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from tests.demo import standin
from tests.demo.cgroups import Cgroups, joining
from tests.demo.children import Child, Children, wait_for
from tests.fakes.gpu.build import NoCompilerError, library_folder
from tests.fakes.gpu.state import MachineGpu, Sim

MACHINE: Final = "single-16g"
START_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One running container of an admitted pod: its names, its quota in MiB, and the process in it."""

    namespace: str
    pod: str
    pod_uid: str
    name: str
    container_id: str
    memory_mib: int
    child: Child


class Node:
    """One machine. ``library`` is the folder of the simulated NVML, ``None`` without a compiler."""

    def __init__(self, folder: Path, children: Children) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self.sim = Sim.create(folder / "sim", MACHINE)
        self.library = _library()
        self.cgroups = Cgroups.available()
        self._children = children

    @property
    def gpu(self) -> MachineGpu:
        """The node's one GPU."""
        return self.sim.machine.gpus[0]

    @property
    def environment(self) -> dict[str, str]:
        """What a process on this node needs in its environment."""
        listed = {} if self.cgroups else {standin.ENV: str(self.folder)}
        return self.sim.environment(self.library) | listed

    def run(self, pod: Mapping[str, Any], *mib: int) -> Container:
        """Start the first container of an admitted pod, as a program that holds so much, and later so much."""
        spec = pod["spec"]["containers"][0]
        memory = next(one["value"] for one in spec["env"] if one["name"] == contract.MEMORY_MIB)
        pod_uid, container_id = str(uuid.uuid4()), secrets.token_hex(32)
        procs = self.cgroups.container(pod_uid, container_id) if self.cgroups else None
        tenant = [sys.executable, "-m", "tests.demo.tenant", self.gpu.uuid, *map(str, mib)]
        metadata = pod["metadata"]
        child = self._children.start(metadata["name"], joining(procs, tenant), self.environment)
        standin.note(self.folder, child.pid, pod_uid, container_id)
        wait_for(f"{metadata['name']} holds its memory", START_SECONDS, lambda: self.used_mib(child.pid), child)
        return Container(
            namespace=metadata["namespace"],
            pod=metadata["name"],
            pod_uid=pod_uid,
            name=spec["name"],
            container_id=container_id,
            memory_mib=int(memory),
            child=child,
        )

    def used_mib(self, pid: int) -> int:
        """Return the MiB a live process holds."""
        return sum(one.memory_mib or 0 for one in self.sim.processes().get(pid, ()))

    def close(self) -> None:
        """Remove what the node made outside its folder; its processes have to be gone."""
        if self.cgroups:
            self.cgroups.remove()


def _library() -> Path | None:
    try:
        return library_folder()
    except NoCompilerError:
        return None
