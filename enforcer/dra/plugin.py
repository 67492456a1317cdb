"""Puts the kubelet's side of the enforcer together."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from enforcer.dra.cdi_files import STATUS, CdiFileStore
from enforcer.dra.checkpoint import FOLDER
from enforcer.dra.claim_status import write_condition
from enforcer.dra.cleanup import EVERY as CLEANUP_EVERY
from enforcer.dra.cleanup import OrphanCleaner, StaleClaimCleaner
from enforcer.dra.client_memory import ClientMemory
from enforcer.dra.compute_notices import ComputeNotices
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.driver import Driver
from enforcer.dra.health_service import HealthService
from enforcer.dra.kubelet_plugin import PluginService, Sockets
from enforcer.dra.mps_replaced import ReplacementDetector
from enforcer.dra.program_view import following
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.dra.resize_controller import EVERY as RESIZE_EVERY
from enforcer.dra.resize_controller import ResizeController
from enforcer.dra.shared_claims import SharedClaimDetector
from enforcer.dra.withdrawn import EVERY as WITHDRAWN_EVERY
from enforcer.dra.withdrawn import WithdrawnClaims
from enforcer.mps.launcher import shared_memory_of
from enforcer.quota.from_claims import Object
from enforcer.quota.informer import WITH_KUBELET, QuotaInformer
from enforcer.quota.types import LimitStatus, Quota
from enforcer.runtime.files import unwritable
from enforcer.runtime.manager import Manager
from gpushare.errors import ConfigError
from gpushare.reasons import Reason

SETTLE_EVERY: Final = 5.0
CLAIMS: Final = "claims"
"""The thread of tasks that wait for claims being prepared, for their files, for NVML and for the API server."""


class PreparedQuotas:
    """The rule by which quotas follow from prepared claims. It also finds the pods that join claims of others.

    Args:
        setup: has the claims, and the quotas as they are.
        resizer: sees the pods and namespaces.
    """

    kinds = WITH_KUBELET

    def __init__(self, setup: DraPluginConfig, resizer: ResizeController) -> None:
        self._store, self._checkpoint, self._resizer = setup.store, setup.checkpoint, resizer
        self._joiners, self._compute = SharedClaimDetector(setup.events), ComputeNotices(setup.events)
        self.shared: tuple[str, ...] = ()
        """What operators are to read of pods that join claims."""

    def namespaces(self) -> frozenset[str]:
        """See ``QuotaRule``."""
        return self._store.namespaces()

    def quotas(self, seen: Mapping[str, Sequence[Object]]) -> tuple[Quota, ...]:
        """See ``QuotaRule``."""
        prepared, pods = self._store.prepared(), seen["pods"]
        self.shared = self._joiners.check(prepared, pods)
        self._compute.check(prepared)
        self._resizer.set_objects(pods, seen["namespaces"])
        return quotas_of_prepared(prepared, pods, seen["namespaces"], self._checkpoint.read())


class DraPlugin:
    """The driver, its sockets, and what keeps both in order.

    Attributes:
        books: work out quotas from what was prepared; the quota writer follows it.
    """

    def __init__(self, setup: DraPluginConfig) -> None:
        self._setup, self._store = setup, setup.store
        self._files = _cdi_files(setup)
        self._driver = Driver(setup, self._files)
        self._resizer = ResizeController(setup, self._driver)
        self._rule = PreparedQuotas(setup, self._resizer)
        self.books: Final = QuotaInformer(self._rule, setup.quotas_changed, setup.listeners)
        service, health = PluginService(self._driver, setup.metrics), HealthService(self._store, setup.availability)
        self._sockets = Sockets(setup.kubelet_root, service, health, setup.registered)
        self._replaced = ReplacementDetector(shared_memory_of(setup.run), setup.checkpoint, setup.modes, setup.events)
        self._strays = OrphanCleaner(setup, self._files, self._driver, self.books)
        self._withdrawn = WithdrawnClaims(setup.cluster, self._store, self._driver.crowded)
        self._forgotten = StaleClaimCleaner(setup, self._driver, self.books)

    def add_to(self, manager: Manager) -> None:
        """Add the sockets and the tasks that keep claims in order."""
        manager.add_problem_check(lambda: self.problem, Reason.DRIVER_NOT_REGISTERED)
        manager.add_problem_check(self._store.problems, Reason.CHECKPOINT_UNREADABLE)
        manager.add_problem_check(lambda: self._rule.shared, Reason.CLAIM_IN_USE)
        manager.add_problem_check(self._barred, Reason.FILES_UNWRITABLE)
        manager.add_ready_check(lambda: self.problem)
        manager.add_server("kubelet sockets", self.start, self._sockets.stop)
        manager.add("settle", self._settle, every=SETTLE_EVERY, thread=CLAIMS)
        manager.add("resize", self._resizer.run_once, every=RESIZE_EVERY, wake=self._resizer.wanted, thread=CLAIMS)
        crowded = self._driver.crowded
        manager.add("withdrawn", self._withdrawn.run_once, every=WITHDRAWN_EVERY, wake=crowded, thread=CLAIMS)
        manager.add("cleanup", self._cleanup, every=CLEANUP_EVERY, thread=CLAIMS)

    def start(self) -> None:
        """Bring the node's files in order, then serve.

        Raises:
            ConfigError: a directory cannot be used, or a socket not be made.
        """
        try:
            self._driver.recover()
        except OSError as error:
            raise ConfigError(f"the driver cannot restore the files of prepared claims: {error}") from error
        self._setup.modes_changed.set()
        self._sockets.start()

    @property
    def problem(self) -> str | None:
        """Why no claim reaches us; ``None`` where they do."""
        return self._sockets.unserved or self._sockets.registration.problem

    def write_conditions(self, claim_uid: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        """Say in a claim's status whether its limits are in force; false where it has to be written again."""
        claim = self._store.get(claim_uid)
        return claim is None or write_condition(self._setup.cluster, claim, proofs)

    def terminating_pods(self) -> frozenset[str]:
        """UIDs of the pods whose claims were undone while their processes live on: what those hold cannot be shared."""
        return self._store.terminating_pods()

    def withdrawn_mib(self) -> dict[str, int]:
        """MiB by GPU of prepared claims that the API server has not allocated any more."""
        return self._withdrawn.mib()

    def _barred(self) -> str | None:
        """Look before a claim has to be prepared."""
        setup = self._setup
        folder = unwritable((setup.cdi_root, setup.run / STATUS, setup.state / FOLDER))
        return f"{folder} is read-only or immutable, so no claim can be prepared" if folder else None

    def _settle(self) -> None:
        self._sockets.check()
        self._driver.forget_finished()
        self._follow_backends()
        self._replaced.check(made=self._files.memory_made)

    def _follow_backends(self) -> None:
        """Have containers that start from now on see what the back end of today makes of their GPUs."""
        follow = partial(following, backends=self._setup.limiter.backends())
        for claim in self._store.prepared():
            if follow(claim) != claim:
                self._driver.update(claim.uid, follow)

    def _cleanup(self) -> None:
        self._driver.restore()
        self._strays.run_once()
        self._forgotten.run_once()


def _cdi_files(setup: DraPluginConfig) -> CdiFileStore:
    memory = ClientMemory(shared_memory_of(setup.run), setup.shared_memory, setup.watch)
    mps = setup.mps is not None
    return CdiFileStore(setup.cdi_root, setup.run, mps=mps, memory=memory, reserve=setup.reserve)
