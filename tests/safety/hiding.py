"""Random histories of one GPU: shares and others that hold memory in rows, beyond them and behind descriptors.

A history knows who holds what. The enforcer's own account, rule and detector see what NVML and /proc would show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, cast

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.attribution.unaccounted import Holder, Holders
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.hidden import Verified, VerifiedLimits
from enforcer.detection.hidden_memory import Consequence, HiddenMemory
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision
from enforcer.kill.recheck import Rechecker
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.quota.types import LimitStatus, OnExceed, Quota
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.quotas import in_force
from tests.support.wiring import NobodyOwn, NoDescriptors
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import card

if TYPE_CHECKING:
    from enforcer.attribution.usage import UsageSampler

CARD: Final = card(GPU, 0)._replace(memory_mib=81_079)
SERVER: Final = ProcessUsage(Identity(pid=66, start=1, owner=ContainerRef("mps-pod", "e" * 64)), 66)
RULES: Final = DetectorConfig(kills=100)
STEPS: Final = 24
BLIND: Final = NvmlError("hung")
STATES: Final = {True: Reason.IN_FORCE, False: Reason.LIMIT_ESCAPED}
Act = Callable[["History"], None]


@dataclass(slots=True)
class Process:
    """One process: MiB in its row (``None``: NVML does not list it), and mapped beyond the row."""

    identity: Identity
    row: int | None
    mapped: int = 0
    late: bool = False
    """Its row is not shown in the next sample."""


@dataclass(slots=True)
class Piece:
    """Memory behind a descriptor; ``hidden``: it is in no row. ``holders``: the processes that have a copy.

    ``seen``: a look finds it; else it is in a message, or the like. ``ended``: pid of the process that took it, which
    has ended; NVML lists it still, for a child that it forked.
    """

    mib: int
    hidden: bool
    holders: list[Process]
    seen: bool = True
    ended: int | None = None


@dataclass(slots=True)
class Container:
    """A container, of a share or not; ``limited``: MPS's limit binds each of its processes."""

    quota: Quota | None
    ref: ContainerRef
    limited: bool
    processes: list[Process] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Kill:
    """Whom, what it held in all, and what of that was in no row."""

    quota: Quota
    held_mib: int
    hidden_mib: int


class History:
    """One of them, by its seed."""

    def __init__(self, seed: int) -> None:
        self.random, self._ids = Random(seed), count(1000)
        self.unseen = self.random.random() < 0.5
        """Descriptors are where no look finds them. Then only shares hide memory, and nobody has a descriptor of memory
        in rows in a process without CUDA: SECURITY.md names both."""
        self.containers, self.pieces = list[Container](), list[Piece]()
        self.now, self.lost = 1000.0, False
        self.limits = VerifiedLimits()
        self.killed = list[Kill]()
        self.plain = list[int]()
        """MiB in no row of the one container with descriptors, where a plain rule would have ended it."""
        self._start_enforcer()
        for _ in range(self.random.randint(1, 4)):
            start(self)

    # What there is

    def processes(self) -> Iterator[Process]:
        return (process for container in self.containers for process in container.processes)

    def hidden_mib(self, container: Container) -> int:
        """MiB in no row that a container has."""
        mapped = sum(each.mapped for each in container.processes)
        mine = [p for p in self.pieces if p.hidden and any(each in container.processes for each in p.holders)]
        return mapped + sum(each.mib for each in mine)

    def held_mib(self, container: Container) -> int:
        return self.hidden_mib(container) + sum(each.row or 0 for each in container.processes)

    def quotas(self) -> tuple[Quota, ...]:
        return tuple(each.quota for each in self.containers if each.quota is not None)

    def new_process(self, container: Container, row: int | None) -> Process:
        pid = next(self._ids)
        made = Process(Identity(pid=pid, start=pid, owner=container.ref, cgroup_inode=7), row)
        container.processes.append(made)
        return made

    def new_id(self) -> int:
        return next(self._ids)

    def end(self, container: Container) -> None:
        """End it, with all it has: what nobody else has a copy of is free."""
        self.containers.remove(container)
        for process in container.processes:
            self.close(process)

    def close(self, process: Process) -> None:
        for piece in self.pieces:
            piece.holders = [each for each in piece.holders if each is not process]
        self.pieces = [each for each in self.pieces if each.holders]

    def free_mib(self) -> int:
        return CARD.memory_mib - 1024 - self._used()

    def _used(self) -> int:
        rows = [each for each in self.processes() if each.row is not None]
        hidden = sum(each.mapped for each in rows) + sum(each.mib for each in self.pieces if each.hidden)
        return sum(each.row or 0 for each in rows) + hidden + SERVER.used_mib

    # What the enforcer sees

    def view(self) -> GpuSnapshot:
        if self.lost:
            return GpuSnapshot(gpu=CARD, problem=BLIND)
        listed = [each for each in self.processes() if each.row is not None]
        overhead = sum(self.random.randint(0, 6) for _ in listed)
        rows = [ProcessUsage(each.identity, each.row or 0) for each in listed if not each.late]
        ended = [GpuProcess(pid=each.ended, used_mib=each.mib) for each in self.pieces if each.ended is not None]
        shown = tuple(GpuProcess(pid=each.identity.pid, used_mib=each.used_mib) for each in (SERVER, *rows))
        sample = GpuSample(
            uuid=GPU, total_mib=CARD.memory_mib, used_mib=self._used() + overhead, processes=(*shown, *ended)
        )
        return GpuSnapshot(gpu=CARD, sample=sample, holders=(SERVER, *rows))

    def sample_some(self, _: object) -> tuple[GpuSnapshot, ...]:
        return (self.view(),)

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        reading = self.view().reading
        return None if reading is None else reading.get(quota.container_id or "", ())

    @property
    def latest(self) -> tuple[GpuSnapshot, ...]:
        return (self.view(),)

    def descriptors(self) -> Holders:
        found = (
            Holder(process.identity, sum(process in piece.holders for piece in self.pieces if piece.seen))
            for process in self.processes()
        )
        return Holders(tuple(each for each in found if each.descriptors))

    def verify(self) -> None:
        """What limit verification would find now."""
        shares = [each for each in self.containers if each.quota is not None]
        self.limits.replace(
            {
                (each.ref.container_id, GPU): Verified(
                    LimitStatus(state=STATES[each.limited], backend="mps-v2", sentence=""),
                    frozenset(one.identity for one in each.processes if one.row is not None),
                )
                for each in shares
            }
        )

    # What it does

    def _start_enforcer(self) -> None:
        watch = cast("UsageSampler", self)
        self.hidden = HiddenMemory(
            UnaccountedMonitor(Path("/nowhere")), watch, NoDescriptors(self.descriptors), NobodyOwn({66}), self.limits,
            Consequence.KILL, FakeClock(lambda: self.now),
        )  # fmt: skip
        self.rechecker = Rechecker(self.hidden, in_force())
        self.state = DetectorState()

    def restart_enforcer(self) -> None:
        self._start_enforcer()

    def run(self) -> None:
        for _ in range(STEPS):
            for _ in range(self.random.choice((0, 1, 1, 2))):
                self.random.choices(ACTS, WEIGHTS)[0](self)
            if self.random.random() < 0.3:
                self.verify()
            self._poll()

    def _poll(self) -> None:
        self.now += self.random.uniform(0.25, 0.75)
        views, quotas = (self.view(),), self.quotas()
        for each in self.processes():
            each.late = False  # rows are late by less than 0.2 s: in one sample
        self.lost = False
        self.hidden.take(views, quotas, self.now)
        readings = self.hidden.readings(views)
        self.state, decisions = evaluate(self.state, self.hidden.enforced(quotas), readings, self.now, RULES)
        for decision in decisions:
            if decision.decision is Decision.KILL:
                self._kill(decision)
        if self.hidden.due.is_set() or self.random.random() < 0.7:
            self.hidden.due.clear()
            self.hidden.look()
        self._note_plain()

    def _kill(self, decision: KillDecision) -> None:
        """As a kill does: what it finds right before the signal decides."""
        usages = self.rechecker.processes(decision.quota)
        spared = self.rechecker.reason_to_spare(decision.quota, usages) is not None
        if not spared:
            (hit,) = [each for each in self.containers if each.ref.container_id == decision.quota.container_id]
            self.killed.append(Kill(decision.quota, self.held_mib(hit), self.hidden_mib(hit)))
            self.end(hit)
        self.state = record_kill_result(self.state, decision.quota, self.now, RULES, acted=not spared)

    def _note_plain(self) -> None:
        """What ends the one container with descriptors, whenever memory is unaccounted for."""
        held = self.descriptors().found
        owners = {each.identity.owner for each in held}
        if self.hidden.found and len(owners) == 1:
            (hit,) = [each for each in self.containers if each.ref in owners]
            self.plain.append(self.hidden_mib(hit))


def share(history: History) -> Container | None:
    found = [each for each in history.containers if each.quota is not None]
    return history.random.choice(found) if found else None


def start(history: History) -> None:
    """A share's container starts; one in five has escaped its limit."""
    if len(history.containers) > 6:
        return
    number, random = history.new_id(), history.random
    ref = ContainerRef(f"pod-{number}", f"{number:064d}")
    mib = random.choice((2048, 4096, 8192, 16_384))
    quota = Quota(
        claim_uid=f"claim-{number}", namespace=f"team-{number % 3}", pod=f"pod-{number}", pod_uid=ref.pod_uid,
        container="main", container_id=ref.container_id, gpu=GPU, memory_mib=mib,
        grace_seconds=random.choice((0.0, 0.5, 2.0)),
        on_exceed=random.choice((OnExceed.KILL, OnExceed.KILL, OnExceed.KILL_CONTAINER, OnExceed.WARN)),
    )  # fmt: skip
    history.containers.append(Container(quota, ref, limited=random.random() < 0.8))


def stop(history: History) -> None:
    if history.containers:
        history.end(history.random.choice(history.containers))


def foreign(history: History) -> None:
    """A program outside of shares starts, with a row and sometimes managed memory."""
    number, random = history.new_id(), history.random
    made = Container(None, ContainerRef(f"pod-{number}", f"{number:064d}"), limited=False)
    history.containers.append(made)
    process = history.new_process(made, min(random.randint(300, 4000), max(0, history.free_mib())))
    process.mapped = random.choice((0, min(random.randint(0, 20_000), max(0, history.free_mib()))))


def program(history: History) -> None:
    """A share's process takes memory in its row, within its limit where it is bound."""
    if (found := share(history)) is not None and found.quota is not None:
        most = found.quota.memory_mib if found.limited else 2 * found.quota.memory_mib
        history.new_process(found, min(history.random.randint(300, most), max(0, history.free_mib()))).late = (
            history.random.random() < 0.2
        )


def managed(history: History) -> None:
    """A listed process takes managed memory, or maps hidden memory: within its limit where it is bound."""
    found = share(history)
    listed = [each for each in found.processes if each.row is not None] if found is not None else []
    if found is None or found.quota is None or not listed:
        return
    process = history.random.choice(listed)
    room = history.free_mib()
    if found.limited:
        room = min(room, found.quota.memory_mib - (process.row or 0) - process.mapped)
    process.mapped += history.random.randint(0, max(0, room))


def hide(history: History) -> None:
    """Somebody makes memory, exports and releases it: its own process, or one without CUDA, keeps the descriptor."""
    if holders := may_hide(history):
        holder = history.random.choice(holders)
        own = holder.processes and history.random.random() < 0.3
        process = history.random.choice(holder.processes) if own else history.new_process(holder, None)
        mib = min(history.random.randint(200, 24_000), max(0, history.free_mib()))
        history.pieces.append(Piece(mib, hidden=True, holders=[process], seen=not history.unseen))


def may_hide(history: History) -> list[Container]:
    others = 0.0 if history.unseen else 0.3
    return [each for each in history.containers if each.quota is not None or history.random.random() < others]


def orphan(history: History) -> None:
    """A program with memory in its row ends, and a child that it forked lives on: NVML lists the pid that ended."""
    found = share(history)
    listed = [each for each in found.processes if each.row is not None] if found is not None else []
    if found is not None and listed:
        process = history.random.choice(listed)
        found.processes.remove(process)
        history.close(process)
        child = history.new_process(found, None)
        history.pieces.append(
            Piece(process.row or 0, hidden=True, holders=[child], seen=False, ended=process.identity.pid)
        )


def load(history: History) -> None:
    """A process holds a descriptor of memory that is in its maker's row, which may be its own: nothing is hidden."""
    if (found := share(history)) is not None:
        listed = [each for each in found.processes if each.row is not None]
        if listed and (history.unseen or history.random.random() < 0.5):
            history.pieces.append(Piece(0, hidden=False, holders=[history.random.choice(listed)]))
        elif not history.unseen:
            history.pieces.append(Piece(0, hidden=False, holders=[history.new_process(found, None)]))


def hand_on(history: History) -> None:
    """A copy of a descriptor goes to another container; sometimes the first is closed."""
    pieces = [each for each in history.pieces if each.hidden or not history.unseen]
    to = may_hide(history) if history.unseen else history.containers
    if pieces and to:
        piece = history.random.choice(pieces)
        if history.random.random() < 0.5:
            piece.holders.clear()
        piece.holders.append(history.new_process(history.random.choice(to), None))


def free(history: History) -> None:
    """A process ends, or memory beyond its row is freed."""
    processes = list(history.processes())
    if processes:
        process = history.random.choice(processes)
        process.mapped = 0
        if history.random.random() < 0.7:
            history.close(process)
            for each in history.containers:
                each.processes = [one for one in each.processes if one is not process]


def lose(history: History) -> None:
    history.lost = True


ACTS: Final[Sequence[Act]] = (
    start, stop, foreign, program, managed, hide, load, hand_on, orphan, free, lose, History.restart_enforcer,
)  # fmt: skip
WEIGHTS: Final = (3, 2, 1, 4, 3, 4, 2, 1, 1, 3, 1, 0.2)
