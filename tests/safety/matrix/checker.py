"""The invariants, checked on what was seen of a run. Shares no code with the product, its records' or its judge's."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.reasons import Reason
from tests.safety.matrix.evidence import Evidence
from tests.safety.matrix.trace import Event

POLL: Final = 0.02
SAMPLES: Final = 3
ROUNDING: Final = 1e-6
KILLS: Final = 3
WINDOW: Final = 2.4
COOL_DOWN: Final = 0.6
SPACING: Final = 1.2
MAX_GAP: Final = 0.4
MAX_THREADS: Final = 12
MORE_FDS: Final = 8
MORE_KIB: Final = 24 * 1024
WAITS: Final = "UNKILLABLE"
"""A record about an INTENT whose answer follows."""
Row = tuple[int, int]


@dataclass
class World:
    """Who is who, as the run goes on, and what each thread of the enforcer was last shown."""

    container: dict[int, str | None] = field(default_factory=dict)
    role: dict[int, str] = field(default_factory=dict)
    shown: dict[str, list[Row] | None] = field(default_factory=dict)
    signalled: set[int] = field(default_factory=set)
    first: dict[str | None, set[int]] = field(default_factory=dict)
    """Who held memory of a container that is ended, when the first of it was signalled."""
    again: set[str | None] = field(default_factory=set)
    """Containers in which others hold memory since, or of which a kill had ended: they are ended whole."""

    def take(self, event: Event) -> None:
        data = event.data
        if event.what == "person":
            self.container[data["pid"]], self.role[data["pid"]] = data["container"], data["role"]
        if event.what == "sample":
            self.shown[data["thread"]] = data["rows"]
            others = (self.container.get(pid) for pid, _ in data["rows"] or () if self._is_new(pid))
            self.again.update(others)
        if event.what == "acted" and data["container"] in self.first:
            self.again.add(data["container"])

    def signal(self, pid: int, thread: str) -> None:
        """Note a signal."""
        container = self.container.get(pid)
        self.signalled.add(pid)
        self.first.setdefault(container, {each for each, _ in self.shown.get(thread) or ()})

    def _is_new(self, pid: int) -> bool:
        return pid not in self.first.get(self.container.get(pid), {pid})

    def held(self, container: str | None, rows: Sequence[Row] | None) -> int:
        """MiB that a container holds in one sample."""
        return sum(mib for pid, mib in rows or () if self.container.get(pid) == container)


def check(seen: Evidence) -> list[str]:
    """Return the broken invariants, each as a sentence that begins with its number."""
    found = [
        *_touched(seen),
        *_recorded_first(seen),
        *_answered(seen),
        *_limited(seen),
        *_graced(seen),
        *_bounded(seen),
    ]
    found += ["L: what had to happen did not"] * seen.late + ["L: it did not stop when told to"] * seen.hung
    return found


def _touched(seen: Evidence) -> Iterator[str]:
    """I1 and I2, by what was sent and by what the kernel says arrived."""
    world = World()
    for event in seen.events:
        world.take(event)
        if event.what == "signal":
            yield from _mistaken(seen, world, event.data)
            world.signal(event.data["pid"], event.data["thread"])
    for pid in seen.harmed:
        number = "I2" if world.role.get(pid) == "protected" else "I1"
        yield f"{number}: process {pid} ({world.role.get(pid)}) was harmed"
    for event in seen.events:
        if event.what == "died" and event.data["pid"] not in world.signalled:
            yield f"I1: process {event.data['pid']} was ended by nothing that was seen"


def _mistaken(seen: Evidence, world: World, data: Any) -> Iterator[str]:
    pid, role = data["pid"], world.role.get(data["pid"])
    if role == "protected" or role is None:
        yield f"I2: {data['via']} to {pid}, which is {role or 'nobody known'}"
    elif role != "victim":
        yield f"I1: {data['via']} to {pid}, an {role}"
    elif pid not in world.signalled:
        rows, container = world.shown.get(data["thread"]), world.container[pid]
        whole = not seen.holders_only or container in world.again
        # A container that is ended whole is ended whole, also when it comes under its quota on the way.
        if world.held(container, rows) <= seen.ceiling and not (whole and container in world.first):
            yield f"I1: {data['via']} to {pid}, whose container was not over"
        elif not whole and pid not in {each for each, _ in rows or ()}:
            yield f"I1: {data['via']} to {pid}, which holds nothing"


def _recorded_first(seen: Evidence) -> Iterator[str]:
    """I3: whoever is sent anything stands in an INTENT that is durable, name and content, and not yet answered."""
    world, names = World(), set[str]()
    intents: dict[str, dict[int, str]] = {}
    answered: dict[str, set[int]] = {}  # by whom: an enforcer whose lock is lost goes on while the next one answers
    for event in seen.events:
        world.take(event)
        if event.what == "names synced":
            names |= set(event.data["names"])
        if event.what == "synced":
            intents[event.data["file"]] = dict(event.data["intents"])
            answered.setdefault(_process(event), set()).update(event.data["answered"])
        if event.what == "signal":
            durable = [
                container for name in names & intents.keys()
                for seq, container in intents[name].items() if seq not in answered.get(_process(event), ())
            ]  # fmt: skip
            pid = event.data["pid"]
            if world.container.get(pid) not in durable:
                yield f"I3: {event.data['via']} to {pid} without a durable INTENT"


def unanswered(files: Mapping[str, bytes]) -> list[int]:
    """Numbers of the INTENTs that nothing answers."""
    with suppress(ValueError, KeyError):
        records = [record for record, _ in _records(files)]
        answered = {record.get("intent") for record in records if record["kind"] != WAITS}
        return [record["seq"] for record in records if record["kind"] == "INTENT" and record["seq"] not in answered]
    return []


def _records(files: Mapping[str, bytes]) -> list[tuple[dict[str, Any], bytes]]:
    lines = [line for data in files.values() for line in data.replace(b"\0", b"").split(b"\n") if line]
    return sorted(((json.loads(line), line) for line in lines), key=lambda pair: int(pair[0]["seq"]))


def _answered(seen: Evidence) -> Iterator[str]:
    """I4: each INTENT has one answer after it, and the chain is whole."""
    try:
        records = _records(seen.files)
    except (ValueError, KeyError) as error:
        yield f"I4: the log has a line that is not a record: {error}"
        return
    previous = "sha256:" + "0" * 64
    for number, (record, line) in enumerate(records, 1):
        cut = line.rindex(b',"hash":"')
        digest = "sha256:" + hashlib.sha256(line[:cut] + b"}").hexdigest()
        if (record["seq"], record["prev"], record["hash"]) != (number, previous, digest):
            yield f"I4: the chain breaks at record {record['seq']}, the {number}th"
            break
        previous = digest
    for record, _ in records:
        answers = [each["seq"] for each, _ in records if each.get("intent") == record["seq"] and each["kind"] != WAITS]
        if record["kind"] == "INTENT" and (len(answers) != 1 or answers[0] < record["seq"]):
            yield f"I4: INTENT {record['seq']} has {len(answers)} answers"


def _limited(seen: Evidence) -> Iterator[str]:
    """I5: so many kills a minute, and a container is let be after one."""
    kills = list(_episodes(seen))
    for at, container in kills:
        near = [each for each in kills if at <= each[0] < at + WINDOW - POLL]
        if len(near) > KILLS:
            yield f"I5: {len(near)} kills within {WINDOW} s"
            break
        again = [each - at for each, other in near if other == container and 0 < each - at < SPACING - POLL]
        if again:
            yield f"I5: the same container again after {again[0]:.2f} s"
    ended: dict[tuple[str, str], float] = {}
    for event in seen.events:
        if event.what == "acted" and event.data["reason"] != Reason.BACK_UNDER_QUOTA:
            ended[_process(event), event.data["container"]] = event.at
        if event.what != "decided":
            continue
        if event.at - ended.get((_process(event), event.data["container"]), 0) < COOL_DOWN - POLL:
            yield "I5: decided again before the cool-down was over"


def _process(event: Event) -> str:
    """Which enforcer did it."""
    return str(event.data["thread"]).partition(":")[0]


def _episodes(seen: Evidence) -> Iterator[tuple[float, tuple[str, str | None]]]:
    """The first signal of each act: when, by whom, and to which container. What MPS refused was none.

    What an enforcer died over the next decides again at once, so that the same container may be met by two of them.
    """
    world = World()
    begun: set[tuple[str, str | None]] = set()
    for event in seen.events:
        world.take(event)
        if event.what in {"act", "acted"}:
            begun.discard((_process(event), event.data["container"]))
        if event.what == "signal" and event.data["number"]:
            whose = _process(event), world.container.get(event.data["pid"])
            if whose not in begun:
                begun.add(whose)
                yield event.at, whose


@dataclass
class _Grace:
    """How long a container has been seen over its quota: at most, and apart from what a fault took."""

    most: float = 0.0
    least: float = 0.0
    in_row: int = 0
    beyond: int = 0
    last: float | None = None
    blind: bool = False
    anew: bool = False
    sure: float | None = None
    """When last seen over apart from a fault, in which the enforcer may have been blind."""

    def begin_anew(self) -> None:
        """Another enforcer goes on: it knows what was seen up to a look or two before the last one's end."""
        self.anew, self.in_row, self.beyond = True, 0, 0

    def look(self, at: float, *, over: bool, blind: bool, disturbed: bool, grace: float) -> None:
        if blind:
            self.blind, self.in_row = True, 0
            return
        if not over or (self.last is not None and at - self.last > MAX_GAP):
            self.least = 0.0
            self.in_row = self.beyond = 0
            self.last = None
        if not over:
            return
        self.most += POLL if self.last is None and self.most else 0.0  # a new violation costs at least so much
        step = 0.0 if self.last is None or self.blind else at - self.last
        self.most += step
        if not disturbed:
            most = MAX_GAP / 2 if self.anew else MAX_GAP - POLL
            if self.sure is not None and at - self.sure > most:
                self.least, self.beyond = 0.0, 0
            self.least += step if self.sure == self.last else 0.0  # a step out of a fault is the fault's
            self.anew, self.sure = False, at
        self.in_row += 1
        self.last, self.blind = at, False
        self.beyond += self.least >= grace and self.in_row >= SAMPLES and not disturbed


def _graced(seen: Evidence) -> Iterator[str]:
    """I6: nobody is decided upon before the grace period is over, nor more than one look after it.

    A container that was signalled before has no second grace period.
    """
    world, main, after = World(), "", 0
    graces: dict[str, _Grace] = {}
    excused: set[str] = set()
    signalled: set[str | None] = set()
    for event in seen.events:
        world.take(event)
        if event.what == "ready":
            main = event.data["thread"]
            for each in graces.values():
                each.begin_anew()
        if event.what == "forgotten":
            graces.clear()
        if event.what == "sample" and event.data["thread"] == main:
            after += bool(seen.lifted) and event.data["clock"] >= seen.lifted
            # What began before the fault was lifted, or is the first look after, is the fault's time.
            _look(seen, world, graces, event, disturbed=bool(seen.struck) and event.at >= seen.struck and after <= 1)
        if event.what == "signal" and event.data["number"]:
            signalled.add(world.container.get(event.data["pid"]))
        if event.what == "decided":
            container = event.data["container"]
            if container not in signalled:
                grace = graces.setdefault(container, _Grace())
                yield from _decided(seen, grace, exact=container not in excused)
            excused.add(container)


def _look(seen: Evidence, world: World, graces: dict[str, _Grace], event: Event, *, disturbed: bool) -> None:
    rows = event.data["rows"]
    for container in {each for each in world.container.values() if each is not None}:
        over = world.held(container, rows) > seen.ceiling
        graces.setdefault(container, _Grace()).look(
            event.data["clock"], over=over, blind=rows is None, disturbed=disturbed, grace=seen.grace
        )


def _decided(seen: Evidence, grace: _Grace, *, exact: bool) -> Iterator[str]:
    if grace.most < seen.grace - ROUNDING:
        yield f"I6: decided after {grace.most:.3f} s of {seen.grace} s of grace"
    if exact and grace.beyond > 2:
        yield f"I6: decided {grace.beyond - 1} looks after the grace period was over"


def _bounded(seen: Evidence) -> Iterator[str]:
    """I8: descriptors, threads and memory. A process that does not end is watched until the enforcer itself ends."""
    watching = any(event.what == "notice" and event.data["reason"] == "Unkillable" for event in seen.events)
    ready = next((event.data for event in seen.events if event.what == "ready"), None)
    for event in seen.events:
        if ready is None or event.what not in {"closing", "closed"}:
            continue
        data = event.data
        if event.what == "closed" and data["handles"] and not watching:
            yield f"I8: {data['handles']} handles of processes are left open"
        if data["fds"] > ready["fds"] + MORE_FDS:
            yield f"I8: {data['fds']} descriptors, {ready['fds']} at the start"
        if data["threads"] > MAX_THREADS:
            yield f"I8: {data['threads']} threads"
        if data["kib"] > ready["kib"] + MORE_KIB:
            yield f"I8: {data['kib']} KiB, {ready['kib']} at the start"
