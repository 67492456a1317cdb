"""A node for the driver's tests: its files are real, its GPUs and its API server are not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.claim_wait import ClaimWait
from enforcer.dra.cdi import file_name
from enforcer.dra.cdi_files import CdiFileStore
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.client_memory import ClientMemory
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.driver import ClaimRef, Driver
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.resourceslices.devices import InventoryPolicy
from enforcer.runtime.manager import Wake
from enforcer.status.api_writer import ApiWriter
from enforcer.status.metrics import Metrics
from gpushare import contract
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.shared_memory import SharedMemory
from tests.support.api import Api
from tests.support.wiring import Messages, availability, fixed_modes, limits
from tests.unit.enforcer.dra.objects import NAMESPACE, NODE, Object, claim, namespace, pod
from tests.unit.enforcer.made import DEVICE
from tests.unit.enforcer.test_loop import CARD, Reader

if TYPE_CHECKING:
    from enforcer.mps.supervisor import MpsSupervisor
    from enforcer.status.messages import UserMessage
    from gpushare.reasons import Reason

CAPACITY = CARD - 512 - 1024


class Pods(CgroupAttributor):
    """Says which pod a pid belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: dict[int, str] = {}

    def identify(self, pid: int) -> Identity | None:
        owner = ContainerRef(self.pids[pid], "c" * 64) if pid in self.pids else None
        return Identity(pid=pid, start=pid, owner=owner)

    def is_alive(self, _: int) -> bool:
        return False


class Published:
    """Takes the claims whose status is to be written."""

    def __init__(self, claims: list[Any]) -> None:
        self.publish = claims.append


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.api, self.reader, self.pods = folder, Api(), Reader(), Pods()
        self.cdi, self.run, self.state = folder / "cdi", folder / "run", folder / "state"
        self.shared_memory = SharedMemory.PRIVATE
        self.default_compute: int | str = "none"
        self.mps: MpsSupervisor | None = None
        self.quotas_changed = Wake()
        self.modes = fixed_modes()
        self.upgrade = DriverUpgrade()
        self.told: list[UserMessage] = []
        self.backends: dict[str, str] = {}
        self.health: dict[str, Reason | None] = {}
        self.published: list[Any] = []
        self.api.objects[path(CORE_V1, "namespaces", NAMESPACE)] = namespace()
        self.restart()

    def restart(self) -> None:
        """A new process on the same disk."""
        self.store = ClaimStore(self.state)
        self.setup = self.config()
        memory = ClientMemory(self.run / "shm", self.shared_memory, self.setup.watch)
        self.files = CdiFileStore(self.cdi, self.run, mps=True, memory=memory)
        self.driver = Driver(self.setup, self.files)
        self.driver._publisher = Published(self.published)  # type: ignore[assignment] # a stand-in
        self.driver.recover()

    def config(self) -> DraPluginConfig:
        """What a driver on this node is made of."""
        return DraPluginConfig(
            node=NODE, state=self.state, run=self.run, kubelet_root=self.folder / "kubelet", cdi_root=self.cdi,
            policy=InventoryPolicy(), cluster=self.api,  # type: ignore[arg-type] # a stand-in
            writer=ApiWriter(), store=self.store, watch=UsageSampler(self.reader, self.pods), attributor=self.pods,
            metrics=Metrics(), modes=self.modes, modes_changed=Wake(), mps=self.mps,
            limiter=limits(lambda: self.backends), checkpoint=Checkpoint(self.state), events=Messages(self.told),
            availability=availability(lambda: self.health),
            claim_wait=ClaimWait(), listeners=(), registered=Wake(), quotas_changed=self.quotas_changed,
            upgrade=self.upgrade, default_compute=self.default_compute,
        )  # fmt: skip

    def tenant(self, name: str, memory: str = "4Gi", device: str = DEVICE) -> ClaimRef:
        """A pod that was admitted, placed and bound."""
        made = pod(name, {contract.MEMORY: memory})
        return self.add(made, claim(made, device))

    def add(self, pod: Object, *claims: Object) -> ClaimRef:
        self.api.objects[path(CORE_V1, "pods", pod["metadata"]["name"], NAMESPACE)] = pod
        for each in claims:
            self.api.objects[self.where(each["metadata"]["name"])] = each
        metadata = claims[0]["metadata"]
        return ClaimRef(NAMESPACE, metadata["name"], metadata["uid"])

    def forget(self, ref: ClaimRef, name: str) -> None:
        """The objects are gone from the API server."""
        del self.api.objects[self.where(ref.name)]
        del self.api.objects[path(CORE_V1, "pods", name, NAMESPACE)]

    def where(self, claim: str) -> str:
        return path(RESOURCE_V1, "resourceclaims", claim, NAMESPACE)

    def document(self, ref: ClaimRef) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.cdi / file_name(ref.uid)).read_text())
        return found

    def tree(self) -> dict[str, str]:
        """Everything that is on disk below the node's directories."""
        return {
            str(file.relative_to(self.folder)): file.read_text().replace(str(self.folder), "") if file.is_file() else ""
            for root in (self.cdi, self.run / "status", self.state / "claims")
            for file in root.rglob("*")
        }


Step = Callable[[], object]
