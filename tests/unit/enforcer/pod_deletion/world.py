"""A daemon with clients, pods that leave, and a clock: what a release worker sees of the world."""

import threading
from collections.abc import Callable
from typing import Any

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import PidHandle
from enforcer.mps.manager import MpsManager
from enforcer.pod_deletion.client_release import ClientReleaser, DaemonClients, ReleaserDependencies
from enforcer.pod_deletion.terminating_pods import TerminatingPods
from enforcer.status.metrics import Metrics
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Attribution, Quotas
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.pod_deletion.test_deadlines import WALL, pod
from tests.unit.enforcer.pod_deletion.test_terminating_pods import Clock


class Handle(PidHandle):
    def __init__(self, pid: int, world: "World") -> None:
        super().__init__(pid, -1)
        self.world = world

    def ended(self, seconds: float = 0.0) -> bool:
        return self.pid not in self.world.clients


def processes(world: "World") -> HostProcesses:
    class Processes(HostProcesses):
        def pin(self, pid: int) -> PidHandle | None:
            return world.open(pid)

    return Processes(Attribution(world.identify))


class Stopped(threading.Event):
    """Waiting takes the clock's time and nobody else's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now += timeout or 0
        return self.is_set()


class World:
    """A daemon with clients of pods ``p0``, ``p1``, ..., pid 100 and on; what it was told stands in ``told``."""

    def __init__(self, pods: int = 1, gpu: str = GPU) -> None:
        self.clock = Clock()
        self.clients = {100 + number: f"p{number}" for number in range(pods)}
        self.starts: dict[int, int] = {}
        self.told: list[tuple[float, int]] = []
        self.asked = 0
        self.slow = 0.0
        """Seconds that each answer takes."""
        self.listing = 0.0
        """Seconds that a list of clients takes beside."""
        self.answer: Any = self.let_go
        self.on_release: Callable[[int], object] = id
        self.departures = TerminatingPods(FakeClock(self.clock, lambda: WALL.timestamp() + self.clock.now - 1000.0))
        self.metrics = Metrics()
        quotas = [quota(pod_uid=f"p{number}", gpu=gpu) for number in range(pods)]
        tools = ReleaserDependencies(
            departures=self.departures, checkpoint=Quotas(lambda: quotas), processes=processes(self),
            metrics=self.metrics, stopped=Stopped(self.clock), clock=FakeClock(self.clock),
        )  # fmt: skip
        self.worker = ClientReleaser(GPU, Daemon(self), tools)

    def open(self, pid: int) -> PidHandle | None:
        return Handle(pid, self) if pid in self.clients else None

    def identify(self, pid: int) -> Identity | None:
        if pid not in self.clients:
            return None
        return Identity(pid=pid, start=self.starts.get(pid, pid), owner=ContainerRef(self.clients[pid], "c" * 64))

    def let_go(self, pid: int) -> None:
        del self.clients[pid]

    def leave(self, *pods: str, grace: int = 30) -> None:
        for uid in pods:
            source = pod(self.clock.now - 1000.0 + grace, grace)
            source["metadata"]["uid"] = uid
            self.departures.on_event("MODIFIED", source)

    def run(self, until: float) -> None:
        """Take steps up to a moment, as the worker's thread does."""
        while self.clock.now < until and (wait := self.worker.step()) is not None:
            self.clock.now += wait

    def counted(self) -> dict[str, float]:
        rows = [sample for family in self.metrics.released.collect() for sample in family.samples]
        return {row.labels["reason"]: row.value for row in rows if row.name.endswith("_total")}


class Daemon(DaemonClients):
    def __init__(self, world: World) -> None:
        super().__init__(MpsManager(), GPU)
        self.world = world

    def clients(self) -> dict[int, int]:
        self.world.asked += 1
        self.world.clock.now += 2 * self.world.slow + self.world.listing
        return dict.fromkeys(self.world.clients, 77)

    def release(self, server: int, pid: int, ended: Callable[[], bool]) -> str | None:
        assert server == 77
        self.world.on_release(pid)
        if ended():
            raise MpsError("there was no point in it any more", Reason.ALREADY_EXITED)
        self.world.told.append((self.world.clock.now - 1000.0, pid))
        self.world.clock.now += self.world.slow
        said: str | None = self.world.answer(pid)
        return said
