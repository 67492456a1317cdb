"""What happens to the webhook's replicas and the API server while pods are created: a script drawn from a seed.

Replicas are killed and started again, one has its clock an hour off; the way between all of them and the API server
is blocked twice, once so that connections go on afterwards and once so that they are lost without a word; the API
server is killed and started again.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.integration.controlplane.bed import SYSTEM, Bed, Replica
from tests.load.scale.gate import Gate
from tests.safety import wallclock
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.processes import alive, kill

ACCOUNT: Final = "gpu-share-webhook"
HOUR: Final = 3600
Step = tuple[float, str, Callable[[], None]]
"""Seconds from the beginning, what it is, and the deed."""


@dataclass(slots=True, kw_only=True)
class Harm:
    """Does what its script says, step by step. ``done`` counts the deeds."""

    bed: Bed
    gates: list[Gate]
    kubeconfig: Path
    chance: random.Random
    seconds: float
    blocked: float
    done: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def script(self) -> list[Step]:
        """Every step until the end, in order."""
        shut, again, restart = 0.1 * self.seconds, 0.45 * self.seconds, 0.8 * self.seconds
        steps: list[Step] = [
            (shut, "way to the API server blocked", self._shut),
            (shut + self.blocked, "and opened, connections go on", lambda: self._open(lost=False)),
            (again, "way to the API server blocked again", self._shut),
            (again + self.blocked, "and opened, connections are lost", lambda: self._open(lost=True)),
            (restart, "API server killed and started again", self._restart),
        ]
        return sorted([*steps, *self._kills()], key=lambda step: step[0])

    def run(self) -> None:
        """All of it; then every replica is up again."""
        began = time.monotonic()
        for at, what, deed in self.script():
            if self._stop.wait(max(0.0, began + at - time.monotonic())):
                return
            deed()
            self.done[what] = self.done.get(what, 0) + 1
            print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    def stop(self) -> None:
        """Do no more."""
        self._stop.set()

    def _kills(self) -> Iterator[Step]:
        at = self.chance.uniform(1, 4)
        while at < self.seconds:
            replica = self.chance.choice(self.bed.replicas)
            yield at, "replica killed", partial(self._kill, replica)
            yield at + self.chance.uniform(0.5, 4), "replica started", partial(self._start, replica)
            at += self.chance.uniform(3, 8)

    def _kill(self, replica: Replica) -> None:
        if replica.process and alive(replica.process):
            kill(replica.process)
            self.bed.plane.drop(replica.name)

    def _start(self, replica: Replica) -> None:
        if replica.process is None or not alive(replica.process):
            self.bed.launch(replica, self.kubeconfig)

    def _shut(self) -> None:
        for gate in self.gates:
            gate.shut()

    def _open(self, *, lost: bool) -> None:
        for gate in self.gates:
            gate.open(lost=lost)

    def _restart(self) -> None:
        restart(self.bed.plane)


def restart(plane: ControlPlane) -> None:
    """Kill the API server and start it again."""
    for process in [each for each in plane.processes if each.name == "kube-apiserver"]:
        kill(process)
    plane.again(plane.drop("kube-apiserver"))


@contextmanager
def harmed(bed: Bed, seed: int, seconds: float, blocked: float) -> Iterator[Harm]:
    """Give each replica a gate to the API server, and one of them another clock; all are as before in the end."""
    bed.stop_webhooks()
    kubeconfig = bed.plane.service_account(SYSTEM, ACCOUNT)
    chance = random.Random(seed)
    with ExitStack() as stack:
        gates = [stack.enter_context(Gate(urlsplit(bed.plane.url).port or 0)) for _ in bed.replicas]
        for replica, gate in zip(bed.replicas, gates, strict=True):
            replica.kubeconfig = _through(gate, kubeconfig, bed.plane.url, replica.name)
        wrong = chance.choice(bed.replicas)
        wrong.extra = wallclock.environment(bed.plane.root, chance.choice([-HOUR, HOUR]))
        stack.callback(_as_before, bed)
        bed.start_webhooks()
        yield Harm(bed=bed, gates=gates, kubeconfig=kubeconfig, chance=chance, seconds=seconds, blocked=blocked)


def _as_before(bed: Bed) -> None:
    bed.stop_webhooks()
    for replica in bed.replicas:
        replica.kubeconfig, replica.extra = None, {}
    bed.start_webhooks()


def _through(gate: Gate, kubeconfig: Path, url: str, name: str) -> Path:
    made = kubeconfig.with_name(f"{name}-through-its-gate.yaml")
    made.touch(mode=0o600)
    made.write_text(kubeconfig.read_text().replace(url, f"https://127.0.0.1:{gate.port}"))
    return made
