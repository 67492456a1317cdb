"""The parts that ``main`` wires: what runs beside the loop, its problems and its readiness."""

import argparse
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import structlog

from enforcer.attribution.cgroup import Attributor
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.kill.circuit_breaker import OPEN, opened_at
from enforcer.limits.backend import Backend
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.manager import MpsManager
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.client import NvmlClient
from enforcer.nvml.device_health import GpuConditions
from enforcer.nvml.driver_root import HERE
from enforcer.nvml.types import Gpu
from enforcer.nvml.worker_process import command
from enforcer.quota.informer import PodListener
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import LimitStatus, Mode, Quota
from enforcer.resourceslices.audit_head_publisher import start_anchor_publisher
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.enforcer_report import EnforcerState, start_report_publisher
from enforcer.status.events import NodeEvent, NodeEventRecorder
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from enforcer.status.unattributed import Growth
from gpushare.errors import GpuShareError
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason

log = structlog.get_logger()


@dataclass(slots=True)
class Side:
    """What runs beside the loop, and what hinders it."""

    nvml: NvmlClient = field(default_factory=lambda: NvmlClient(command(HERE)))
    """The door to the GPUs."""
    stopped: threading.Event = field(default_factory=threading.Event)
    problems: list[Callable[[], Sequence[str]]] = field(default_factory=list)
    serves: Callable[[str], bool] = bool
    """Whether a GPU's MPS daemon takes clients; without daemons nobody waits for one."""
    mps: tuple[MpsManager, MpsSupervisor] | None = None
    """The daemons, where there are any."""
    backends: Callable[[], Mapping[str, Backend]] = dict
    """Who keeps limits on which GPU."""
    incidents: IncidentLog = field(default_factory=IncidentLog)
    """What happened to them."""
    news: deque[NodeEvent] = field(default_factory=lambda: deque(maxlen=64))
    """What operators are to be told beside that."""
    announce: Callable[[str, Sequence[tuple[Quota, LimitStatus]]], bool] = lambda *_: True
    """Says of a claim, by UID, whether its limits are in force; false where that has to be said again."""
    exceeding: Callable[[], frozenset[str]] = frozenset
    """Namespaces of which several pods were killed lately."""
    claimed: Callable[[], frozenset[str] | None] = lambda: None
    """Which GPUs claims are on; ``None`` until that is known."""
    wakes: list[threading.Event] = field(default_factory=list)
    """Set when other GPUs are there than before."""
    sharing: GpuAvailability = field(default_factory=lambda: GpuAvailability(None, "", tuple))
    """Which GPUs may be shared."""
    modes: SharingModeController = field(default_factory=SharingModeController.fixed)
    """How they are."""

    tell: Callable[[UserMessage], None] = lambda _: None
    """Takes what owners of pods are to be told."""
    listeners: list[PodListener] = field(default_factory=list)
    """Who wants to see this node's pods."""
    hindrances: list[Callable[[], str | None]] = field(default_factory=list)
    """What has to be well before shares can be had here."""

    def hindrance(self) -> str | None:
        """Say why no share can be had here yet; ``None`` where one can."""
        return next((why for get in self.hindrances if (why := get()) is not None), None)

    def standing(self, gpus: Sequence[Gpu]) -> GpuConditions:
        """Say all that is to be known of these GPUs beside what they hold. May take seconds."""
        return replace(self.sharing.standing(gpus), backends=self.backends())

    def gpus_changed(self) -> None:
        """Wake those who have to know."""
        for event in self.wakes:
            event.set()

    def now(self, views: Sequence[GpuSnapshot]) -> GpuConditions:
        """Say all that is known of the GPUs that were seen, without looking."""
        ways, gpus = self.modes.now(), [view.gpu for view in views if not view.gpu.mig_enabled]
        modes = {gpu.uuid: str(mode) for gpu in gpus if (mode := ways.of(gpu.uuid)) is not None}
        return replace(self.sharing.now(), modes=modes)

    def ready(self, gpu: str) -> bool:
        """Say whether shares of a GPU can be used: of one shared through MPS once its daemon takes clients."""
        return self.modes.of(gpu) in {Mode.TIME_SLICING, Mode.MIG} or self.serves(gpu)

    def failures(self) -> Mapping[str, GpuShareError]:
        """Say which daemons do not serve."""
        return {} if self.mps is None else self.mps[1].failures

    def prove(self, claim_uid: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        """Say whether a claim's limits are in force, to whoever announces that by now; see ``announce``."""
        return self.announce(claim_uid, proofs)

    def daemons(self) -> Mapping[str, MpsDaemon]:
        """Return the daemons there are, of GPUs that are shared through MPS."""
        known = {} if self.mps is None else self.mps[0].daemons
        return {gpu: daemon for gpu, daemon in known.items() if self.through_mps(gpu)}

    def through_mps(self, gpu: str) -> bool:
        """Say whether a GPU has a daemon, or is to have one as soon as it is shared."""
        return self.mps is not None and self.modes.of(gpu) in {None, Mode.MPS}

    def servers(self) -> frozenset[int]:
        """Say which processes are MPS's own."""
        return frozenset() if self.mps is None else self.mps[0].pids()

    def tell_operators(self, reason: Reason, note: str) -> None:
        """Have operators told, from a thread that may wait for the API server."""
        self.news.append(NodeEvent(reason, note, warning=reason is not Reason.RECOVERED))

    def complain(self, get: Callable[[], str | None]) -> None:
        """Ask this for a problem after every look."""
        self.problems.append(lambda: [problem] if (problem := get()) is not None else [])

    def all(self) -> list[str]:
        """All there is to complain about."""
        return list(chain.from_iterable(get() for get in self.problems))


@dataclass(frozen=True, slots=True)
class Seeing:
    """What is seen, by whom, and what is counted."""

    watch: UsageSampler
    attributor: Attributor
    metrics: Metrics
    growth: Callable[[], Mapping[str, Growth]] = dict
    """Of memory that no process accounts for, by GPU."""


class LogEventRecorder:
    """Without an API server, notices go to the log alone."""

    def notify(self, notice: UserMessage) -> None:
        """Write it."""
        log.info("notice", reason=str(notice.reason), pod=notice.quota.pod, note=notice.note)


def sharing_modes(
    options: argparse.Namespace, cluster: KubeClient | None, changed: threading.Event | None
) -> SharingModeController:
    """Return what decides how GPUs are shared: the flags alone, or with a cluster also the label of the node."""
    if options.no_mps:
        return SharingModeController.fixed(Mode.TIME_SLICING)
    if cluster is None:
        return SharingModeController.fixed(options.mode)
    reporter = NodeEventRecorder(cluster, options.node)
    return SharingModeController(
        options.mode, lambda said: reporter.report(NodeEvent(Reason.MODE_UNKNOWN, said)), changed
    )


def setup_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the node's status has for ``gpu-share check --node``."""
    roots = {"driverRoot": options.driver_root, "kubeletRoot": options.kubelet_root, "cdiRoot": options.cdi_root}
    return {**{name: str(root) for name, root in roots.items()}, "anyPidNamespace": options.allow_any_pid_namespace}


def annotate_slices(
    options: argparse.Namespace, cluster: KubeClient, log: AuditLog, writer: AuditWriter, metrics: Metrics, side: Side
) -> None:
    """Begin to keep the annotations of this node's slices: the head of the audit log, and the enforcer's report."""
    anchor = start_anchor_publisher(log, cluster, options.node, side.stopped)
    side.complain(lambda: anchor.problem)
    state = partial(reported, options, metrics, lambda: writer.problem or log.shortage)
    start_report_publisher(cluster, options.node, state, side.stopped)


def reported(options: argparse.Namespace, metrics: Metrics, audit_log: Callable[[], str | None]) -> EnforcerState:
    """Return what this enforcer reports of itself. Raises OSError where its state directory cannot be read."""
    unwritable = audit_log() or ""
    problems = metrics.latest.status.get("problems", ())
    return EnforcerState(
        enforcing=not options.no_enforce,
        breaker=opened_at(options.state),
        audit_log=unwritable,
        problems=tuple(each for each in problems if each not in {OPEN, unwritable}),
    )
