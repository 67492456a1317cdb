"""Releasing MPS clients of pods that are being deleted, before the kubelet kills them.

A worker thread for each GPU: one daemon that does not answer keeps no other GPU's pods waiting.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import structlog

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import PidHandle
from enforcer.kill.pidfd_target import is_protected
from enforcer.mps.manager import MpsManager
from enforcer.pod_deletion.deadlines import TerminationDeadline, by_deadline, release_interval
from enforcer.pod_deletion.terminating_pods import TerminatingPods
from enforcer.quota.checkpoint import Checkpoint
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.runtime.manager import Manager, Wake
from enforcer.status.metrics import Metrics
from gpushare.errors import MpsError
from gpushare.kube_client import CORE_V1, KubeClient, find, path
from gpushare.reasons import Reason

log = structlog.get_logger()

RELIST: Final = 1.0
"""Seconds between two questions for the clients, while pods are about to be killed."""
LOOK: Final = 0.2
"""Seconds between two looks at who is leaving, where the next pod's turn comes while the list is good enough."""
SLOW: Final = 10.0
"""The same for pods that should long be dead: what is left of them hangs."""
OVERDUE: Final = 5.0
ROUND: Final = 4.0
"""Seconds for which one list of clients is good enough to act on, or so many times what it took, unless the turn of
another pod has come meanwhile: the processes are pinned, so an old list lacks only those that came later.
"""
LONGEST: Final = 15.0
"""The same at the very most."""


class DaemonClients:
    """The clients of a GPU's daemon, which comes and goes.

    Args:
        manager: of the daemons.
        gpu: the GPU's UUID.
    """

    def __init__(self, manager: MpsManager, gpu: str) -> None:
        self._manager, self._gpu = manager, gpu

    def clients(self) -> dict[int, int]:
        """Pids of all clients, each with its server's; none where no daemon was started. Raises ``MpsError``."""
        daemon = self._manager.daemons.get(self._gpu)
        return {} if daemon is None or not daemon.noted else daemon.all_clients()

    def release(self, server: int, pid: int, ended: Callable[[], bool]) -> str | None:
        """Terminate a client; ``None``, or the answer of MPS. Raises ``MpsError``.

        ``ended`` says whether it has ended, up to the command to the daemon: its pid may be another's then.
        """
        daemon = self._manager.daemons.get(self._gpu)
        return "the daemon has ended" if daemon is None else daemon.client.terminate(server, pid, None, ended)


@dataclass(frozen=True, slots=True)
class Client:
    """A pinned process, and the server it is a client of."""

    identity: Identity
    handle: PidHandle
    server: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaserDependencies:
    """What a worker needs."""

    departures: TerminatingPods
    checkpoint: Checkpoint
    processes: HostProcesses
    metrics: Metrics
    stopped: threading.Event
    clock: Clock = CLOCK


class ClientReleaser:
    """The releases on one GPU, one after the other.

    Args:
        gpu: its UUID.
        served: its daemon.
        tools: see there.
    """

    def __init__(self, gpu: str, served: DaemonClients, tools: ReleaserDependencies) -> None:
        self._gpu, self._served, self._tools = gpu, served, tools
        self._silent = False
        self._crowd: set[str] = set()
        """Pods that are leaving and were seen to use the GPU meanwhile."""
        self._asked: set[str] = set()
        """Pods that are leaving whose clients have been asked for, once at half of their grace."""
        self._asking = 0.0
        """Seconds that it took the last time."""
        self._tried: set[str] = set()
        """Pods that had their turn in rounds that came to no end: those that never let go must not hold up the rest."""
        self.woken: Final = Wake()

    def turn(self) -> None:
        """Go on until no pod is leaving this GPU."""
        while not self._tools.stopped.is_set() and (wait := self.step()) is not None:
            self.woken.wait(wait)
            self.woken.clear()

    def step(self) -> float | None:
        """Release those whose time has come; seconds until there may be more to do, ``None`` where nobody leaves."""
        now = self._tools.clock.monotonic()
        leaving = self._leaving()
        if not leaving:
            return None
        first = min(self._due(each, len(leaving)) for each in leaving)
        if first > now:
            return first - now
        try:
            cut_short = self._round(leaving, now)
            self._silent = False
        except MpsError as error:
            cut_short = False
            self._complain(error)
        if cut_short:
            return 0.0
        return RELIST if any(now < each.end + OVERDUE for each in leaving) else SLOW

    def _leaving(self) -> list[TerminationDeadline]:
        return self._tools.departures.of_gpu(
            {each.pod_uid for each in self._tools.checkpoint.read() if each.gpu == self._gpu}
        )

    def _due(self, departure: TerminationDeadline, beside: int) -> float:
        """When there is something to do for a pod: at half of its grace a first look, to know how long one takes."""
        return departure.due(beside, self._asking) if departure.uid in self._asked else departure.earliest

    def _round(self, leaving: Sequence[TerminationDeadline], now: float) -> bool:
        """Ask once who the clients are, and release those in turn; whether time ran out first. Raises ``MpsError``."""
        with ExitStack() as stack:
            pinned = self._hold(stack, {each.uid for each in leaving})
            listed = self._tools.clock.monotonic()
            self._asking, self._asked = listed - now, {each.uid for each in leaving if each.earliest <= now}
            self._crowd = {each.uid for each in leaving} & (self._crowd | pinned.keys())
            done: set[str] = set()
            while turn := self._next(pinned.keys() - done):
                each, wait = turn
                if self._is_old(listed, leaving) or (wait and self._joined(leaving)):
                    self._tried |= done
                    return True
                if wait > self._life(listed) or (wait and self._tools.stopped.wait(min(wait, LOOK))):
                    break
                if not wait:
                    began = self._tools.clock.monotonic()
                    for client in pinned[each.uid]:
                        self._release(client)
                    done.add(each.uid)
                    self._rest(len(pinned) - len(done), leaving, began)
        self._tried.clear()
        return False

    def _next(self, users: Collection[str]) -> tuple[TerminationDeadline, float] | None:
        """Whose turn is next and in how many seconds, as things stand: some may have less time than before, or stay."""
        now, left = self._tools.clock.monotonic(), self._tools.departures.of_gpu(users)
        if not left:
            return None
        if ready := by_deadline(left, now, len(self._crowd), self._asking):
            return min(ready, key=lambda each: each.uid in self._tried), 0.0
        due, each = min(((each.due(len(self._crowd), self._asking), each) for each in left), key=itemgetter(0))
        return each, due - now

    def _is_old(self, listed: float, leaving: Sequence[TerminationDeadline]) -> bool:
        """Whether to ask again who the clients are, in the midst of those that were leaving at that time."""
        young = self._tools.clock.monotonic() - listed <= ROUND
        return not young and (self._life(listed) < 0 or self._joined(leaving))

    def _life(self, listed: float) -> float:
        """Seconds for which a list is still good enough, if nobody joins those who were leaving then."""
        return listed + max(ROUND, min(ROUND * self._asking, LONGEST)) - self._tools.clock.monotonic()

    def _joined(self, leaving: Sequence[TerminationDeadline]) -> bool:
        """Whether it is the turn of a pod that was not leaving then."""
        now, known = self._tools.clock.monotonic(), {each.uid for each in leaving}
        return any(each.due(len(known) + 1, self._asking) <= now for each in self._leaving() if each.uid not in known)

    def _rest(self, left: int, leaving: Sequence[TerminationDeadline], began: float) -> None:
        """Leave the server in peace until the next pod's turn, as far as there is time."""
        if not left:
            return
        now = self._tools.clock.monotonic()
        first = min((each.end for each in self._tools.departures.of_gpu({each.uid for each in leaving})), default=now)
        self._tools.stopped.wait(max(0.0, release_interval(left, first - now) - (now - began)))

    def _hold(self, stack: ExitStack, pods: set[str]) -> dict[str, list[Client]]:
        """Take hold of the clients that are in these pods, by the pod's UID."""
        found: dict[str, list[Client]] = {}
        for pid, server in self._served.clients().items():
            try:
                handle = self._tools.processes.pin(pid)
            except OSError as error:  # too many open files, or no process's number; the others are not to suffer
                log.warning("process cannot be pinned", reason=str(Reason.INTERNAL), pid=pid, error=str(error))
                continue
            if handle is None:
                continue
            stack.enter_context(handle)
            identity = self._tools.processes.identify(pid)
            if identity is None or identity.owner is None or identity.owner.pod_uid not in pods:
                handle.close()
            else:
                found.setdefault(identity.owner.pod_uid, []).append(Client(identity, handle, server))
        return found

    def _release(self, client: Client) -> None:
        """Release one client, if it still is the process that was found."""
        if is_protected(client.identity) or not self._same(client) or not self._goes(client):
            return
        try:
            failure = self._served.release(client.server, client.identity.pid, client.handle.ended)
        except MpsError as error:
            failure = error.message
        alive = self._same(client)
        if failure is not None and not alive:
            return  # it ended meanwhile, which is all that was wanted
        reason = Reason.CLIENT_TERMINATED if failure is None else Reason.TERMINATE_FAILED
        self._tools.metrics.released.labels(str(reason)).inc()
        tell = log.info if failure is None else log.warning
        tell(
            "terminate_client sent for an MPS client of a deleted pod",
            reason=str(reason), gpu=self._gpu, pid=client.identity.pid,
            pod_uid=client.identity.owner.pod_uid if client.identity.owner else None, alive=alive, failure=failure,
        )  # fmt: skip

    def _goes(self, client: Client) -> bool:
        """Whether its pod still is on its way out."""
        owner = client.identity.owner
        return owner is not None and bool(self._tools.departures.of_gpu({owner.pod_uid}))

    def _same(self, client: Client) -> bool:
        """Whether a process is still the one that was found. What /proc says counts if it is there afterwards."""
        identity = self._tools.processes.identify(client.identity.pid)
        return identity == client.identity and not client.handle.ended()

    def _complain(self, error: MpsError) -> None:
        if not self._silent:
            log.warning(
                "the enforcer cannot terminate the MPS clients of deleted pods; it retries",
                reason=str(error.reason), gpu=self._gpu,
                error=error.message,
            )  # fmt: skip
        self._silent = True


EVERY: Final = 1.0
"""Seconds after which a worker runs again where nothing woke it, also after a bug."""


def ask_for_missing(departures: TerminatingPods, cluster: KubeClient) -> None:
    """Ask the API server by name for the pods that a list lacked."""
    departures.resync(lambda namespace, name: find(cluster, path(CORE_V1, "pods", name, namespace)))


def release_in_time(manager: Manager, mps: MpsManager, tools: ReleaserDependencies) -> None:
    """Have MPS clients of pods that are being deleted released, on every GPU that has or will have a daemon of ours."""

    def add_releaser(gpu: str) -> None:
        releaser = ClientReleaser(gpu, DaemonClients(mps, gpu), tools)
        tools.departures.subscribe(releaser.woken)
        manager.add(f"release-{gpu}", releaser.turn, every=EVERY, wake=releaser.woken)

    mps.subscribe(add_releaser)
