"""``gpu-share enforcer``: puts one node's agent together and runs it until it is told to stop.

Exit codes: 0 stopped when asked to, 1 something it cannot do without failed, 2 wrong use.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import prometheus_client
import structlog

from enforcer import lock
from enforcer.act import Executor, MpsClient, NoMps, Patience, Tools, close_interrupted
from enforcer.attribute import Attributor
from enforcer.audit import FOLDER, KillLog
from enforcer.checkpoint import Checkpoint
from enforcer.cluster import Books, PodEvents, follow_quotas
from enforcer.dra.podresources import allocatable
from enforcer.dra.running import KubeletSide, Setup
from enforcer.driver_root import HERE, DriverRoot
from enforcer.gpu import NvmlReader
from enforcer.health import Effect
from enforcer.inventory import InventoryPolicy, Mode, Order
from enforcer.judge import Rules
from enforcer.loop import Agent, Parts
from enforcer.metrics import Metrics
from enforcer.model import GpuReader, Quota
from enforcer.mps_manager import MpsManager
from enforcer.notice import Notice, Sink
from enforcer.offering import EVERY, MPS_EVERY, MpsKeeper, MpsTools, Offering, Shared, daemons, every
from enforcer.outlet import Outlet
from enforcer.proc import CgroupAttributor, in_initial_pid_namespace
from enforcer.sharing import Sharing
from enforcer.watch import Watch
from gpushare.cluster import Cluster
from gpushare.errors import ConfigError, GpuShareError, NvmlError, RecordError
from gpushare.reasons import Reason

FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
FLUSH_SECONDS: Final = 5.0
MIN_POLL: Final = 0.01
MAX_POLL: Final = 60.0
MAX_TERM_WAIT: Final = 300.0
"""Seconds. What is no number in these bounds would spin, hang, or fail between a signal and its record."""
LEVELS: Final = ("debug", "info", "warning", "error")

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
        _log_to_stderr(options.log_level)
        return _run(options, reader or _nvml(options), attributor or CgroupAttributor())
    except ConfigError as error:
        sys.stderr.write(f"gpu-share enforcer: {error.message}\n")
        return WRONG_USE
    except GpuShareError as error:
        sys.stderr.write(f"gpu-share enforcer: {error.message}\n")
        return NOT_FINE


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options; argparse itself exits with 2 on unknown ones.

    Raises:
        ConfigError: a value cannot be used.
    """
    options = _parser().parse_args(argv)
    if not options.node:
        raise ConfigError("--node is missing; name this node, or set NODE_NAME")
    if not MIN_POLL <= options.poll <= MAX_POLL:
        raise ConfigError(
            f"--poll {options.poll} is no interval; write seconds from {MIN_POLL} to {MAX_POLL}, such as 0.5"
        )
    if not 0 <= options.term_wait <= MAX_TERM_WAIT:
        raise ConfigError(f"--term-wait {options.term_wait} is no wait; write seconds from 0 to {MAX_TERM_WAIT}")
    if options.max_kills < 1:
        raise ConfigError(f"--max-kills {options.max_kills} ends nobody; use --no-enforce for that")
    options.address = _address(options.metrics)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-share enforcer", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--node", default=os.environ.get("NODE_NAME", ""), help="name of this node ($NODE_NAME)")
    add("--state", type=Path, default=Path("/var/lib/gpu-share"), help="checkpoint, status and kill log (%(default)s)")
    add("--run", type=Path, default=Path("/run/gpu-share"), help="MPS pipes and logs (%(default)s)")
    add("--poll", type=float, default=0.5, metavar="S", help="seconds between looks (%(default)s)")
    add("--kubeconfig", metavar="FILE", help="how to reach the cluster (in a pod: its service account)")
    add("--no-cluster", action="store_true", help="no API server: quotas come from the checkpoint alone")
    add("--no-enforce", action="store_true", help="warn only, end nobody")
    add("--no-mps", action="store_true", help="run no MPS daemons, end processes by signals alone")
    add("--no-dra", action="store_true", help="serve no kubelet: quotas come from allocated claims as they are")
    add("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's directory (%(default)s)")
    add("--cdi-root", type=Path, default=Path("/var/run/cdi"), help="where CDI specs go (%(default)s)")
    add("--driver-root", type=Path, default=HERE, help="root of the node's NVIDIA driver (%(default)s)")
    add(
        "--health-taint", type=Effect, choices=list(Effect), default=Effect.NO_SCHEDULE,
        help="taint of a GPU that is not well (%(default)s)",
    )  # fmt: skip
    add("--no-publish", action="store_true", help="offer no GPUs to the scheduler")
    add("--order", type=Order, choices=list(Order), default=Order.BINPACK, help="which GPU first (%(default)s)")
    add(
        "--max-kills", type=int, default=Rules().kills, metavar="N", help="containers acted upon a minute (%(default)s)"
    )
    add("--term-wait", type=float, default=Patience().term, metavar="S", help="SIGTERM to SIGKILL (%(default)s)")
    add("--metrics", default="", metavar="HOST:PORT", help="serve metrics there (default: nowhere)")
    add("--log-level", choices=LEVELS, default="info", help="(%(default)s)")
    add("--allow-any-pid-namespace", action="store_true", help="for tests: NVML's pids are those of this namespace")
    return parser


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ConfigError(f"--metrics {text!r} is no address; write HOST:PORT, such as 127.0.0.1:9402")
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class Side:
    """What runs beside the loop, and what hinders it."""

    stopped: threading.Event = field(default_factory=threading.Event)
    problems: list[Callable[[], Sequence[str]]] = field(default_factory=list)
    mps: tuple[MpsManager, MpsKeeper] | None = None
    """The daemons, where there are any."""
    sharing: Sharing = field(default_factory=lambda: Sharing(None, "", tuple))
    """Which GPUs may be shared."""

    def failures(self) -> Mapping[str, GpuShareError]:
        """Say which daemons do not serve."""
        return {} if self.mps is None else self.mps[1].failures

    def servers(self) -> frozenset[int]:
        """Say which processes are MPS's own."""
        return frozenset() if self.mps is None else self.mps[0].pids()

    def complain(self, get: Callable[[], str | None]) -> None:
        """Ask this for a problem after every look."""
        self.problems.append(lambda: [problem] if (problem := get()) is not None else [])

    def all(self) -> list[str]:
        """All there is to complain about."""
        return list(chain.from_iterable(get() for get in self.problems))


@dataclass(frozen=True, slots=True)
class Seeing:
    """What is seen, by whom, and what is counted."""

    watch: Watch
    attributor: Attributor
    metrics: Metrics


class LoggedNotices:
    """Without an API server, notices go to the log alone."""

    def notify(self, notice: Notice) -> None:
        """Write it."""
        log.info("notice", reason=str(notice.reason), pod=notice.quota.pod, note=notice.note)


def _run(options: argparse.Namespace, reader: GpuReader, attributor: Attributor) -> int:
    side = Side()
    with ExitStack() as stack:
        stack.enter_context(lock.held(options.state))
        _check_namespace(options)
        kill_log = KillLog(options.state / FOLDER)
        stack.callback(kill_log.close)
        stack.callback(reader.close)
        _open(kill_log, options.node, side)
        checkpoint = Checkpoint(options.state)
        side.complain(lambda: checkpoint.problem)
        watch = Watch(reader, attributor)
        cluster = None if options.no_cluster else Cluster.connect(options.kubeconfig)
        sink = _sink(cluster, options.node, side)
        side.sharing = Sharing(cluster, options.node, partial(allocatable, options.kubelet_root))
        side.problems.append(lambda: list(side.sharing.problems()))
        mps = _mps(options, watch, cluster, side)
        tools = Tools(eyes=watch, attributor=attributor, kill_log=kill_log, mps=mps, sink=sink)
        executor = Executor(options.node, tools, Patience(term=options.term_wait))
        metrics = _metrics(options.address, stack)
        parts = Parts(
            watch=watch, quotas=checkpoint.read, executor=executor, kill_log=kill_log, sink=sink, metrics=metrics,
            problems=side.all, catch_up=executor.catch_up, standing=side.sharing.now,
        )  # fmt: skip
        rules = Rules(kills=options.max_kills, max_step=max(Rules().max_step, 4 * options.poll))
        agent = Agent(options.node, options.state, parts, rules=rules, enforcing=not options.no_enforce)
        if cluster is not None:
            seeing = Seeing(watch, attributor, metrics)
            kubelet = None if options.no_dra else _kubelet(options, cluster, checkpoint, seeing, side)
            if kubelet is not None:
                stack.callback(kubelet.stop)
            _join_cluster(options, cluster, checkpoint, seeing, kubelet, side)
        _serve(agent, options, side)
        if isinstance(sink, PodEvents):
            sink.flush(FLUSH_SECONDS)
    return FINE


def _serve(agent: Agent, options: argparse.Namespace, side: Side) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: side.stopped.set())
    log.info(
        "watching", reason=str(Reason.ENFORCER_STARTED), node=options.node, state=str(options.state),
        enforcing=not options.no_enforce, poll=options.poll,
    )  # fmt: skip
    agent.run(side.stopped, options.poll)
    log.info("stopped", reason=str(Reason.ENFORCER_STOPPED), node=options.node)


def _check_namespace(options: argparse.Namespace) -> None:
    """In another pid namespace than the host's, NVML's pids are somebody else's.

    Raises:
        ConfigError: we are in one.
    """
    if not (options.allow_any_pid_namespace or in_initial_pid_namespace()):
        message = "this is not the host's pid namespace, so NVML's pids would mean other processes; set hostPID: true"
        raise ConfigError(message, Reason.NOT_INITIAL_PID_NAMESPACE)


def _open(kill_log: KillLog, node: str, side: Side) -> None:
    """Open the kill log. While it cannot be written nobody is killed, but everything is still watched."""
    try:
        close_interrupted(kill_log, node, kill_log.open())
    except RecordError as error:
        log.critical("nobody will be killed until it can", reason=str(error.reason), error=error.message)
    side.complain(lambda: kill_log.problem)


def _sink(cluster: Cluster | None, node: str, side: Side) -> Sink:
    if cluster is None:
        return LoggedNotices()
    events = PodEvents(cluster, node)
    events.start(side.stopped)
    return events


def _policy(options: argparse.Namespace) -> InventoryPolicy:
    mode = Mode.WATCH_ONLY if options.no_mps else Mode.MPS
    return InventoryPolicy(order=options.order, mode=mode, health_taint=options.health_taint)


def _nvml(options: argparse.Namespace) -> NvmlReader:
    """Make a reader of its own for whoever asks: readers are not shared between threads."""
    return NvmlReader(load=DriverRoot(options.driver_root).load)


def _mps(options: argparse.Namespace, watch: Watch, cluster: Cluster | None, side: Side) -> MpsClient:
    """Start the daemons' keeper; without GPUs to be seen there are none to start."""
    if options.no_mps:
        return NoMps()
    try:
        gpus = [view.gpu for view in watch.look()]
    except NvmlError as error:
        raise NvmlError(f"{error.message} MPS daemons cannot be started without it (--no-mps does without)") from error
    driver = DriverRoot(options.driver_root)
    tools = MpsTools(_nvml(options), driver.program(), driver.environment(options.run))
    manager = daemons(gpus, options.run, _policy(options), tools)
    keeper = MpsKeeper(manager, Shared(cluster, options.node, gpus, manager.noted(), side.sharing.contested))
    side.problems.append(lambda: list(keeper.problems()))
    every(MPS_EVERY, "mps", keeper.turn, side.stopped, side.sharing.healed)
    side.mps = (manager, keeper)
    return manager


def _metrics(address: tuple[str, int] | None, stack: ExitStack) -> Metrics:
    metrics = Metrics()
    if address is not None:
        try:
            server, thread = prometheus_client.start_http_server(address[1], address[0], metrics.registry)
        except OSError as error:
            raise ConfigError(f"--metrics {address[0]}:{address[1]} cannot be listened on: {error}") from error
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
    return metrics


def _kubelet(
    options: argparse.Namespace, cluster: Cluster, checkpoint: Checkpoint, seeing: Seeing, side: Side
) -> KubeletSide:
    """Start serving the kubelet: before anything is offered, so that no pod comes for a claim nobody prepares."""
    kubelet = KubeletSide(
        Setup(
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
            mps=side.mps,
            quotas=checkpoint.read,
        )
    )
    side.problems.append(lambda: list(kubelet.problems()))
    kubelet.start(side.stopped)
    return kubelet


def _join_cluster(
    options: argparse.Namespace,
    cluster: Cluster,
    checkpoint: Checkpoint,
    seeing: Seeing,
    kubelet: KubeletSide | None,
    side: Side,
) -> None:
    books = Books(options.node) if kubelet is None else kubelet.books
    follow_quotas(cluster, books, options.node, partial(_keep, checkpoint), side.stopped)
    if options.no_publish:
        return
    offering = Offering(cluster, options.node, _policy(options), side.sharing.standing, _own_pods(seeing), side.servers)
    side.complain(lambda: offering.problem)
    offer = partial(_offer, offering, seeing.watch, checkpoint, kubelet)
    changed = threading.Event() if kubelet is None else kubelet.registered
    side.sharing.examine(lambda: seeing.watch.latest, _nvml(options), side.failures, changed, side.stopped)
    every(EVERY, "offer", offer, side.stopped, changed)


def _own_pods(seeing: Seeing) -> frozenset[str]:
    """Name our own pod: MPS's servers are in it, and what they hold is taken off the capacity anyway."""
    me = seeing.attributor.identify(os.getpid())
    return frozenset({me.owner.pod_uid}) if me is not None and me.owner is not None else frozenset()


def _keep(checkpoint: Checkpoint, quotas: Sequence[Quota]) -> None:
    try:
        checkpoint.write(quotas)
    except OSError as error:
        log.warning("quotas not written", reason=str(Reason.RECORD_UNWRITABLE), error=str(error))


def _offer(offering: Offering, watch: Watch, checkpoint: Checkpoint, kubelet: KubeletSide | None) -> None:
    if kubelet is not None and kubelet.problem is not None:
        return  # nobody would prepare what is offered
    try:
        views = watch.look()
    except NvmlError as error:
        log.warning("GPUs not offered", reason=str(error.reason), error=error.message)
        return
    offering.publish(views, checkpoint.read(), kubelet.leaving() if kubelet is not None else ())


def _log_to_stderr(level: str) -> None:
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(Outlet(sys.stderr)),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
