"""Pods come and go while replicas, API server and ways between them fail: none is stuck, no template left behind."""

import datetime as dt
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane.bed import NOW, PODS, TEMPLATES, Bed, template_name
from tests.load.scale.figures import Figure, none_of
from tests.load.scale.fleet import WRITERS, Arm, clear, namespaces, pod, promises, stored
from tests.load.scale.harm import HOUR, Harm, harmed
from tests.load.scale.ledger import Ledger
from tests.load.scale.loads import Size, mixed, must_all_fit
from tests.load.scale.placing import GPU_MIB, NAMESPACES
from tests.load.scale.unsure import sort
from tests.load.scale.watching import template_names, watched
from tests.support.patience import holds_within
from tests.testbed.cluster.controlplane import TENANT

DRY_MIB: Final = 601
"""Sizes of dry runs begin here and grow by 3: no size of a pod is among them."""
DRY_SIZES: Final = 64
DRY_PAUSE: Final = 0.1
ONE_IN: Final = 5
"""So many of the pods are deleted while it lasts, as soon as they are bound."""
RETRY_SECONDS: Final = 0.5
STUCK_SECONDS: Final = 120.0


@dataclass(slots=True, kw_only=True)
class Writing:
    """People who create and delete pods all the while, and try again where they are refused."""

    bed: Bed
    of: str
    spaces: Sequence[str]
    ledger: Ledger
    refused: int = 0
    dry: set[str] = field(default_factory=set)
    """Templates that dry runs were told of."""
    answered: int = 0
    deleted: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, sizes: Sequence[Size], seconds: float) -> None:
        """Create all, evenly over that time; returns when the last is there."""
        began, todo = time.monotonic(), queue.SimpleQueue[tuple[int, Size] | None]()
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in range(WRITERS):
                pool.submit(self._work, todo)
            for number, size in enumerate(sizes):
                self._over.wait(max(0.0, began + seconds * number / len(sizes) - time.monotonic()))
                todo.put((number, size))
            for _ in range(WRITERS):
                todo.put(None)

    def storm(self) -> None:
        """Ask again and again what would become of pods of sizes nobody else asks for."""
        tenant, number = self.bed.plane.cluster(TENANT), 0
        while not self._over.wait(DRY_PAUSE):
            number += 1
            body = pod(Arm.SHARES, "dry", Size(DRY_MIB + 3 * (number % DRY_SIZES)), self.of)
            with suppress(ClusterError):
                made = tenant.create(path(CORE_V1, PODS, namespace=self.spaces[0]), body, dryRun="All")
                self.dry.add(template_name(made))
                self.answered += 1

    def over(self) -> None:
        """Storm no more."""
        self._over.set()

    def _work(self, todo: "queue.SimpleQueue[tuple[int, Size] | None]") -> None:
        tenant = self.bed.plane.cluster(TENANT)
        while (item := todo.get()) is not None:
            number, size = item
            body, space = pod(Arm.SHARES, f"p-{number}", size, self.of), self.spaces[number % len(self.spaces)]
            self.ledger.ask(body["metadata"]["name"], size.memory_mib, size.compute, time.monotonic())
            self._insist(partial(tenant.create, path(CORE_V1, PODS, namespace=space), body))

    def thin_out(self) -> None:
        """Delete some of those that are bound while new ones come."""
        while not self._over.wait(RETRY_SECONDS):
            for name in [each.name for each in self.ledger.settled()]:
                number = int(name.removeprefix("p-"))
                if number % ONE_IN == 0 and name not in self.deleted:
                    where = path(CORE_V1, PODS, name, self.spaces[number % len(self.spaces)])
                    self._insist(partial(self.bed.cluster.delete, where, NOW))
                    self.deleted.add(name)

    def _insist(self, deed: Callable[[], object]) -> None:
        """Do it, again and again where it is refused; done already is done."""
        while True:
            try:
                deed()
            except ClusterError as error:
                if error.status in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}:
                    return
                with self._lock:
                    self.refused += 1
                if self._over.wait(RETRY_SECONDS):
                    return
            else:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """What was left of it."""

    pods: int
    deleted: int
    refused: int
    dry_runs: int
    harm: dict[str, int]
    until_all_bound: float
    """Seconds after the last harm."""
    stuck: list[str]
    of_dry_runs: set[str]
    """Templates that were created for dry runs."""
    leaked: list[str]
    twice: tuple[str, ...]
    """Devices of which the scheduler gave too much, because it never learned that an allocation was stored."""
    problems: tuple[str, ...]
    clock_off: float
    """Seconds by which one replica's clock was off, as its log has it."""


def survive(bed: Bed, seed: int, count: int, of: str, gpus: int, seconds: float, blocked: float) -> Survived:
    """Create ``count`` pods in ``seconds`` while everything fails, and see what is left when it is over."""
    sizes = mixed(seed, count)
    assert must_all_fit(sizes, gpus, GPU_MIB)
    spaces = namespaces(bed, Arm.SHARES, NAMESPACES, sizes)
    with harmed(bed, seed, seconds, blocked) as harm, watched(bed.cluster, of) as ledger:
        writing = Writing(bed=bed, of=of, spaces=spaces, ledger=ledger)
        with template_names(bed.cluster) as seen:
            _live_through(writing, harm, sizes)
            ended = time.monotonic()
            bed.start_webhooks()
            holds_within(lambda: not _unbound(bed, spaces), STUCK_SECONDS, 0.5)
            stuck, took = _unbound(bed, spaces), time.monotonic() - ended
            log = bed.plane.log("kube-scheduler").read_text(errors="replace")
            told, off = sort(*promises(bed, spaces), ledger.shortfalls, log), _clock_off(bed)
            leaked = _leaked(bed, spaces)
        return Survived(
            pods=count, deleted=len(writing.deleted), refused=writing.refused, dry_runs=writing.answered,
            harm=harm.done, until_all_bound=took, stuck=stuck, of_dry_runs=seen & writing.dry, leaked=leaked,
            twice=told.twice, problems=told.others, clock_off=off,
        )  # fmt: skip


def _live_through(writing: Writing, harm: Harm, sizes: Sequence[Size]) -> None:
    """Harm, dry runs and deletions beside each other, until all pods are created and all harm is done."""
    with ThreadPoolExecutor(3) as pool:
        beside = [pool.submit(each) for each in (harm.run, writing.storm, writing.thin_out)]
        try:
            writing.create(sizes, harm.seconds)
            beside[0].result()
        finally:
            harm.stop()
            writing.over()
    for each in beside:
        each.result()


def _unbound(bed: Bed, spaces: Sequence[str]) -> list[str]:
    return [each["metadata"]["name"] for each in stored(bed, spaces, PODS) if not each["spec"].get("nodeName")]


def _leaked(bed: Bed, spaces: Sequence[str]) -> list[str]:
    """Delete everything; what is left of templates for good."""
    with suppress(AssertionError):
        clear(bed, spaces)
    return [each["metadata"]["name"] for each in stored(bed, spaces, TEMPLATES)]


def _clock_off(bed: Bed) -> float:
    """How far the clock of the replica with the wrong clock is from ours, by the last line it wrote."""
    (wrong,) = [each for each in bed.replicas if each.extra]
    lines = bed.plane.log(wrong.name).read_text(errors="replace").splitlines()
    said = next(line for line in reversed(lines) if line.startswith("{"))
    return abs(dt.datetime.fromisoformat(json.loads(said)["timestamp"]).timestamp() - time.time())


def figures(found: Survived) -> list[Figure]:
    """What survived, and that there was something to survive."""
    harm = ", ".join(f"{what}: {times}" for what, times in sorted(found.harm.items()))
    return [
        Figure(run="chaos", what="harm", found=f"{harm}; a clock {found.clock_off / 60:.0f} min off"),
        Figure(
            run="chaos", what="people", found=f"{found.pods} pods created, {found.deleted} deleted meanwhile, "
            f"{found.refused} calls refused and made again, {found.dry_runs} dry runs",
        ),
        none_of("chaos", "pods stuck", found.stuck, f"{found.pods}"),
        none_of("chaos", "templates leaked", found.leaked, "all"),
        none_of("chaos", "templates of dry runs", sorted(found.of_dry_runs), f"{found.dry_runs}"),
        none_of("chaos", "problems that auditor and ledger found", found.problems, f"{found.pods} allocations"),
        Figure(
            run="chaos", what="the same, of devices given twice by a scheduler that got no answer",
            found=f"{len(found.twice)}; where memory does not fit, the node refuses the second",
        ),
        Figure(run="chaos", what="last pod bound after the end of all harm", found=f"{found.until_all_bound:.1f} s"),
    ]  # fmt: skip


def trivial(found: Survived) -> list[str]:
    """What of the harm did not happen, or left no trace: then the figures say nothing."""
    return [
        what
        for what, there in {
            "nobody was refused": found.refused,
            "no replica was killed": found.harm.get("replica killed"),
            "the API server was not restarted": found.harm.get("API server killed and started again"),
            "no way was blocked": found.harm.get("way to the API server blocked"),
            "no dry run was answered": found.dry_runs,
            "no pod was deleted": found.deleted,
            "no clock was off": found.clock_off > HOUR / 2,
        }.items()
        if not there
    ]
