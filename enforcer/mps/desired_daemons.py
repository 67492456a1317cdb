"""Which GPUs of a node have an MPS daemon now, which need one, and whose is to go.

GPUs come and go with the driver, with the node's label and annotation, and with others who offer them. A daemon is made
for a GPU as soon as it may be shared. One whose GPU may not be any more stays until the last claim was undone and as
long again as the kubelet may wait for an answer: what is being prepared meanwhile must not lose it.

What is not known changes nothing: not that NVML or the API server does not answer, not that the driver's programs are
missing. Daemons that ran before us are known by their notes before anything else is decided.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from enforcer.attribution.usage import UsageSampler
from enforcer.mps.daemon import ComputeModes, MpsDaemon
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.launcher import FOLDER, HostPodLauncher, folder_of
from enforcer.mps.manager import MpsManager
from enforcer.mps.state_file import noted_gpus
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.types import Gpu
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.prepared_claims import PreparedClaims
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, capacity_mib, shareable_gpus
from enforcer.runtime.clock import CLOCK, Clock
from gpushare.errors import ClusterError, ConfigError, GpuShareError, NvmlError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()

QUIET: Final = 45.0
"""Seconds without a claim after which a daemon that is not needed goes: the kubelet's patience with a call."""


MakeDaemon = Callable[..., MpsDaemon]
"""Makes a daemon of a GPU's UUID, a directory and ``limit_mib``. Raises ``ConfigError``: the directory is too long."""


@dataclass(eq=False)
class DriverTools:
    """Finds the program of the daemons each time again: a driver may be upgraded.

    Args:
        modes: reads and sets compute modes; ``None``: GPUs keep theirs.
        driver: the node's driver.
        run: directory below which the daemons' directories are.
        launcher: starts daemons elsewhere; ``None``: the enforcer starts them.
        incidents: of the daemons.
    """

    modes: ComputeModes | None
    driver: DriverRoot
    run: Path
    launcher: HostPodLauncher | None
    incidents: IncidentLog

    def find(self) -> MakeDaemon:
        """Return what makes daemons. Raises ``GpuShareError`` while the driver is away."""
        return partial(
            MpsDaemon, binary=self.driver.program(), environment=self.driver.environment(self.run), modes=self.modes,
            launcher=self.launcher, incidents=self.incidents,
            server_uid=0,  # root's server serves everybody where MPS serves many users
        )  # fmt: skip


class ShareableGpus:
    """Which GPUs of this node may be shared: asked of the node's object, remembered while nobody answers.

    Args:
        cluster: to ask for the node's object; ``None``: every GPU may be shared.
        node: its name.
        contention: finds who else offers them; ``None``: there is no cluster, and nobody can.
        modes: gets the node's label.
    """

    def __init__(
        self, cluster: KubeClient | None, node: str, contention: ContentionMonitor | None, modes: SharingModeController
    ) -> None:
        self._cluster, self._node, self._contention, self._modes = cluster, node, contention, modes
        self._known: frozenset[str] | None = None

    def named(self, gpus: Sequence[Gpu]) -> frozenset[str] | None:
        """Name, by UUID, those that label and annotation give away; ``None`` until the node could be read."""
        if self._cluster is None:
            return frozenset(gpu.uuid for gpu in gpus)
        with suppress(ClusterError, ConfigError):  # the offer, which reads the same, says what is wrong
            node = self._modes.read_node(partial(self._cluster.get, path(CORE_V1, "nodes", self._node)))
            self._known = frozenset(gpu.uuid for gpu in shareable_gpus(gpus, node))
        return self._known

    def contended(self, gpus: Sequence[Gpu]) -> frozenset[str]:
        """Name, by UUID, those that somebody else offers."""
        return frozenset(() if self._contention is None else self._contention.check(gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerInputs:
    """What a roster is drawn up from.

    Attributes:
        watch: samples the node's GPUs.
        shared: which of them may be shared.
        modes: in which way; only MPS takes a daemon.
        policy: what the operator decided.
        claims: that are prepared, or whose processes live on.
        checkpoint: the quotas.
        tools: what daemons are run with.
        upgrade: of the driver; while the node drains for it, no daemon is needed beside those of tenants.
    """

    watch: UsageSampler
    shared: ShareableGpus
    modes: SharingModeController
    policy: InventoryPolicy
    claims: PreparedClaims
    checkpoint: Checkpoint
    tools: DriverTools
    upgrade: DriverUpgrade

    def claimed(self) -> frozenset[str] | None:
        """Return the UUIDs of the GPUs that claims or quotas are on; ``None`` until the claims were read."""
        claims = self.claims.gpus()
        return None if claims is None else claims | {quota.gpu for quota in self.checkpoint.read()}


@dataclass(frozen=True, slots=True)
class DaemonPlan:
    """What is to be done now, by UUID: whose daemons to keep in service, and whose to end."""

    served: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()


class DaemonPlanner:
    """Takes daemons into the manager, and says whose time is over. Safe to use from several threads.

    Args:
        manager: of the daemons.
        run: directory below which theirs are.
        sources: see there.
    """

    def __init__(self, manager: MpsManager, run: Path, sources: PlannerInputs, clock: Clock = CLOCK) -> None:
        self._manager, self._run, self._sources, self._clock = manager, run, sources, clock
        self._lock = threading.Lock()
        self._gpus: dict[str, Gpu] = {}
        self._idle: dict[str, float] = {}
        """Those that need none and are in no claim, and since when."""
        self._used: dict[str, float] = {}
        """When each was last asked for."""
        self.before = noted_gpus(run / FOLDER)
        """Those with a daemon of an enforcer before us, or a compute mode that one has yet to give back."""
        self._unmet = self.before
        self._blank: frozenset[str] = frozenset()
        """Those of which it is not known yet what may be given away: their cards were not seen."""
        self.problem: str | None = None
        """Why no daemon can be made; ``None`` where they can."""

    def plan(self) -> DaemonPlan:
        """Draw it up. May take seconds."""
        with self._lock:
            with suppress(NvmlError):  # the sampler reports it; the last list stays valid
                self._gpus = {view.gpu.uuid: view.gpu for view in self._sources.watch.sample()}
            named, wanted, contended = self._wanted()
            if not wanted and not self._unmet and not self._manager.daemons:
                self.problem = None
                return DaemonPlan()
            try:
                make = self._sources.tools.find()
            except GpuShareError as error:
                self._complain(error.message)
                return DaemonPlan()
            self.problem = None
            self._take(wanted, make)
            return self._duty(wanted, contended, settled=named is not None) if self._gpus else DaemonPlan()

    def used(self, gpu: str) -> None:
        """Take note that a GPU's daemon was asked for: a claim may be about to be prepared."""
        self._used[gpu] = self._clock.monotonic()

    @contextmanager
    def leaving(self, gpu: str) -> Iterator[bool]:
        """Say whether a GPU's daemon is to go, and keep claims from being prepared in another mode meanwhile."""
        with self._sources.modes.hold([gpu]) as modes:
            yield modes[gpu] not in {None, Mode.MPS} or (modes[gpu] is not None and self._forsaken(gpu))

    def changed(self, gpu: str) -> bool:
        """Say whether a GPU is shared in another way than through MPS."""
        return self._sources.modes.of(gpu) not in {None, Mode.MPS}

    def gone(self, gpu: str) -> bool:
        """Say whether NVML does not know a GPU any more."""
        return gpu not in self._gpus

    def forget(self, gpu: str) -> None:
        """Take note that a GPU's daemon has ended."""
        self.before -= {gpu}

    def _wanted(self) -> tuple[frozenset[str] | None, frozenset[str], frozenset[str]]:
        """Name the GPUs that the node gives away (``None``: not known), that need a daemon, that others offer."""
        seen = tuple(self._gpus.values())
        if not seen:
            return None, frozenset(), frozenset()
        named, contended = self._sources.shared.named(seen), self._sources.shared.contended(seen)
        given = self.before if named is None else named
        if self._sources.upgrade.draining:
            given = frozenset()
        return named, frozenset(gpu for gpu in self._fit() & given - contended if self._through_mps(gpu)), contended

    def _through_mps(self, gpu: str) -> bool:
        return self._sources.modes.of(gpu) is Mode.MPS

    def _fit(self) -> frozenset[str]:
        """Name the GPUs that MPS could share."""
        policy = replace(self._sources.policy, mode=Mode.MPS)
        return frozenset(self._gpus.keys() - {out.uuid for out in build_devices(self._gpus.values(), policy).left_out})

    def _take(self, wanted: Iterable[str], make: MakeDaemon) -> None:
        """Take in those of an enforcer before us, and those that are wanted."""
        for gpu in {*self._unmet, *wanted} - self._manager.daemons.keys():
            self._manager.add(self._made(gpu, make))
        for gpu in self._blank & self._gpus.keys():
            self._manager.replace(self._made(gpu, make))
        self._blank = (self._blank | self._unmet) - self._gpus.keys()
        self._unmet = frozenset()

    def _made(self, gpu: str, make: MakeDaemon) -> MpsDaemon:
        card = self._gpus.get(gpu)
        limit = 0 if card is None else capacity_mib(card, self._sources.policy)
        return make(gpu, self._run / FOLDER / folder_of(gpu), limit_mib=limit)

    def _duty(self, wanted: frozenset[str], contended: Collection[str], *, settled: bool) -> DaemonPlan:
        there, claimed = self._manager.daemons.keys(), self._sources.claimed()
        # Tenants of a GPU that is not shared any more are looked after to the end; a contended one is left as it is.
        kept = {gpu for gpu in there & self._fit() & set(claimed or ()) if self._through_mps(gpu)} - set(contended)
        needless = there - wanted - set(claimed) if settled and claimed is not None else set()
        now = self._clock.monotonic()
        self._idle = {gpu: self._idle.get(gpu, now) for gpu in needless if self._sources.modes.of(gpu) is not None}
        changed = {gpu for gpu in self._manager.marked() if self.changed(gpu)}
        return DaemonPlan(wanted | kept, frozenset(changed | {gpu for gpu in self._idle if self._over(gpu)}))

    def _forsaken(self, gpu: str) -> bool:
        claimed = self._sources.claimed()
        return claimed is not None and gpu not in claimed and self._over(gpu)

    def _over(self, gpu: str) -> bool:
        since = self._idle.get(gpu)
        if since is None or self._sources.upgrade.draining:  # no claim is prepared that could lose its daemon
            return since is not None
        return self._clock.monotonic() - max(since, self._used.get(gpu, since)) >= QUIET

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("MPS daemons not supervised", reason=str(Reason.MPS_UNREACHABLE), error=problem)
        self.problem = problem
