"""Puts the kubelet's side of the enforcer together and runs it beside the loop."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from enforcer.attribution.cgroup import Attributor
from enforcer.attribution.usage import UsageSampler
from enforcer.dra.cdi_files import CdiFileStore
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.claim_backoff import ClaimBackoff
from enforcer.dra.claim_status import ClaimStatusPublisher, Conditions
from enforcer.dra.cleanup import EVERY as TIDY_EVERY
from enforcer.dra.cleanup import OrphanCleaner, StaleClaimCleaner, living_pods
from enforcer.dra.driver import Driver, DriverDependencies
from enforcer.dra.health_service import HealthService
from enforcer.dra.kubelet_plugin import PluginService, Sockets
from enforcer.dra.mps_readiness import AlwaysReady, MpsReady
from enforcer.dra.mps_replaced import Replaced
from enforcer.dra.program_view import following
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.dra.resize_controller import EVERY as RESIZE_EVERY
from enforcer.dra.resize_controller import ResizeController, ResizeDependencies
from enforcer.dra.shared_claims import SharedClaimDetector
from enforcer.limits.backend import Backend
from enforcer.mps.launcher import pipe_of, shared_memory_of
from enforcer.mps.shared_memory import server_files
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.quota.from_claims import Object
from enforcer.quota.informer import WITH_KUBELET, QuotaInformer, Rule
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import LimitStatus, Mode, Quota
from enforcer.resourceslices.devices import InventoryPolicy, capacity_mib
from enforcer.runtime.background import run_periodically
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from gpushare.errors import ConfigError
from gpushare.host_access import HostAccess
from gpushare.kube_client import KubeClient
from gpushare.memory_fraction import Reserve
from gpushare.reasons import Reason

SETTLE_EVERY: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraPluginConfig:
    """What the driver is given."""

    node: str
    state: Path
    run: Path
    kubelet_root: Path
    cdi_root: Path
    policy: InventoryPolicy
    cluster: KubeClient
    watch: UsageSampler
    attributor: Attributor
    metrics: Metrics
    modes: SharingModeController
    """How GPUs are shared; told here of prepared claims."""
    mps: MpsSupervisor | None
    """Of the daemons; ``None``: no GPU is shared through MPS."""
    backends: Callable[[], Mapping[str, str]] = dict
    """Who keeps limits on which GPU."""
    quotas: Callable[[], Sequence[Quota]]
    """Those in force, which know the containers of pods that are gone from the API server."""
    tell: Callable[[UserMessage], None] = lambda _: None
    """Takes what owners of pods are to be told."""
    health: Callable[[], Mapping[str, Reason | None]] = dict
    """By UUID of the GPUs that were seen, why one is unhealthy, ``None`` where it is healthy."""
    exceeding: Callable[[], frozenset[str]] = frozenset
    """Namespaces whose new claims wait."""
    shared_memory: bool = False
    """Whether clients of MPS get the node's shared memory of MPS."""
    host_network: bool = False
    """Whether sharing pods may use hostNetwork."""
    reserve: Reserve = field(default_factory=Reserve)
    """What limits keep in reserve of the memory that programs may use."""
    framework_variables: bool = True
    """Whether frameworks get variables."""


class DraPlugin:
    """The driver, its sockets, and what keeps both in order.

    Attributes:
        books: work out quotas from what was prepared; to be followed by whoever writes them down.
        registered: set whenever the kubelet has (again) taken the driver in: slices have to be checked then.
    """

    def __init__(self, setup: DraPluginConfig) -> None:
        self._store = ClaimStore(setup.state)
        self.books: Final = QuotaInformer(setup.node, self._rule(setup), WITH_KUBELET)
        self.books.also = lambda: [each.namespace for each in self._store.prepared()]
        self.registered: Final = threading.Event()
        self._shared: tuple[str, ...] = ()
        self._joiners: Final = SharedClaimDetector(setup.tell)
        memory = shared_memory_of(setup.run)
        self._announcer = ClaimStatusPublisher(setup.cluster, setup.backends, partial(server_files, memory))
        self._conditions = Conditions(setup.cluster)
        self._modes, self._backends = setup.modes, setup.backends
        parts = self._parts(setup)
        self._driver = Driver(parts)
        self._sockets = Sockets(
            setup.kubelet_root,
            PluginService(self._driver, setup.metrics),
            HealthService(self._store.prepared, setup.health),
            self.registered.set,
        )
        self._files, self._replaced = parts.files, Replaced(memory, partial(_mps_clients, setup), setup.tell)
        files, living = parts.files, partial(living_pods, setup.attributor)
        self._strays = OrphanCleaner(
            setup.cluster, self._store, files, self._driver, self.books.pods, self.books.claims
        )
        self._resizer = ResizeController(self._means(setup))
        self._forgotten = StaleClaimCleaner(setup.cluster, self._store, self._driver, self.books.pods, living)

    def start(self, stopped: threading.Event) -> None:
        """Bring the node's files in order, then serve.

        Raises:
            ConfigError: a directory cannot be used, or a socket not be made.
        """
        try:
            self._driver.recover()
        except OSError as error:
            raise ConfigError(f"the files of prepared claims cannot be brought in order: {error}") from error
        self._modes.follow(self._store.modes)
        self._announcer.start()
        self._sockets.start()
        run_periodically(SETTLE_EVERY, "settle", self._settle, stopped)
        run_periodically(RESIZE_EVERY, "resize", self._resizer.turn, stopped, self._resizer.wanted)
        run_periodically(TIDY_EVERY, "tidy", self._tidy, stopped)

    def stop(self) -> None:
        """Let calls come to their end and take the sockets away, so that the kubelet knows."""
        self._sockets.stop()

    @property
    def problem(self) -> str | None:
        """Why no claim reaches us; ``None`` where they do."""
        return self._sockets.registration.problem

    def problems(self) -> Iterator[str]:
        """Everything that hinders preparing claims."""
        if self.problem is not None:
            yield self.problem
        yield from self._store.problems()
        yield from self._shared

    def prove(self, claim_uid: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        """Say in a claim's status whether its limits are in force; false where that has to be said again."""
        claim = self._store.get(claim_uid)
        return claim is None or not proofs or self._conditions.write(claim, proofs)

    def leaving(self) -> frozenset[str]:
        """UIDs of the pods whose claims were undone while their processes live on: what those hold cannot be shared."""
        lasting = {each.pod_uid for each in self._store.prepared()}
        return frozenset(each.pod_uid for each in self._store.ending()) - lasting

    def claimed(self) -> frozenset[str]:
        """UUIDs of the GPUs that claims are on, those included whose processes outlive them."""
        return frozenset(gpu for each in (*self._store.prepared(), *self._store.ending()) for gpu in each.gpus)

    def _settle(self) -> None:
        self._sockets.check()
        self._driver.settle()
        self._follow_backends()
        self._replaced.turn(made=self._files.memory_made)

    def _follow_backends(self) -> None:
        """Have containers that start from now on see what the back end of today makes of their GPUs."""
        follow = partial(following, backends=self._backends())
        for claim in self._store.prepared():
            if follow(claim) != claim:
                self._driver.alter(claim.uid, follow)

    def _tidy(self) -> None:
        self._strays.turn()
        self._forgotten.turn()

    def _rule(self, setup: DraPluginConfig) -> Rule:
        def quotas(seen: Mapping[str, Sequence[Object]]) -> tuple[Quota, ...]:
            prepared, pods = self._store.prepared(), seen["pods"]
            self._shared = self._joiners.see(prepared, pods)
            self._resizer.see(pods, seen["namespaces"])
            return quotas_of_prepared(prepared, pods, seen["namespaces"], setup.quotas())

        return quotas

    def _means(self, setup: DraPluginConfig) -> ResizeDependencies:
        return ResizeDependencies(
            driver=self._driver,
            store=self._store,
            look=setup.watch.look,
            tell=setup.tell,
            at_once=partial(_at_once, setup),
            mps=setup.mps is not None,
            min_mib=setup.policy.min_memory_mib,
        )

    def _parts(self, setup: DraPluginConfig) -> DriverDependencies:
        keeper = setup.mps
        memory = shared_memory_of(setup.run) if setup.shared_memory else None
        return DriverDependencies(
            node=setup.node,
            cluster=setup.cluster,
            store=self._store,
            files=CdiFileStore(
                setup.cdi_root, setup.run, partial(_pipe_of, setup), shared_memory=memory, reserve=setup.reserve
            ),
            look=setup.watch.look,
            ready=AlwaysReady() if keeper is None else MpsReady(keeper.hindrance),
            modes=setup.modes,
            capacity=lambda gpu, mode: capacity_mib(gpu, setup.policy, mode=mode),
            changed=self.books.changed.set,
            published=self._announcer.publish,
            host=_host_access(setup),
            backends=setup.backends,
            framework_variables=setup.framework_variables,
            backoff=ClaimBackoff(setup.exceeding),
        )


def _host_access(setup: DraPluginConfig) -> HostAccess:
    """What sharing pods may reach of the node: not what gpu-share and the kubelet keep, whatever paths they have."""
    folders = (setup.state, setup.run, setup.kubelet_root, setup.cdi_root)
    return HostAccess(protected=tuple(map(str, folders)), network=setup.host_network)


def _mps_clients(setup: DraPluginConfig) -> list[Quota]:
    """The containers that run and whose GPU is shared through MPS."""
    running = [each for each in setup.quotas() if each.container_id is not None and each.memory_mib]
    return [each for each in running if setup.modes.of(each.gpu) is Mode.MPS]


def _at_once(setup: DraPluginConfig, gpu: str) -> bool:
    """Whether another limit binds processes that run on a GPU; by the mode while its back end is not chosen yet."""
    backend = setup.backends().get(gpu)
    return setup.modes.of(gpu) is Mode.TIME_SLICING if backend is None else Backend(backend).at_once


def _pipe_of(setup: DraPluginConfig, gpu: str) -> str | None:
    return None if setup.mps is None else pipe_of(setup.run, gpu)
