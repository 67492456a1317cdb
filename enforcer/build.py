"""Build the enforcer from its flags, from top to bottom: each part is built from the parts above it.

The order: checkpoint, modes, contention, MPS, limits, status files of pods, health, availability, DRA, verifier, kill
loop, slices. Nothing is started here: each part is added to the manager.
"""

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from enforcer.attribution.container_names import ContainerNames
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.descriptors import DescriptorReader
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.attribution.usage import UsageSampler
from enforcer.build_audit import SLICES, AuditParts, build_audit_log
from enforcer.build_foreign import enforced_quotas
from enforcer.detection.claim_wait import ClaimWait
from enforcer.detection.hidden_memory import EVERY as DESCRIPTORS_EVERY
from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.plugin import DraPlugin
from enforcer.dra.podresources import allocatable
from enforcer.driver_upgrade.controller import UpgradeDependencies, follow_upgrade
from enforcer.driver_upgrade.eviction import PodEvictor
from enforcer.flags import policy_of, rules_of, setup_of
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.limits.applier import LimitApplier
from enforcer.limits.cgroup_paths import CgroupFolders
from enforcer.limits.verifier import LOOK_AT_MOST_EVERY, LimitVerifier, NodeEvidence
from enforcer.loop import EnforcementLoop, LoopDependencies
from enforcer.mps.desired_daemons import DaemonPlanner, DriverTools, PlannerInputs, ShareableGpus
from enforcer.mps.event_reporter import EVERY as INCIDENTS_EVERY
from enforcer.mps.event_reporter import IncidentCollector, IncidentReporter
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.launcher import HostPodLauncher
from enforcer.mps.log_tailer import LogTail
from enforcer.mps.manager import MpsManager
from enforcer.mps.own_processes import EnforcerProcesses
from enforcer.mps.supervisor import MpsSupervisor, takes_clients
from enforcer.nvml.client import NvmlClient
from enforcer.nvml.device_health import LOOK_EVERY
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.worker_handle import command
from enforcer.oom.reporter import OomReporter
from enforcer.pod_deletion.client_release import EVERY as MISSING_EVERY
from enforcer.pod_deletion.client_release import ReleaserDependencies, ask_for_missing, release_in_time
from enforcer.pod_deletion.terminating_pods import TerminatingPods
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.informer import STATE, AllocatedClaims, QuotaInformer, add_informers
from enforcer.quota.prepared_claims import NoClaims, PreparedClaims
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.controller import EVERY as OFFER_EVERY
from enforcer.resourceslices.controller import SliceController, SlicePublishing
from enforcer.resourceslices.devices import InventoryPolicy
from enforcer.resourceslices.enforcer_report import EVERY as REPORT_EVERY
from enforcer.resourceslices.enforcer_report import ReportPublisher
from enforcer.resourceslices.health_monitor import GpuHealthMonitor
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.runtime.lock import StateLock
from enforcer.runtime.manager import SCHEDULER, Manager, Wake
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder
from enforcer.status.hidden_notices import HiddenNotices
from enforcer.status.metrics import Metrics, VerificationCollector
from enforcer.status.mps_clients import MpsClients
from enforcer.status.pod_status_files import PodStatusWriter
from enforcer.status.utilization import SECONDS as UTILIZATION_EVERY
from enforcer.status.utilization import UtilizationMonitor
from gpushare import metrics_server
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason

LOCK_SECONDS: Final = 1.0
RECORD_EVERY: Final = 10.0
"""Seconds between looks whether what is known of the GPUs' memory has to be recorded again."""
LIMIT_EVERY: Final = 1.0
"""Seconds from a container's start, at most, to its limit, where the enforcer sets it."""
VERIFIER: Final = "verifier"
"""The thread of tasks that verify: limits, the audit log, who has descriptors."""
NVML: Final = "nvml"
"""The thread of tasks that wait for NVML: for two seconds at most, where it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What most parts are built from."""

    options: argparse.Namespace
    manager: Manager
    cluster: KubeClient | None
    """``None``: there is no API server."""
    writer: ApiWriter
    events: EventRecorder
    nvml: NvmlClient
    attributor: CgroupAttributor
    checkpoint: Checkpoint
    names: ContainerNames
    watch: UsageSampler
    utilization: UtilizationMonitor
    metrics: Metrics
    policy: InventoryPolicy
    upgrade: DriverUpgrade
    mps_due: Wake
    """Set when MPS daemons may have to be started or ended."""
    slices_due: Wake
    quotas_due: Wake
    """Set when ResourceSlices have to be published, or quotas worked out, again."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What is known of shares and how GPUs are shared."""

    store: ClaimStore
    prepared: PreparedClaims
    """The store, where the enforcer prepares claims."""
    modes: SharingModeController


@dataclass(frozen=True, slots=True)
class Mps:
    """The MPS daemons, and what keeps them in service; ``None`` where there are to be none."""

    manager: MpsManager | None
    keeper: MpsSupervisor | None


@dataclass(frozen=True, slots=True)
class Pods:
    """The status files of pods, and what follows the node's pods."""

    status: PodStatusWriter
    oom: OomReporter
    departures: TerminatingPods
    claim_wait: ClaimWait


def build(
    options: argparse.Namespace,
    manager: Manager,
    lock: StateLock,
    reader: GpuReader | None,
    attributor: CgroupAttributor,
) -> EnforcementLoop:
    """Build all parts and add them to the manager. Returns the loop, which is for the main thread.

    Args:
        options: the flags.
        manager: takes the parts.
        lock: of the state directory.
        reader: reads the GPUs instead of NVML.
        attributor: finds the container of a process.
    """
    audit_log = build_audit_log(options, manager, lock)
    node = _node(options, manager, reader, attributor)
    manager.add("lock", partial(lock.stop_when_lost, manager.stopped), every=LOCK_SECONDS, thread=STATE)
    shares = _shares(node)
    contention = _contention(node)
    mps = _mps(node, shares, contention)
    limiter = _limits(node, shares)
    pods = _pods(node, shares, mps)
    health = _health(node, mps)
    availability = GpuAvailability(contention, health, shares.modes, limiter, node.watch, node.upgrade)
    dra = _dra(node, shares, mps, limiter, availability, pods)
    _follow(node, mps, dra, pods)
    verifier = _verifier(node, shares, mps, limiter, dra)
    own = EnforcerProcesses(node.attributor, mps.manager, _launcher(options))
    hidden = _hidden(node, own, verifier)
    audit_log.verify(manager, VERIFIER)
    node.metrics.registry.register(VerificationCollector(audit_log.verifier))
    enforced = enforced_quotas(options, manager, node.cluster, node.watch, node.checkpoint)
    parts = LoopDependencies(
        watch=node.watch, checkpoint=enforced, executor=_executor(node, mps, audit_log, hidden, enforced),
        audit_log=audit_log.writer, pods=pods.status, metrics=node.metrics, manager=manager, events=node.events,
        oom=pods.oom, clients=MpsClients(node.events), availability=availability,
        hidden=hidden, notices=HiddenNotices(node.events), utilization=node.utilization, verifier=verifier,
        claim_wait=pods.claim_wait, setup=setup_of(options),
    )  # fmt: skip
    enforcing = not options.no_enforce
    loop = EnforcementLoop(options.node, options.state, parts, rules=rules_of(options), enforcing=enforcing)
    _slices(node, shares, availability, dra, own, hidden)
    _driver_upgrade(node, shares, mps, limiter)
    _report(node, audit_log)
    return loop


def _node(
    options: argparse.Namespace, manager: Manager, reader: GpuReader | None, attributor: CgroupAttributor
) -> Node:
    nvml, metrics, writer = NvmlClient(command(options.driver_root)), Metrics(), ApiWriter()
    mps_due, slices_due, quotas_due = Wake(), Wake(), Wake()
    cluster = None if options.no_cluster else KubeClient.connect(options.kubeconfig)
    checkpoint, names = Checkpoint(options.state), ContainerNames(options.kubelet_root, quotas_due)
    watch = UsageSampler(reader or nvml, attributor, (mps_due, slices_due), checkpoint, names)
    utilization = UtilizationMonitor(watch, reader or nvml)
    manager.add_server("nvml", None, nvml.stop)
    manager.add_problem_check(lambda: nvml.problem, Reason.UNKILLABLE)
    manager.add_problem_check(lambda: names.problem, Reason.CONTAINER_UNKNOWN)
    manager.add_ready_check(lambda: watch.problem)
    manager.add("utilization", utilization.turn, every=UTILIZATION_EVERY, thread=NVML)
    if cluster is not None:
        manager.add_server("last writes", None, writer.run_once)
        manager.add("api-writer", writer.run_once, wake=writer.wake)
    if options.address is not None:
        server, serve = ExitStack(), partial(metrics_server.serve, "--metrics", options.address, metrics.registry)
        manager.add_server("metrics", lambda: server.callback(serve(manager.not_ready)), server.close)
    return Node(
        options=options, manager=manager, cluster=cluster, writer=writer, nvml=nvml, attributor=attributor, watch=watch,
        events=EventRecorder(cluster, options.node, writer), utilization=utilization, metrics=metrics,
        policy=policy_of(options), upgrade=DriverUpgrade((mps_due, slices_due)), mps_due=mps_due, slices_due=slices_due,
        checkpoint=checkpoint, names=names, quotas_due=quotas_due,
    )  # fmt: skip


def _shares(node: Node) -> Shares:
    """Build claims and modes. The flags decide how GPUs are shared, and with a cluster also the node's label."""
    options, manager, store = node.options, node.manager, ClaimStore(node.options.state)
    manager.add_problem_check(lambda: node.checkpoint.problem, Reason.CHECKPOINT_UNREADABLE)
    prepared = NoClaims() if node.cluster is None or options.no_dra else store
    default = Mode.TIME_SLICING if options.no_mps else options.mode
    labelled = node.cluster is not None and not options.no_mps
    modes = SharingModeController(prepared, default, node.mps_due, labelled=labelled)
    manager.add_problem_check(lambda: modes.problem, Reason.MODE_UNKNOWN)
    return Shares(store, prepared, modes)


def _contention(node: Node) -> ContentionMonitor | None:
    if node.cluster is None:
        return None
    ask = partial(allocatable, node.options.kubelet_root, optional=node.options.no_dra)
    contention = ContentionMonitor(node.cluster, node.options.node, ask, node.events, node.mps_due)
    node.manager.add_problem_check(contention.problems, Reason.API_UNREACHABLE)
    return contention


def _mps(node: Node, shares: Shares, contention: ContentionMonitor | None) -> Mps:
    """Build what supervises the daemons. NVML and the driver may come later."""
    options, incidents = node.options, IncidentLog()
    node.metrics.registry.register(IncidentCollector(incidents))
    reporter = IncidentReporter(incidents, shares.modes, node.events)
    node.manager.add("incidents", reporter.run_once, every=INCIDENTS_EVERY, thread=SCHEDULER)
    if options.no_mps:
        return Mps(None, None)
    manager, launcher = MpsManager(), _launcher(options)
    modes = None if options.keep_compute_mode else node.nvml
    inputs = PlannerInputs(
        watch=node.watch, shared=ShareableGpus(node.cluster, options.node, contention, shares.modes),
        modes=shares.modes, policy=node.policy, claims=shares.prepared, checkpoint=node.checkpoint,
        tools=DriverTools(modes, DriverRoot(options.driver_root), options.run, launcher, incidents),
        upgrade=node.upgrade,
    )  # fmt: skip
    keeper = MpsSupervisor(manager, DaemonPlanner(manager, options.run, inputs))
    node.manager.add_problem_check(keeper.problems, Reason.MPS_UNREACHABLE)
    every = options.mps_check_seconds
    node.manager.add("mps-logs", LogTail(options.run, manager).poll, every=every, thread=SCHEDULER)
    node.manager.add("mps", keeper.run_once, every=every, wake=node.mps_due)
    return Mps(manager, keeper)


def _launcher(options: argparse.Namespace) -> HostPodLauncher | None:
    return HostPodLauncher(options.run) if options.mps_host else None


def _limits(node: Node, shares: Shares) -> LimitApplier:
    limiter = LimitApplier(node.nvml, CgroupFolders(), node.options.limit_backend, shares.modes)
    node.manager.add_problem_check(limiter.problems, Reason.NOT_APPLIED)
    node.manager.add("limits", partial(limiter.run_once, node.watch, node.checkpoint), every=LIMIT_EVERY, thread=NVML)
    return limiter


def _health(node: Node, mps: Mps) -> GpuHealthMonitor | None:
    """Build the health monitor of the GPUs, where they are published."""
    if node.cluster is None or node.options.no_publish:
        return None
    health = GpuHealthMonitor(node.watch, node.nvml, mps.keeper, node.checkpoint, node.events, node.slices_due)
    restore = partial(health.restore, SlicePublisher(node.cluster, node.options.node))
    node.manager.add_server("health of before", restore, None)
    node.manager.add("health", health.check, every=LOOK_EVERY, thread=NVML)
    return health


def _pods(node: Node, shares: Shares, mps: Mps) -> Pods:
    status = PodStatusWriter(node.options.run, node.events, partial(takes_clients, shares.modes, mps.keeper))
    node.manager.add_problem_check(lambda: status.problem, Reason.AUDIT_UNWRITABLE)
    return Pods(status, OomReporter(node.events, node.metrics), TerminatingPods(), ClaimWait())


def _dra(
    node: Node, shares: Shares, mps: Mps, limiter: LimitApplier, availability: GpuAvailability, pods: Pods
) -> DraPlugin | None:
    """Build what prepares claims. It serves before anything is published, so that no pod comes for a claim in vain."""
    options = node.options
    if node.cluster is None or options.no_dra:
        return None
    setup = DraPluginConfig(
        node=options.node, state=options.state, run=options.run, kubelet_root=options.kubelet_root,
        cdi_root=options.cdi_root, policy=node.policy, cluster=node.cluster, writer=node.writer, store=shares.store,
        watch=node.watch, attributor=node.attributor, metrics=node.metrics, modes=shares.modes,
        modes_changed=node.mps_due, mps=mps.keeper, limiter=limiter, checkpoint=node.checkpoint,
        events=node.events, availability=availability, claim_wait=pods.claim_wait, upgrade=node.upgrade,
        listeners=(pods.oom, pods.departures), registered=node.slices_due, quotas_changed=node.quotas_due,
        shared_memory=options.mps_shared_memory, host_network=options.tenant_host_network, reserve=options.reserve,
        framework_variables=not options.no_framework_variables, default_compute=options.default_compute,
    )  # fmt: skip
    dra = DraPlugin(setup)
    dra.add_to(node.manager)
    return dra


def _follow(node: Node, mps: Mps, dra: DraPlugin | None, pods: Pods) -> None:
    """Follow the node's pods, and release the MPS clients of those that are deleted."""
    options, manager, cluster, departures = node.options, node.manager, node.cluster, pods.departures
    if cluster is None:
        return
    if mps.manager is not None:
        missing = partial(ask_for_missing, departures, cluster)
        manager.add("missing pods", missing, every=MISSING_EVERY, wake=departures.doubted, thread=SLICES)
        tools = ReleaserDependencies(
            departures=departures, checkpoint=node.checkpoint, processes=HostProcesses(node.attributor),
            metrics=node.metrics, stopped=manager.stopped,
        )  # fmt: skip
        release_in_time(manager, mps.manager, tools)
    allocated = AllocatedClaims(options.node)
    books = QuotaInformer(allocated, node.quotas_due, (pods.oom, departures)) if dra is None else dra.books
    add_informers(manager, cluster, books, options.node, node.checkpoint, node.names, node.quotas_due)


def _verifier(node: Node, shares: Shares, mps: Mps, limiter: LimitApplier, dra: DraPlugin | None) -> LimitVerifier:
    every, evidence = node.options.limit_verification_seconds, NodeEvidence(limiter, mps.manager, shares.modes)
    verifier = LimitVerifier(evidence, node.watch, node.checkpoint, node.events, dra, every)
    node.manager.add(VERIFIER, verifier.run_once, every=min(LOOK_AT_MOST_EVERY, every / 4))
    return verifier


def _hidden(node: Node, own: EnforcerProcesses, verifier: LimitVerifier) -> HiddenMemory:
    options, accounts = node.options, UnaccountedMonitor(node.options.state)
    descriptors = DescriptorReader(node.attributor, options.control_files)
    hidden = HiddenMemory(accounts, node.watch, descriptors, own, verifier.verified, options.unaccounted)
    node.manager.add_problem_check(hidden.problems, Reason.UNACCOUNTED_MEMORY)
    node.manager.add("known memory", accounts.record, every=RECORD_EVERY, thread=STATE)
    node.manager.add("descriptors", hidden.look, every=DESCRIPTORS_EVERY, wake=hidden.due, thread=VERIFIER)
    return hidden


def _executor(node: Node, mps: Mps, audit: AuditParts, hidden: HiddenMemory, enforced: Checkpoint) -> KillExecutor:
    quotas, killer = GuardedQuotas(node.options.state, enforced), ProcessKiller(mps.manager or MpsManager())
    parts = KillDependencies(
        usage=hidden, quotas=quotas, processes=HostProcesses(node.attributor), audit_log=audit.writer,
        killer=killer, events=node.events, containers=node.names,
    )  # fmt: skip
    return KillExecutor(node.options.node, parts, KillTimeouts(term=node.options.termination_timeout))


def _slices(
    node: Node, shares: Shares, availability: GpuAvailability, dra: DraPlugin | None, own: EnforcerProcesses,
    hidden: HiddenMemory,
) -> None:  # fmt: skip
    options, manager = node.options, node.manager
    if node.cluster is None or options.no_publish:
        return
    offering = SliceController(node.cluster, options.node, node.policy, availability, own, shares.modes, hidden)
    manager.add_problem_check(lambda: offering.problem, Reason.API_UNREACHABLE)
    manager.add_ready_check(lambda: None if offering.offered else offering.problem or "no ResourceSlices published yet")
    turns = SlicePublishing(offering, node.watch, node.checkpoint, node.slices_due, dra)
    manager.add("offer", turns.run_once, every=OFFER_EVERY, wake=node.slices_due, thread=SLICES)
    manager.add("offer-due", turns.wake_if_needed, every=options.poll_seconds, thread=SCHEDULER)


def _driver_upgrade(node: Node, shares: Shares, mps: Mps, limiter: LimitApplier) -> None:
    if node.cluster is None or node.options.no_dra:
        return
    parts = UpgradeDependencies(
        cluster=node.cluster, node=node.options.node, upgrade=node.upgrade, claims=shares.store, limiter=limiter,
        evictor=PodEvictor(node.cluster, node.events), checkpoint=node.checkpoint, nvml=node.nvml, mps=mps.keeper,
        events=node.events,
    )  # fmt: skip
    follow_upgrade(node.manager, parts, SLICES)


def _report(node: Node, audit_log: AuditParts) -> None:
    """Keep the audit log's head and the enforcer's report in the annotations of the node's ResourceSlices."""
    if node.cluster is not None:
        anchor = audit_log.publish_head(node.manager, node.cluster, node.events)
        reported = partial(audit_log.reported, node.options, node.metrics, anchor)
        report = ReportPublisher(node.cluster, node.options.node, reported)
        node.manager.add_ready_check(report.stale)
        node.manager.add("report", report.run_once, every=REPORT_EVERY, thread=SLICES)
