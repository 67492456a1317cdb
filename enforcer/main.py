"""``gpu-share enforcer``: puts one node's enforcer together and runs it until it is told to stop.

Exit codes: 0 stopped when asked to, 1 something it cannot do without failed, 2 wrong use.
"""

import argparse
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import structlog

from enforcer.attribution.cgroup import Attributor
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor, in_initial_pid_namespace, is_alive
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import FOLDER, AuditLog
from enforcer.audit.writer import AuditWriter, record_writer
from enforcer.build import LogEventRecorder, Seeing, Side, annotate_slices, setup_of, sharing_modes
from enforcer.detection.debt import Terms
from enforcer.detection.types import DetectorConfig
from enforcer.dra.plugin import DraPlugin, DraPluginConfig
from enforcer.dra.podresources import allocatable
from enforcer.flags import parse
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, MpsClient, NullMpsClient
from enforcer.limits.applier import LimitApplier
from enforcer.limits.cgroup_paths import CgroupFolders
from enforcer.limits.verifier import LimitVerifier, NodeEvidence, VerifierSinks, start_limit_applier, start_verifier
from enforcer.loop import EnforcementLoop, LoopDependencies
from enforcer.mps.desired_daemons import DaemonConfig, DaemonPlanner, PlannerInputs, ShareableGpus
from enforcer.mps.event_reporter import start_incident_reporter
from enforcer.mps.launcher import HostPodLauncher
from enforcer.mps.log_tailer import LogTail
from enforcer.mps.manager import MpsManager
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.client import NvmlClient
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.types import GpuReader
from enforcer.nvml.worker_process import command
from enforcer.oom.reporter import OomReporter, call_both
from enforcer.pod_deletion.client_release import departing, released_in_time
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.informer import QuotaInformer, follow_quotas
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.contention import Allocatable
from enforcer.resourceslices.controller import SliceController, Turns
from enforcer.resourceslices.devices import InventoryPolicy
from enforcer.resourceslices.health_monitor import Tenants
from enforcer.runtime import capabilities, lock
from enforcer.runtime.background import run_periodically
from enforcer.runtime.logs import configure_logging
from enforcer.status.events import NodeEventRecorder, PodEventRecorder
from enforcer.status.messages import EventSink
from enforcer.status.metrics import Metrics
from enforcer.status.mps_clients import MpsClients
from enforcer.status.pod_status_files import PodStatusWriter
from enforcer.status.unattributed_monitor import Kernels, keep_sampling
from gpushare import metrics_server
from gpushare.errors import ConfigError, GpuShareError, KubeletError, RecordError
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason
from gpushare.signals import stopped_by_signal

FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
FLUSH_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 1.0
log = structlog.get_logger()


def main(argv: Sequence[str], *, reader: GpuReader | None = None, attributor: Attributor | None = None) -> int:
    """Run ``gpu-share enforcer`` and return its exit code.

    Args:
        argv: the arguments.
        reader: another door to the GPUs than NVML.
        attributor: another way to tell whose a process is than its cgroup, where cgroups cannot be made.
    """
    try:
        options = parse(argv)
        configure_logging(options.log_level)
        return _run(options, reader, attributor or CgroupAttributor())
    except ConfigError as error:
        sys.stderr.write(f"gpu-share enforcer: {error.reason}: {error.message}\n")
        return WRONG_USE
    except GpuShareError as error:
        sys.stderr.write(f"gpu-share enforcer: {error.reason}: {error.message}\n")
        return NOT_FINE


def _run(options: argparse.Namespace, reader: GpuReader | None, attributor: Attributor) -> int:
    side = Side(nvml=NvmlClient(command(options.driver_root)))
    with ExitStack() as stack:
        if options.drop_capabilities:
            capabilities.drop_unneeded(daemons=not (options.no_mps or options.mps_host))
        hold = stack.enter_context(lock.acquire_lock(options.state, wait=True))
        _check_namespace(options)
        written = AuditLog(options.state / FOLDER, retention=options.retention)
        audit_log = AuditWriter(written, options.node, lost=hold.lost)
        stack.callback(audit_log.close)
        side.complain(lambda: written.shortage)
        stack.callback(side.nvml.stop)
        side.complain(lambda: side.nvml.problem)
        if options.audit_to == "stdout":
            written.listeners.append(record_writer(sys.stdout))
        _open(audit_log, side)
        checkpoint = Checkpoint(options.state)
        side.complain(lambda: checkpoint.problem)
        nvml = reader or side.nvml
        watch = UsageSampler(nvml, attributor, side.gpus_changed, alive=is_alive, together=side.nvml.look)
        side.hindrances.append(lambda: watch.problem)
        kernels: Kernels = side.nvml.ran_kernels if reader is None else lambda *_: None
        unattributed = keep_sampling(lambda: watch.latest, kernels, side.stopped)
        seeing = Seeing(watch, attributor, Metrics(), unattributed.growth)
        cluster = None if options.no_cluster else KubeClient.connect(options.kubeconfig)
        sink = _sink(cluster, options.node)
        _know_sharing(options, cluster, side)
        mps = _mps(options, watch, cluster, checkpoint, side)
        limiter = _limits(options, watch, checkpoint, side)
        pods = PodStatusWriter(options.run, sink, side.ready)
        side.complain(lambda: pods.problem)
        side.tell = pods.notify
        outlets = VerifierSinks(notify=pods.notify, changed=side.prove)
        prover = LimitVerifier(NodeEvidence(limiter, side.daemons), lambda: watch.latest, checkpoint.read, outlets)
        quotas = GuardedQuotas(options.state, checkpoint)
        tools = KillDependencies(
            usage=watch, quotas=quotas, processes=HostProcesses(attributor), audit_log=audit_log, mps=mps, sink=pods
        )
        enforcer = _enforcer(options, seeing, checkpoint, tools, pods, prover, side)
        side.exceeding = enforcer.exceeding
        _tell_operators(stack, options, cluster, seeing.metrics, side)
        if cluster is not None:
            _join_cluster(stack, options, cluster, checkpoint, seeing, side)
            annotate_slices(options, cluster, written, audit_log, seeing.metrics, side)
        start_verifier(prover, options.limit_verification_seconds, side.stopped)
        run_periodically(LOCK_SECONDS, "lock", partial(hold.stop_when_lost, side.stopped), side.stopped)
        _serve(enforcer, options, side)
        if isinstance(sink, PodEventRecorder):
            sink.flush(FLUSH_SECONDS)
        return FINE if hold.lost() is None else NOT_FINE


def _enforcer(
    options: argparse.Namespace,
    seeing: Seeing,
    checkpoint: Checkpoint,
    tools: KillDependencies,
    pods: PodStatusWriter,
    prover: LimitVerifier,
    side: Side,
) -> EnforcementLoop:
    """Make the loop, and what listens to the ends of containers beside it."""
    watch, executor = seeing.watch, KillExecutor(options.node, tools, KillTimeouts(term=options.termination_timeout))
    inquest = OomReporter(pods, seeing.metrics)
    side.listeners.append(inquest)
    parts = LoopDependencies(
        watch=watch, quotas=checkpoint.read, executor=executor, audit_log=tools.audit_log, sink=pods,
        reap_pending=executor.reap_pending, metrics=seeing.metrics, problems=side.all,
        tell_pods=call_both(call_both(inquest.look, MpsClients(pods).look), pods.write),
        standing=lambda: side.now(watch.latest), findings=inquest.findings, tell_operators=side.tell_operators,
        proven=lambda: prover.proven, growth=seeing.growth, setup=setup_of(options),
    )  # fmt: skip
    debt = Terms(credit=options.debt_credit, refill=options.debt_refill, first=options.poll_seconds)
    rules = DetectorConfig(
        kills=options.max_kills_per_minute, max_gap=max(DetectorConfig().max_gap, 4 * options.poll_seconds), debt=debt
    )
    return EnforcementLoop(options.node, options.state, parts, rules=rules, enforcing=not options.no_enforce)


def _tell_operators(
    stack: ExitStack, options: argparse.Namespace, cluster: KubeClient | None, metrics: Metrics, side: Side
) -> None:
    """Report what happens to daemons, and serve metrics and readiness."""
    start_incident_reporter(
        side.incidents, side.news, NodeEventRecorder(cluster, options.node), metrics.registry, side.stopped
    )
    if options.address is not None:
        stack.callback(metrics_server.serve("--metrics", options.address, metrics.registry, side.hindrance))


def _serve(enforcer: EnforcementLoop, options: argparse.Namespace, side: Side) -> None:
    stopped_by_signal(side.stopped)
    log.info(
        "watching", reason=str(Reason.ENFORCER_STARTED), node=options.node, state=str(options.state),
        enforcing=not options.no_enforce, poll=options.poll_seconds,
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # what is there now stays: looking through all of it again and again takes longer than a look
    enforcer.run(side.stopped, options.poll_seconds)
    log.info("stopped", reason=str(Reason.ENFORCER_STOPPED), node=options.node)


def _check_namespace(options: argparse.Namespace) -> None:
    """In another pid namespace than the host's, NVML's pids are somebody else's.

    Raises:
        ConfigError: we are in one.
    """
    if not (options.allow_any_pid_namespace or in_initial_pid_namespace()):
        message = "this is not the host's pid namespace, so NVML's pids would mean other processes; set hostPID: true"
        raise ConfigError(message, Reason.NOT_INITIAL_PID_NAMESPACE)


def _open(audit_log: AuditWriter, side: Side) -> None:
    """Open the audit log. While it cannot be written nobody is killed, but everything is still watched."""
    try:
        audit_log.open()
    except RecordError as error:
        log.critical("nobody will be killed until it can", reason=str(error.reason), error=error.message)
    side.complain(lambda: audit_log.problem)


def _sink(cluster: KubeClient | None, node: str) -> EventSink:
    if cluster is None:
        return LogEventRecorder()
    events = PodEventRecorder(cluster, node)
    events.start()
    return events


def _others(options: argparse.Namespace) -> Callable[[], Allocatable]:
    """Ask the kubelet what others offer. Where it is not served it may not be there at all."""
    ask = partial(allocatable, options.kubelet_root)

    def found() -> Allocatable:
        try:
            return ask()
        except KubeletError:
            return ()

    return found if options.no_dra else ask


def _policy(options: argparse.Namespace) -> InventoryPolicy:
    return InventoryPolicy(
        order=options.within_node, mode=options.mode, health_taint=options.health_taint, compute=options.compute
    )


def _know_sharing(options: argparse.Namespace, cluster: KubeClient | None, side: Side) -> None:
    """Learn which GPUs may be shared, and how."""
    side.sharing = GpuAvailability(cluster, options.node, _others(options))
    side.problems.append(lambda: list(side.sharing.problems()))
    side.modes = sharing_modes(options, cluster, side.sharing.healed)
    side.complain(lambda: side.modes.problem)


def _mps(
    options: argparse.Namespace, watch: UsageSampler, cluster: KubeClient | None, checkpoint: Checkpoint, side: Side
) -> MpsClient:
    """Start the daemons' keeper. NVML and the driver may come later."""
    if options.no_mps:
        return NullMpsClient()
    manager = MpsManager()
    sources = PlannerInputs(
        gpus=lambda: [view.gpu for view in watch.look()],
        shared=ShareableGpus(cluster, options.node, side.sharing.contended, side.modes),
        modes=side.modes,
        policy=partial(_policy, options),
        claimed=partial(_claimed, checkpoint, side),
        tools=partial(_tools, options, side),
    )
    keeper = MpsSupervisor(manager, DaemonPlanner(manager, options.run, sources))
    side.problems.append(lambda: list(keeper.problems()))
    side.serves, side.mps = keeper.serves, (manager, keeper)
    side.wakes.append(side.modes.changed)
    run_periodically(
        options.mps_check_seconds, "mps-logs", LogTail(options.run, lambda: manager.daemons).look, side.stopped
    )
    run_periodically(options.mps_check_seconds, "mps", keeper.turn, side.stopped, side.modes.changed)
    return manager


def _tools(options: argparse.Namespace, side: Side) -> DaemonConfig:
    """Find what daemons are run with; asked again each time, for a driver may be upgraded. Raises ``MpsError``."""
    driver = DriverRoot(options.driver_root)
    launcher = HostPodLauncher(options.run) if options.mps_host else None
    return DaemonConfig(
        side.nvml,
        driver.program(),
        driver.environment(options.run),
        launcher,
        side.incidents,
    )


def _claimed(checkpoint: Checkpoint, side: Side) -> frozenset[str] | None:
    """Name the GPUs that claims or quotas are on; ``None`` until the claims were read."""
    claims = side.claimed()
    return None if claims is None else claims | {quota.gpu for quota in checkpoint.read()}


def _limits(options: argparse.Namespace, watch: UsageSampler, checkpoint: Checkpoint, side: Side) -> LimitApplier:
    limiter = LimitApplier(side.nvml, CgroupFolders(), options.limit_backend, side.through_mps)
    side.problems.append(lambda: list(limiter.problems()))
    side.backends = limiter.backends
    start_limit_applier(limiter, watch, checkpoint.read, side.stopped)
    return limiter


def _kubelet(
    options: argparse.Namespace, cluster: KubeClient, checkpoint: Checkpoint, seeing: Seeing, side: Side
) -> DraPlugin:
    """Start serving the kubelet: before anything is offered, so that no pod comes for a claim nobody prepares."""
    kubelet = DraPlugin(
        DraPluginConfig(
            node=options.node,
            state=options.state,
            run=options.run,
            kubelet_root=options.kubelet_root,
            cdi_root=options.cdi_root,
            policy=_policy(options),
            cluster=cluster,
            watch=seeing.watch,
            attributor=seeing.attributor,
            metrics=seeing.metrics,
            modes=side.modes,
            mps=None if side.mps is None else side.mps[1],
            backends=side.backends,
            quotas=checkpoint.read,
            tell=side.tell,
            exceeding=side.exceeding,
            health=lambda: side.sharing.health(seeing.watch.latest),
            shared_memory=options.mps_shared_memory,
            host_network=options.tenant_host_network,
            reserve=options.reserve,
            framework_variables=not options.no_framework_variables,
        )
    )
    side.problems.append(lambda: list(kubelet.problems()))
    side.hindrances.append(lambda: kubelet.problem)
    side.announce = kubelet.prove
    kubelet.start(side.stopped)
    side.claimed = kubelet.claimed
    return kubelet


def _join_cluster(
    stack: ExitStack,
    options: argparse.Namespace,
    cluster: KubeClient,
    checkpoint: Checkpoint,
    seeing: Seeing,
    side: Side,
) -> None:
    kubelet = None if options.no_dra else _kubelet(options, cluster, checkpoint, seeing, side)
    if kubelet is not None:
        stack.callback(kubelet.stop)
    books = QuotaInformer(options.node) if kubelet is None else kubelet.books
    books.listeners.extend(side.listeners)
    if side.mps is not None:
        departures = departing(books, cluster, side.stopped)
        released_in_time(departures, side.mps[0], checkpoint.read, seeing.attributor, seeing.metrics, side.stopped)
    follow_quotas(cluster, books, options.node, checkpoint.write, side.stopped)
    if not options.no_publish:
        _keep_offering(options, cluster, checkpoint, seeing, kubelet, side)


def _keep_offering(
    options: argparse.Namespace,
    cluster: KubeClient,
    checkpoint: Checkpoint,
    seeing: Seeing,
    kubelet: DraPlugin | None,
    side: Side,
) -> None:
    own = _own_pods(options, seeing)
    if kubelet is None:
        side.modes.follow(dict)  # without prepared claims nobody says how a GPU was shared
    offering = SliceController(cluster, options.node, _policy(options), side.standing, own, side.servers, side.modes)
    side.complain(lambda: offering.problem)
    side.hindrances.append(lambda: None if offering.offered else offering.problem or "GPUs are not on offer yet")
    changed = threading.Event() if kubelet is None else kubelet.registered
    tenants = Tenants(checkpoint.read, side.tell)
    side.sharing.examine(lambda: seeing.watch.latest, side.nvml, side.failures, changed, side.stopped, tenants)
    side.wakes.append(changed)
    Turns(offering, seeing.watch, checkpoint.read, kubelet).keep(options.poll_seconds, changed, side.stopped)


def _own_pods(options: argparse.Namespace, seeing: Seeing) -> Callable[[], frozenset[str]]:
    """Name the pods that MPS's servers may be in: ours and the daemons' host. What they hold is taken off anyway."""

    def found() -> frozenset[str]:
        pids = [os.getpid(), HostPodLauncher(options.run).pid() if options.mps_host else None]
        seen = [seeing.attributor.identify(pid) for pid in pids if pid is not None]
        return frozenset(each.owner.pod_uid for each in seen if each is not None and each.owner is not None)

    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
