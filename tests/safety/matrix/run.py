"""One run of the matrix: an enforcer, its world, one fault at one moment, and what was seen of it."""

import gc
import os
import random
import select
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import OnExceed, Quota
from tests.safety.matrix.checker import unanswered
from tests.safety.matrix.evidence import Evidence
from tests.safety.matrix.faults import BY_NAME, OVER, STORM, WITHIN, Ends
from tests.safety.matrix.page import Page
from tests.safety.matrix.patient import UUID, Orders, Patient, live
from tests.safety.matrix.people import EVERY_SIGNAL, Bed, Group, unharmed
from tests.safety.matrix.trace import Event, Moment, now

QUOTA_MIB: Final = 4096
GRACE: Final = 0.2
QUIET: Final = 0.3
"""Seconds without anything, after which nothing more is expected."""
PATIENCE: Final = 30.0
LAST_LOOK: Final = 12
"""The latest look before which a fault strikes: a grace period is ten."""
CROWD: Final = 4
PIPE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One run: which fault, at which moment, for the how-manieth time."""

    fault: str
    moment: Moment
    trial: int


@dataclass
class Run:
    """Supervises one run."""

    bed: Bed
    case: Case
    sabotage: Sequence[Callable[[Patient], None]] = ()
    patience: float = PATIENCE
    grace: float = GRACE
    page: Page = field(default_factory=Page)
    patient: int = 0
    second: int = 0
    limit: tuple[int, int] = (0, 0)
    quotas: list[Quota] = field(default_factory=list)
    crowd: list[Group] = field(default_factory=list)
    innocents: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lives: int = 0
    struck: float = 0.0
    lifted: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(str(self.case))
        self.fault = BY_NAME[self.case.fault]
        self.folder = Path(tempfile.mkdtemp(prefix="m", dir=self.bed.folder))
        self.state = self.folder / "state"
        self.state.mkdir(mode=0o700)
        (self.folder / "proc").symlink_to("/proc")
        self.page.wall = 0
        self.blocked = frozenset({signal.SIGTERM}) if self.case.trial % 2 else frozenset()
        self.policy = OnExceed.KILL_CONTAINER if self.case.trial // 2 % 2 else OnExceed.KILL
        self._reader, self._pipe = os.pipe()
        self._waiting, self._go_on = os.pipe()
        os.set_blocking(self._reader, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._rest = b""
        self._socket: socket.socket | None = None
        self._port: int | None = None
        self._acting: Counter[str] = Counter()
        self._ready = False

    def go(self) -> Evidence:
        """Play it to its end."""
        began = now()
        try:
            self._lay_out()
            self._start()
            late = not self._until(self._over, self.patience)
            hung = not self._end_patient()
            if unanswered(self._files()):
                # What an enforcer left unanswered the next one answers, before it does anything else.
                self._start()
                hung |= not self._until(lambda: self._ready, self.patience) or not self._end_patient()
            self._drain(0)
            return self._evidence(began, late=late, hung=hung)
        finally:
            self._tidy()

    def _lay_out(self) -> None:
        bed = self.bed
        self.victim = Group(bed.mount).make()
        self.big, small, idle = (self.person(self.victim.spawn(self.blocked), self.victim, "victim") for _ in range(3))
        self._people()
        self.quotas = [self._quota(bed.neighbour), self._quota(self.victim)]
        for _ in range(CROWD if self.case.fault == STORM else 0):
            group = Group(bed.mount).make()
            self.crowd.append(group)
            self.hold(self.person(group.spawn(self.blocked), group, "victim"), WITHIN)
            self.quotas.append(self._quota(group))
        Checkpoint(self.state).write(self.quotas)
        for pid, mib in ((self.big, OVER), (small, 500)):
            self.hold(pid, mib)
        self.tell("idle", pid=idle)

    def _people(self) -> None:
        bed = self.bed
        for group in (bed.neighbour, bed.stranger):
            for pid in group.pids:
                self.hold(self.person(pid, group, "innocent"), 2 * WITHIN)
        for pid in (bed.server, os.getpid(), 1, 2):
            self.tell("person", pid=pid, container=None, role="protected")
            self.hold(pid, WITHIN)

    def _quota(self, group: Group) -> Quota:
        return Quota(
            claim_uid=f"claim-{group.pod_uid}", namespace="asr", pod="tts-0", pod_uid=group.pod_uid, container="model",
            container_id=group.container_id, gpu=UUID, memory_mib=QUOTA_MIB, grace_seconds=self.grace, tolerance_mib=0,
            on_exceed=self.policy,
        )  # fmt: skip

    # What faults do.

    def tell(self, what: str, **data: Any) -> None:
        """Put what the world does beside what the enforcer does."""
        self.events.append(Event(now(), what, data))

    def person(self, pid: int, group: Group, role: str) -> int:
        self.tell("person", pid=pid, container=group.container_id, role=role)
        return pid

    def hold(self, pid: int, mib: int) -> None:
        self.page.hold(pid, mib)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.patient, number)
        if number is signal.SIGSTOP:
            os.waitpid(self.patient, os.WUNTRACED)
        if number is signal.SIGKILL:
            self._reaped(os.waitpid(self.patient, 0)[1])

    def end_victim(self) -> None:
        """End the container, as its runtime does."""
        self.tell("ended", container=self.victim.container_id)
        for pid in self.victim.pids:
            self.page.hold(pid, 0)
        self.victim.end()

    def adopt(self, group: Group, mib: int, *, known: bool = False) -> None:
        """Go on with another container in the victim's place, nobody of which may be touched."""
        self.victim = group
        self.innocents.append(self.person(group.spawn(EVERY_SIGNAL), group, "innocent"))
        self.hold(self.innocents[-1], mib)
        if known:
            self.allow([quota for quota in self.quotas if quota.pod_uid != group.pod_uid] + [self._quota(group)])

    def allow(self, quotas: Iterable[Quota]) -> None:
        self.quotas = list(quotas)
        Checkpoint(self.state).write(self.quotas)

    def start_second(self) -> None:
        self.second = self._fork()

    def end_second(self) -> None:
        if self.second:
            with suppress(ChildProcessError, ProcessLookupError):
                os.kill(self.second, signal.SIGKILL)
                os.waitpid(self.second, 0)
            self.tell("second ended", pid=self.second)
            self.second = 0

    def occupy(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]

    def vacate(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # The enforcer's lives.

    def _start(self) -> None:
        self.lives += 1
        self._ready = False
        self.patient = self._fork()

    def _fork(self) -> int:
        orders = Orders(
            state=self.state, proc=self.folder / "proc", page=self.page, pipe=self._pipe, go_on=self._waiting,
            moment=self.case.moment, before=self.chance.randrange(LAST_LOOK), at_once=self.case.trial % 3 == 0,
            client=self.case.trial % 5 < 3, port=self._port, sabotage=self.sabotage,
        )  # fmt: skip
        gc.freeze()
        # The worker's handler must not take a SIGTERM in the child: an exception in Python's fork hooks is lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            self.tell("life", pid=pid)
            return pid
        code = 70
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            with (self.folder / "log").open("ab") as log:
                os.dup2(log.fileno(), 2)
            os.close(self._reader)
            os.close(self._go_on)
            code = live(orders)
        finally:
            os._exit(code)

    def _reaped(self, status: int) -> None:
        self.tell("exit", pid=self.patient, code=os.waitstatus_to_exitcode(status))
        self.patient = 0

    def _reap(self) -> None:
        for pid in [*self.victim.pids, *(pid for group in self.crowd for pid in group.pids)]:
            with suppress(ChildProcessError):
                found = os.waitpid(pid, os.WNOHANG)
                if found[0]:
                    self.tell("died", pid=pid, code=os.waitstatus_to_exitcode(found[1]))
        if self.patient and (found := os.waitpid(self.patient, os.WNOHANG))[0]:
            self._reaped(found[1])
        if self.second:
            with suppress(ChildProcessError):
                if os.waitpid(self.second, os.WNOHANG)[0]:
                    self.tell("second ended", pid=self.second)
                    self.second = 0

    # The course of a run.

    def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        deadline = now() + seconds
        while now() < deadline:
            self._drain(4)
            self._reap()
            self._strike_and_lift()
            if not self.patient:
                time.sleep(self.chance.uniform(0, 0.03))  # the kubelet starts it again, soon
                self._start()
            if true():
                return True
        return False

    def _strike_and_lift(self) -> None:
        if not self.struck and any(event.what == "moment" for event in self.events):
            self.struck = now()
            self.tell("strike")
            self.fault.strike(self)
            os.write(self._go_on, b"!")
        if self.struck and not self.lifted and now() >= self.struck + self.fault.seconds:
            self.fault.lift(self)
            self.lifted = now()
            self.tell("lift")

    def _over(self) -> bool:
        if not self.lifted or self._acting[str(self.patient)] or not self._ready:
            return False
        if self.fault.ends is Ends.KILLED:
            return all(_gone(pid) for pid in self._holders())
        return now() > self.lifted + QUIET + self.grace - GRACE

    def _holders(self) -> list[int]:
        """Who of the container holds so much that it cannot stay."""
        rows = dict(self.page.rows())
        return [pid for pid in self.victim.pids if rows.get(pid, 0) >= OVER]

    def _drain(self, milliseconds: int) -> None:
        if not self._poll.poll(milliseconds):
            return
        with suppress(BlockingIOError):
            self._rest += os.read(self._reader, PIPE)
        *lines, self._rest = self._rest.split(b"\n")
        found = [Event.parse(line) for line in lines]
        self.events += found
        self._ready |= any(event.what == "ready" for event in found)
        for event in found:
            if event.what in {"act", "acted"}:
                self._acting[event.data["thread"].partition(":")[0]] += 1 if event.what == "act" else -1

    def _end_patient(self) -> bool:
        """Tell it to stop, and see that it does."""
        if self.patient:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        deadline = now() + self.patience / 2
        while self.patient and now() < deadline:
            self._drain(4)
            self._reap()
        return not self.patient

    def _evidence(self, began: float, *, late: bool, hung: bool) -> Evidence:
        harmed = [
            pid for pid in (*self.bed.sentinels(), *self.innocents) if not unharmed(pid) and pid != self._ended(pid)
        ]
        return Evidence(
            case=self.case, events=tuple(sorted(self.events, key=lambda event: event.at)), files=self._files(),
            harmed=harmed, late=late, hung=hung, struck=self.struck, lifted=self.lifted, grace=self.grace,
            ceiling=QUOTA_MIB,
            holders_only=self.policy is OnExceed.KILL, seconds=now() - began,
            log=(self.folder / "log").read_text().splitlines(),
        )  # fmt: skip

    def _files(self) -> dict[str, bytes]:
        audit = self.state / "audit"
        return {path.name: path.read_bytes() for path in audit.iterdir()} if audit.exists() else {}

    def _ended(self, pid: int) -> int:
        """An innocent that the world itself ended."""
        return pid if pid in self.innocents and pid not in self.victim.pids else 0

    def _tidy(self) -> None:
        self.end_second()
        self.vacate()
        if self.patient:
            self.signal(signal.SIGKILL)
        for group in (self.victim, *self.crowd):
            group.end()
        for file in (self._reader, self._pipe, self._waiting, self._go_on):
            os.close(file)
        shutil.rmtree(self.folder, ignore_errors=True)


def _gone(pid: int) -> bool:
    """Whether a process has ended, its corpse apart."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True
