"""Following kill logs: that of this machine, or those of all nodes side by side, each record as it comes.

In an agent a command follows for half a minute, ends by itself and is begun again: one whose reader is gone would stay
there for good, as it hears of that only when it writes.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, Full, Queue
from typing import Final

from enforcer.audit.record import read
from gpushare.errors import GpuShareError, RecordError
from gpushare.kube_client import Cluster
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit import filters, remote
from gpushare_cli.audit.filters import Record, Wanted, printable
from gpushare_cli.audit.log_reader import Picked, missing
from gpushare_cli.audit.remote import Agent
from gpushare_cli.audit.tail import Tail
from gpushare_cli.terminal import Terminal, cell

FINE: Final = 0
NOT_FINE: Final = 1
FOLLOW_SECONDS: Final = 0.5
TURN: Final = 30
"""Seconds that a command follows in an agent."""
MAX_DELAY: Final = 30.0
"""Seconds between two attempts at a node that does not answer."""
LOOK_AROUND: Final = 30.0
"""Seconds after which nodes are looked for that came meanwhile."""
MAX_WAITING: Final = 1000
"""So many records wait to be shown; then the nodes do."""
Deed = Callable[[], None]


def warn(text: str) -> None:
    """Say something that is no record."""
    print(f"gpu-share: {text}", file=sys.stderr)


class Printer:
    """Shows records, one a line.

    Args:
        output: ``table``, ``json`` or ``raw``: as they stand in the log.
        nodes: whether to say in a table whose log each is from.
    """

    def __init__(self, output: str, *, nodes: bool) -> None:
        self.output, self._nodes, self._terminal = output, nodes, Terminal.of()

    def begin(self) -> None:
        """Write what stands above them."""
        if self.output == "table":
            self._terminal.say("  ".join([filters.NODE] * self._nodes + list(filters.HEADERS)))

    def show(self, line: bytes, record: Record, node: str = "") -> None:
        """Show one record of a node's log."""
        cells = map(cell, [printable(node)] * self._nodes + filters.row(record))
        self._terminal.say("  ".join(cells) if self.output == "table" else line.decode("ascii").rstrip())

    @staticmethod
    def pass_on(lines: Iterable[bytes]) -> None:
        """Write lines as they are, whatever they are."""
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def here(tail: Tail, wanted: Wanted, printer: Printer, until: float) -> int:
    """Follow the log of this machine until that time (monotonic clock, seconds). Raises ``ConfigError``."""
    code = FINE
    printer.begin()
    while True:
        if printer.output == "raw":
            printer.pass_on(tail.read())
        elif troubles := _show(tail, wanted, printer):
            code = NOT_FINE
            for each in troubles:
                warn(each)
        if time.monotonic() >= until:
            return code
        time.sleep(FOLLOW_SECONDS)


def _show(tail: Tail, wanted: Wanted, printer: Printer) -> list[str]:
    """Show what is new, and say what is wrong with it."""
    picked = Picked(tail.read(), wanted)
    for line, record in picked:
        printer.show(line, record)
    told, tail.missing = tail.missing, []
    return [*told, *[_bad(picked.bad)] * (picked.bad > 0)]


def everywhere(api: Cluster, namespace: str | None, wanted: Wanted, printer: Printer, until: float) -> int:
    """Follow the logs of all nodes, also of those that come later, until that time (monotonic clock, seconds).

    A node that cannot be read is told once, tried again, and told again when it can be read.

    Raises:
        GpuShareError: the agents cannot be found, see ``remote.found``.
    """
    roster, desk = Roster(api, namespace), Desk()
    following: dict[str, Following] = {}
    looked = time.monotonic()
    printer.begin()
    try:
        while time.monotonic() < until:
            for node in roster.nodes - following.keys():
                following[node] = Following(node, roster, desk, wanted, printer)
                threading.Thread(target=following[node].run, name=f"following {node}", daemon=True).start()
            desk.work(min(FOLLOW_SECONDS, max(0.0, until - time.monotonic())))
            if time.monotonic() >= looked + LOOK_AROUND:
                looked = time.monotonic()
                with suppress(GpuShareError):  # where nobody answers, each node says so
                    roster.look()
    finally:
        desk.stopped.set()
    return NOT_FINE if any(each.troubled for each in following.values()) else FINE


class Desk:
    """Where what several threads have to say is said, by one."""

    def __init__(self) -> None:
        self._waiting: Final = Queue[Deed](MAX_WAITING)
        self.stopped: Final = threading.Event()

    def leave(self, deed: Deed) -> None:
        """Leave something to be done; waits while too much is."""
        while not self.stopped.is_set():
            with suppress(Full):
                return self._waiting.put(deed, timeout=FOLLOW_SECONDS)
        return None

    def work(self, seconds: float) -> None:
        """Do what waits; where nothing does, wait for so long."""
        with suppress(Empty):
            self._waiting.get(timeout=seconds)()
            for _ in range(MAX_WAITING):
                self._waiting.get_nowait()()


class Roster:
    """The agents, by node.

    Args:
        api: the cluster.
        namespace: where they are; by default wherever there is such a DaemonSet.
    """

    def __init__(self, api: Cluster, namespace: str | None) -> None:
        self.api, self._namespace = api, namespace
        self._agents: dict[str, Agent] = {}
        self._lock, self._looked = threading.Lock(), -math.inf
        self.look()

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes that have one."""
        return frozenset(self._agents)

    def look(self) -> None:
        """Look who is there, unless somebody just did. Raises ``GpuShareError``."""
        with self._lock:
            if time.monotonic() < self._looked + FOLLOW_SECONDS:
                return
            self._looked = time.monotonic()
            found = remote.found(self.api, self._namespace)
            self._agents = {each.node: each for each in reversed(found)}  # of two the one that runs, which comes first

    def agent(self, node: str) -> Agent:
        """Return the agent of a node. Raises ``GpuShareError``."""
        if (found := self._agents.get(node)) is None:
            raise GpuShareError("it has no agent any longer")
        return found


class Following:
    """One node's log; ``run`` is the whole life of a thread."""

    def __init__(self, node: str, roster: Roster, desk: Desk, wanted: Wanted, printer: Printer) -> None:
        self._node, self._roster, self._desk, self._wanted, self._printer = node, roster, desk, wanted, printer
        self._last, self._delay, self._silent = 0, FOLLOW_SECONDS, False
        self._seconds = 0
        """For the next turn; 0 at first and after a failure, so that it is soon known whether the node answers."""
        self._bad, self._lost = 0, False

    @property
    def troubled(self) -> bool:
        """Whether it cannot be read now, held lines that are no records, or lacked some that were."""
        return self._silent or self._bad > 0 or self._lost

    def run(self) -> None:
        """Follow until the desk is closed."""
        while not self._desk.stopped.is_set():
            try:
                if self._silent:
                    self._roster.look()
                self._turn()
            except GpuShareError as error:
                self._failed(error)
            else:
                self._went_well()
            self._desk.stopped.wait(self._delay)

    def _turn(self) -> None:
        bad = 0
        try:
            for line in remote.follow(self._roster.api, self._roster.agent(self._node), self._last, self._seconds):
                try:
                    record = read(line)
                except RecordError:
                    bad += 1
                    continue
                if lost := missing(self._last, record["seq"]):
                    self._lost = True
                    self._say(lost)
                self._last = record["seq"]
                if self._wanted.takes(record):
                    self._desk.leave(partial(self._printer.show, line, record, self._node))
        finally:
            if bad:
                self._bad += bad
                self._say(_bad(bad))

    def _failed(self, error: GpuShareError) -> None:
        if not self._silent:
            self._say(f"its log cannot be followed: {sentence(error)}; it is tried again until it can")
        self._delay = min(2 * self._delay, MAX_DELAY)
        self._silent, self._seconds = True, 0

    def _went_well(self) -> None:
        if self._silent:
            self._say("its log is followed again")
        self._silent, self._seconds, self._delay = False, TURN, FOLLOW_SECONDS

    def _say(self, text: str) -> None:
        self._desk.leave(partial(warn, str(printable(f"node {self._node}: {text}"))))


def _bad(count: int) -> str:
    return f"{count} lines are no records; run 'gpu-share audit verify'"
