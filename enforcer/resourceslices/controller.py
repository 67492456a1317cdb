"""Keeping this node's GPUs on offer: slow work, in a thread beside the loop."""

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.hidden_memory import HiddenMemory, OwnProcesses
from enforcer.detection.lending import SLACK_MIB
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Quota
from enforcer.resourceslices import devices, foreign_memory
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.publisher import SlicePublisher
from gpushare.errors import ClusterError, ConfigError, NvmlError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()

APART: Final = 2.0
"""Seconds between an offer and the next one that :meth:`SliceController.needs_publish` asks for."""


def reserved_mib(quotas: Sequence[Quota]) -> dict[str, int]:
    """By GPU, memory that is promised to containers."""
    reserved: dict[str, int] = defaultdict(int)
    for quota in quotas:
        reserved[quota.gpu] += quota.memory_mib
    return dict(reserved)


class SliceController:
    """Publishes what this node has to offer, again and again.

    Args:
        cluster: where to.
        node: this node's name.
        policy: the operator's.
        availability: returns for each update which of these GPUs are contended or unhealthy.
        own: whose memory is accounted for.
        modes: how these GPUs are shared.
        hidden: knows the memory that nobody is counted for.
    """

    def __init__(
        self,
        cluster: KubeClient,
        node: str,
        policy: devices.InventoryPolicy,
        availability: GpuAvailability,
        own: OwnProcesses,
        modes: SharingModeController,
        hidden: HiddenMemory,
    ) -> None:
        self._cluster, self._node, self._policy = cluster, node, policy
        self._availability, self._own, self._modes, self._hidden = availability, own, modes, hidden
        self._servers: frozenset[int] = frozenset()
        self._ours: frozenset[str] = frozenset()
        self._taken: Mapping[str, int] = {}
        self._made = float("-inf")
        self._order: tuple[str, ...] | None = None
        self._foreign: dict[str, foreign_memory.SmoothedUsage] = {}
        self._publisher = SlicePublisher(cluster, node)
        self._logged: tuple[devices.ExcludedGpu, ...] = ()
        self.problem: str | None = None
        """Why the offer on the API server may be out of date; ``None`` where it is not."""
        self.offered = False
        """Whether the API server has had our offer since we started."""

    def reconcile(
        self,
        views: Sequence[GpuSnapshot],
        quotas: Sequence[Quota],
        leaving: Collection[str] = (),
        withdrawn: Mapping[str, int] = foreign_memory.NOTHING,
    ) -> None:
        """Make the offer fit what was just seen. What fails is tried again next time."""
        self._made = time.monotonic()
        try:
            if self._order is None:
                self._order = self._publisher.device_order()
            node = self._modes.read_node(partial(self._cluster.get, path(CORE_V1, "nodes", self._node)))
            # Without any the annotation's names mean nothing, and what was offered before has to go.
            gpus = devices.shareable_gpus([view.gpu for view in views], node) if views else ()
            found = devices.build_devices(
                gpus, self._policy, foreign_mib=self._take(views, quotas, leaving, withdrawn),
                reserved_mib=reserved_mib(quotas), standing=self._availability.check(gpus), ways=self._modes.current(),
                before=self._order,
            )  # fmt: skip
            owner = node["metadata"]["uid"]
            offered = found.devices if gpus else ()
            self._publisher.publish(devices.resource_slices(self._node, offered, owner, found.left_out))
            self._order = tuple(device["name"] for device in offered)
        except (ClusterError, ConfigError) as error:
            self._complain(f"the enforcer cannot publish the current GPUs in ResourceSlices: {error.message}")
            return
        self.problem, self.offered = None, True
        self._say(found.left_out)

    def needs_publish(
        self,
        views: Sequence[GpuSnapshot],
        quotas: Sequence[Quota],
        leaving: Collection[str] = (),
        withdrawn: Mapping[str, int] = foreign_memory.NOTHING,
    ) -> bool:
        """Say whether the slices have to be published again soon. Quick.

        It has where others hold more than the last one takes off, and where shares are to be spread and it names
        another GPU first than the emptiest.
        """
        if self.problem is not None or time.monotonic() - self._made < APART:
            return False  # what could not be offered is tried again in its turn
        seen = self._others(views, quotas, leaving)
        left = foreign_memory.terminating_mib(views, leaving, withdrawn)
        more = any(
            foreign_memory.rounded(mib) + left.get(gpu, 0) > self._taken.get(gpu, 0) for gpu, mib in seen.items()
        )
        return more or (self._policy.order is devices.Order.SPREAD and not self._spreads(views, quotas))

    def _spreads(self, views: Sequence[GpuSnapshot], quotas: Sequence[Quota]) -> bool:
        offered = devices.in_listed_order((view.gpu for view in views), self._order or ())
        return devices.order_is_acceptable(offered, self._policy, reserved_mib(quotas))

    def _take(
        self,
        views: Sequence[GpuSnapshot],
        quotas: Sequence[Quota],
        leaving: Collection[str],
        withdrawn: Mapping[str, int],
    ) -> Mapping[str, int]:
        """Work out, by GPU, what shares cannot have: what is foreign, and what pods on their way out still hold."""
        # A daemon that does not answer still has its server: one known before counts while it holds memory.
        holding = frozenset(holder.identity.pid for view in views for holder in view.holders)
        self._servers = holding & self._servers.union(self._own.mps_servers())
        self._ours = self._own.pods()
        self._foreign = foreign_memory.smooth(self._foreign, self._others(views, quotas, leaving))
        left = foreign_memory.terminating_mib(views, leaving, withdrawn)
        self._taken = {gpu: steady.mib + left.get(gpu, 0) for gpu, steady in self._foreign.items()}
        return self._taken

    def _others(
        self, views: Sequence[GpuSnapshot], quotas: Sequence[Quota], leaving: Collection[str]
    ) -> dict[str, int]:
        """Add up, by GPU, what processes of no share hold, what nobody is counted for, and what stays for borrowers."""
        foreign = foreign_memory.foreign_mib(views, quotas, {*self._ours, *leaving}, self._servers)
        hidden = {gpu: finding.withheld_mib for gpu, finding in self._hidden.found.items()}
        lending = {quota.gpu: SLACK_MIB for quota in quotas if quota.may_borrow}
        return {gpu: mib + hidden.get(gpu, 0) + lending.get(gpu, 0) for gpu, mib in foreign.items()}

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("ResourceSlices not published", reason=str(Reason.INTERNAL), error=problem)
        self.problem = problem

    def _say(self, left_out: tuple[devices.ExcludedGpu, ...]) -> None:
        if left_out != self._logged:
            for each in left_out:
                log.warning("GPU excluded", reason=str(Reason.GPU_EXCLUDED), gpu=each.uuid, why=each.why)
        self._logged = left_out


EVERY: Final = 10.0
"""Seconds between looks at what is offered; slices are written only where that changed."""


class ClaimSource(Protocol):
    """Who prepares claims on what is offered."""

    @property
    def problem(self) -> str | None:
        """Why nobody does; ``None`` where it is well."""

    def terminating_pods(self) -> frozenset[str]:
        """UIDs of the pods whose claims were undone while their processes live on."""

    def withdrawn_mib(self) -> Mapping[str, int]:
        """MiB by GPU of prepared claims that the API server has not allocated any more."""


@dataclass(frozen=True, slots=True)
class SlicePublishing:
    """What is offered, seen and promised. Without a preparer, claims are taken as they were allocated."""

    slices: SliceController
    watch: UsageSampler
    checkpoint: Checkpoint
    changed: threading.Event
    """Set when the offer has to be made at once."""
    claims: ClaimSource | None

    def run_once(self) -> None:
        """Look, and make the offer fit."""
        if self.claims is not None and self.claims.problem is not None:
            return  # nobody would prepare what is offered
        try:
            views = self.watch.sample()
        except NvmlError as error:
            # None was ever seen: what an enforcer before us offered cannot be had.
            log.warning("NVML unavailable; publishing no GPU", reason=str(error.reason), error=error.message)
            views = ()
        self.slices.reconcile(views, self.checkpoint.read(), self._leaving(), self._withdrawn())

    def wake_if_needed(self) -> None:
        """Have the offer made at once if it cannot wait, by what was seen last; asks nobody and never waits."""
        leaving, withdrawn = self._leaving(), self._withdrawn()
        if self.slices.needs_publish(self.watch.latest, self.checkpoint.latest, leaving, withdrawn):
            self.changed.set()

    def _withdrawn(self) -> Mapping[str, int]:
        return foreign_memory.NOTHING if self.claims is None else self.claims.withdrawn_mib()

    def _leaving(self) -> frozenset[str]:
        return frozenset() if self.claims is None else self.claims.terminating_pods()
