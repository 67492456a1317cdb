"""What is free on each device and who could have it, from watches alone; it shares no code with the product.

It is kept twice. In *claims* room is back when the API server shows the claim gone, the earliest moment at which any
scheduler may give it away again; in *holders* already when the pod that held it is gone, which is what people see.
A pod has room from the moment a device has all it asks for, for as long as one does; if others, whose turn it may have
been, take the last of it first, its room is gone and its next one counts anew.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.integration.controlplane.checker import allocated, offers, quantity

Object = dict[str, Any]
Device = tuple[str, str, str]
Amount = tuple[int, ...]
"""Bytes of memory, percent of compute, clients."""
CAPACITIES: Final = ("memory", "compute", "clients")
MIB: Final = 2**20


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A pod without a node. ``since``: when its room began, ``None`` without room; ``where`` is one device of it."""

    need: Amount
    since: float | None = None
    where: Device | None = None
    claimed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pod that got its node: seconds since it was asked for, since there was room by each account."""

    name: str
    need: Amount
    at: float
    since_asked: float
    since_claims: float
    since_holders: float


class Room:
    """One account: what is free on each device, and since when each waiting pod has room."""

    def __init__(self, devices: Mapping[Device, Amount]) -> None:
        self.free = {device: list(amount) for device, amount in devices.items()}
        self.waiting: dict[str, Waiting] = {}

    def ask(self, name: str, need: Amount, now: float) -> None:
        """A pod waits from now on."""
        self.waiting[name] = each = Waiting(need=need)
        self._look(each, now)

    def take(self, device: Device, amount: Amount, now: float) -> bool:
        """Somebody was given part of a device. False when the device did not have it."""
        self._change(device, amount, -1)
        for each in self.waiting.values():
            if each.where == device and not each.claimed:
                self._look(each, now)
        return min(self.free[device]) >= 0

    def give(self, device: Device, amount: Amount, now: float) -> None:
        """That part is free again."""
        self._change(device, amount, 1)
        for each in self.waiting.values():
            if each.since is None and not each.claimed and self._fits(each.need, device):
                each.since, each.where = now, device

    def claimed(self, name: str, now: float) -> None:
        """The pod has its device, and waits for its node alone: what is taken for it no longer takes its room."""
        if each := self.waiting.get(name):
            each.claimed = True
            each.since = now if each.since is None else each.since

    def leave(self, name: str, now: float) -> float:
        """The pod waits no more. Returns the seconds since its room began."""
        each = self.waiting.pop(name, None)
        return now - each.since if each and each.since is not None else 0.0

    def with_room(self) -> list[str]:
        """Pods that wait although a device has all they ask for."""
        return [name for name, each in self.waiting.items() if each.since is not None]

    def _look(self, each: Waiting, now: float) -> None:
        where = next((device for device in self.free if self._fits(each.need, device)), None)
        since = now if each.since is None else each.since
        each.where, each.since = where, since if where else None

    def _fits(self, need: Amount, device: Device) -> bool:
        return all(has >= wants for has, wants in zip(self.free[device], need, strict=True))

    def _change(self, device: Device, amount: Amount, sign: int) -> None:
        self.free[device] = [has + sign * each for has, each in zip(self.free[device], amount, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a claim (``namespace/name``) has of a device, and for how many seconds it has been seen to have it."""

    claim: str
    amount: Amount
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """More was promised of a device (``driver/pool/name``) than it has; ``promised`` is all that was at that moment."""

    said: str
    device: str
    has: Amount
    promised: tuple[Promise, ...]

    def comes_of(self, claims: Collection[str], seconds: float) -> bool:
        """Whether some of these claims were given what others were given as well, so many seconds ago at most.

        That is where what is promised fits without them, and another claim is as young.
        """
        young = [each for each in self.promised if each.age <= seconds]
        out = [each for each in young if each.claim in claims]
        left = [each.amount for each in self.promised if each not in out]
        fits = all(sum(each[number] for each in left) <= has for number, has in enumerate(self.has))
        return bool(out) and len(young) > 1 and fits


@dataclass(slots=True, kw_only=True)
class _Held:
    """What a claim holds, and for whom."""

    claim: str
    pod: str
    since: float
    taken: list[tuple[Device, Amount]]
    returned: bool = False
    """To the account of holders."""


@dataclass(slots=True)
class Ledger:
    """Both accounts, fed with watch events; times are seconds of any clock that does not jump. Safe for threads."""

    devices: Mapping[Device, Amount]
    driver: str
    shortfalls: list[Shortfall] = field(default_factory=list)
    bound: dict[str, Bound] = field(default_factory=dict)
    claims: Room = field(init=False)
    holders: Room = field(init=False)
    _asked: dict[str, float] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.claims, self.holders = Room(self.devices), Room(self.devices)

    @classmethod
    def of(cls, slices: Iterable[Object], driver: str) -> "Ledger":
        """An account of everything that slices offer."""
        return cls({device: _amount(has) for device, has in offers(slices, driver).items() if has}, driver)

    @property
    def problems(self) -> list[str]:
        """Every shortfall in a sentence."""
        return [each.said for each in self.shortfalls]

    def ask(self, name: str, memory_mib: int, compute: int, now: float) -> None:
        """A pod of that name is asked for."""
        need = (memory_mib * MIB, compute, 1)
        with self._lock:
            self._asked[name] = now
            self.claims.ask(name, need, now)
            self.holders.ask(name, need, now)

    def pod_event(self, kind: str, pod: Object, now: float) -> None:
        """Take in what the watch says of a pod."""
        name = pod["metadata"]["name"]
        with self._lock:
            if kind == "DELETED":
                self._gone(name, now)
            elif pod["spec"].get("nodeName") and name in self.claims.waiting:
                self._bind(name, now)

    def claim_event(self, kind: str, claim: Object, now: float) -> None:
        """Take in what the watch says of a claim."""
        uid, taken = claim["metadata"]["uid"], [] if kind == "DELETED" else self._taken(claim)
        with self._lock:
            if (held := self._held.get(uid)) and held.taken != taken:
                del self._held[uid]
                self._give(self.claims, held, now)
                self._return(held, now)
            if taken and uid not in self._held:
                self._held[uid] = _Held(claim=named(claim), pod=_owner(claim), since=now, taken=taken)
                self._take(self._held[uid], now)

    def fill(self) -> float:
        """Part of all memory that is taken."""
        with self._lock:
            free = sum(each[0] for each in self.claims.free.values())
        return 1 - free / sum(each[0] for each in self.devices.values())

    def stuck(self) -> list[str]:
        """Pods that wait although there is room for them by the account of claims."""
        with self._lock:
            return self.claims.with_room()

    def settled(self, after: int = 0) -> list[Bound]:
        """All that were bound until now, in that order, but the first so many."""
        with self._lock:
            return list(itertools.islice(self.bound.values(), after, None))

    def open(self, now: float) -> list[float]:
        """For how many seconds those have had room that still wait."""
        with self._lock:
            return [now - each.since for each in self.claims.waiting.values() if each.since is not None]

    def without_room(self) -> int:
        """How many wait because no device has what they ask for."""
        with self._lock:
            return sum(each.since is None for each in self.claims.waiting.values())

    def _bind(self, name: str, now: float) -> None:
        need = self.claims.waiting[name].need
        waited = [room.leave(name, now) for room in (self.claims, self.holders)]
        self.bound[name] = Bound(
            name=name, need=need, at=now, since_asked=now - self._asked[name],
            since_claims=waited[0], since_holders=waited[1],
        )  # fmt: skip

    def _gone(self, name: str, now: float) -> None:
        for room in (self.claims, self.holders):
            room.leave(name, now)
        for held in self._held.values():
            if held.pod == name:
                self._return(held, now)

    def _take(self, held: _Held, now: float) -> None:
        for room in (self.claims, self.holders):
            room.claimed(held.pod, now)
            for device, amount in held.taken:
                if not room.take(device, amount, now) and room is self.claims:
                    self._short(held, device, amount, now)

    def _short(self, held: _Held, device: Device, amount: Amount, now: float) -> None:
        name = "/".join(device)
        promised = tuple(
            Promise(claim=each.claim, amount=part, age=now - each.since)
            for each in self._held.values()
            for where, part in each.taken
            if where == device
        )
        said = f"{held.claim}: {name} had not {amount} left"
        self.shortfalls.append(Shortfall(said=said, device=name, has=self.devices[device], promised=promised))

    def _return(self, held: _Held, now: float) -> None:
        if not held.returned:
            held.returned = True
            self._give(self.holders, held, now)

    def _give(self, room: Room, held: _Held, now: float) -> None:
        for device, amount in held.taken:
            room.give(device, amount, now)

    def _taken(self, claim: Object) -> list[tuple[Device, Amount]]:
        found = [((r["driver"], r["pool"], r["device"]), r) for r in allocated(claim, self.driver)]
        return [(device, _consumed(r)) for device, r in found if device in self.devices]


def _owner(claim: Object) -> str:
    owners = claim["metadata"].get("ownerReferences") or []
    return str(next((each["name"] for each in owners if each["kind"] == "Pod"), ""))


def named(claim: Object) -> str:
    """A claim's namespace and name."""
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def _consumed(result: Object) -> Amount:
    consumed = result.get("consumedCapacity") or {}
    return tuple(int(quantity(consumed[name])) if name in consumed else 0 for name in CAPACITIES)


def _amount(has: Mapping[str, Any]) -> Amount:
    return tuple(int(has.get(name, 0)) for name in CAPACITIES)
