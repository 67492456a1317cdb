"""An API server with one node, and what publishes the node's GPUs there."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.controller import SliceController
from enforcer.resourceslices.devices import InventoryPolicy
from gpushare import contract
from gpushare.errors import ClusterError
from tests.support.wiring import NODE, fixed_modes, hidden_memory, limits, sampler


class Api:
    """An API server with one node, which remembers the slices written to it."""

    def __init__(self, annotations: Mapping[str, str] | None = None) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "gpu-7", "uid": "node-uid", "annotations": dict(annotations or {})}
        }
        self.node["metadata"]["labels"] = {contract.NODE_LABEL: "true"}
        self.slices: dict[str, Any] = {}
        self.down = False

    def get(self, where: str, **_: Any) -> Any:
        if self.down:
            raise ClusterError("the API server does not answer")
        assert where == "/api/v1/nodes/gpu-7"
        return self.node

    def devices(self) -> list[str]:
        return [device["name"] for each in self.slices.values() for device in each["spec"]["devices"]]

    def list(self, _: str, **__: str) -> Any:
        return list(self.slices.values()), "1"

    def delete(self, where: str, _: Any = None, **__: str) -> Any:
        del self.slices[where.rpartition("/")[2]]

    def create(self, _: str, body: Any) -> Any:
        self.slices[body["metadata"]["name"]] = body

    def replace(self, _: str, body: Any) -> Any:
        self.slices[body["metadata"]["name"]] = body


class Own:
    """gpu-share's own processes."""

    def __init__(self, servers: Callable[[], Iterable[int]] = tuple) -> None:
        self._servers = servers

    def pods(self) -> frozenset[str]:
        return frozenset()

    def mps_servers(self) -> frozenset[int]:
        return frozenset(self._servers())


def slices(
    api: Any,
    policy: InventoryPolicy,
    modes: SharingModeController | None = None,
    own: Own | None = None,
    node: str = NODE,
    hidden: HiddenMemory | None = None,
) -> SliceController:
    """What publishes the GPUs of a node where nobody else does and all are well."""
    modes = modes or fixed_modes(policy.mode)
    availability = GpuAvailability(None, None, modes, limits(), sampler(tuple), DriverUpgrade())
    return SliceController(
        api, node, policy, availability, own or Own(), modes, hidden or hidden_memory(sampler(tuple))
    )
