"""Decide what rotation does next, from the stored certificates, the wanted names and the time. Pure.

A new authority is taken up in four steps, each safe to be the last one for a while:

1. ``ADD_NEXT``: a new authority exists and signs nothing.
2. The published bundle holds old and new (this is no step of its own: the bundle follows the state before every step).
3. ``SWITCH``: once the bundle has been out for the settling time, new leaves come from the new authority.
4. ``DROP_OLD``: once the last leaf of the old authority has expired, it leaves the bundle.

So a client that trusts the bundle published at any moment accepts whatever a server may present at that moment.
All times are aware datetimes in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

BACKDATED: Final = timedelta(days=1, hours=1)
"""How long before its making a certificate begins: a client whose clock is a day slow accepts it at once."""
MAX_CA_DAYS: Final = 3650
MAX_LEAF_DAYS: Final = 30


class Step(StrEnum):
    """The next thing to do. One step is taken at a time, then everything is read again."""

    NOTHING = "nothing"
    WAIT = "wait"
    ADD_NEXT = "add-next"
    SWITCH = "switch"
    ISSUE_LEAF = "issue-leaf"
    DROP_OLD = "drop-old"


class DueCheck(NamedTuple):
    """Whether something is due, and why, or why not."""

    due: bool
    reason: str


class Plan(NamedTuple):
    """The next step and the sentence for the log."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA certificate. ``problem`` says why it cannot sign (no key, another key, no CA); empty when it can."""

    fingerprint: str
    begins: datetime
    ends: datetime
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A serving certificate. ``issuer`` is the fingerprint of the known authority whose signature it bears, or empty.

    ``problem`` says why it cannot serve whatever the time (torn pair, no key); ``names`` are ``DNS:…`` and ``IP:…``.
    """

    names: frozenset[str]
    issuer: str
    begins: datetime
    ends: datetime
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is stored. ``bundled``: since when ``following`` has been in the published bundle.

    ``retire``: fingerprint of an old authority → when its last leaf ends.
    """

    current: Authority | None = None
    following: Authority | None = None
    old: tuple[Authority, ...] = ()
    leaf: Leaf | None = None
    bundled: datetime | None = None
    retire: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCertificates:
    """What is asked for. ``settle``: how long a bundle must have been out before a leaf may rely on it."""

    names: frozenset[str]
    ca_days: int = 365
    leaf_days: int = MAX_LEAF_DAYS
    settle: timedelta = timedelta(minutes=5)


def next_step(state: State, now: datetime, wanted: DesiredCertificates) -> Plan:
    """Say what to do next. Repeating until ``NOTHING`` or ``WAIT`` brings any state to a good one."""
    if (drop := can_drop(state, now)).due:
        return Plan(Step.DROP_OLD, drop.reason)
    following = needs_following(state, now)
    if following.due:
        return Plan(Step.ADD_NEXT, following.reason)
    switch = can_switch(state, now, wanted)
    if switch.due:
        return Plan(Step.SWITCH, switch.reason)
    leaf = needs_leaf(state, now, wanted)
    if leaf.due and state.current is not None and not unusable(state.current, now):
        return Plan(Step.ISSUE_LEAF, leaf.reason)
    if state.following is not None:
        return Plan(Step.WAIT, switch.reason)
    return Plan(Step.NOTHING, leaf.reason)


def needs_following(state: State, now: datetime) -> DueCheck:
    """Whether a new authority has to be made."""
    if state.following is not None:
        problem = unusable(state.following, now)
        return DueCheck(bool(problem), f"the next CA {problem}" if problem else "the next CA already exists")
    if state.current is None:
        return DueCheck(due=True, reason="no CA exists yet")
    if problem := unusable(state.current, now):
        return DueCheck(due=True, reason=f"the CA {problem}")
    if now >= (moment := renewal(state.current.begins, state.current.ends)):
        return DueCheck(due=True, reason=f"the CA passed two thirds of its lifetime at {moment:%F %R}Z")
    return DueCheck(due=False, reason=f"gpu-share certs renews the CA after {moment:%F}")


def can_switch(state: State, now: datetime, wanted: DesiredCertificates) -> DueCheck:
    """Whether leaves may come from the next authority from now on."""
    if state.following is None:
        return DueCheck(due=False, reason="no next CA exists")
    if not works(state, now):
        return DueCheck(
            due=True, reason="no valid serving certificate exists, so the switch to the next CA breaks no client"
        )
    if state.bundled is None or state.bundled > now:
        return DueCheck(due=False, reason="the published CA bundle does not hold the next CA yet")
    if now < (moment := state.bundled + wanted.settle):
        return DueCheck(
            due=False,
            reason=f"waiting until {moment:%F %T}Z (--settle) for clients to load the bundle with the next CA",
        )
    return DueCheck(due=True, reason=f"the bundle with the next CA has been published since {state.bundled:%F %T}Z")


def needs_leaf(state: State, now: datetime, wanted: DesiredCertificates) -> DueCheck:
    """Whether the serving certificate has to be issued again by the current authority."""
    leaf, current = state.leaf, state.current
    if leaf is None:
        return DueCheck(due=True, reason="no serving certificate exists")
    if problem := _unfit(leaf, current, wanted):
        return DueCheck(due=True, reason=f"the previous serving certificate {problem}")
    if current is not None and now < leaf.ends == current.ends:
        return DueCheck(
            due=False,
            reason="the serving certificate expires with its CA, so a new one from this CA would not last longer",
        )
    return _leaf_in_time(leaf, now)


def can_drop(state: State, now: datetime) -> DueCheck:
    """Whether an old authority may leave the bundle."""
    for old in state.old:
        if now >= old.ends:
            return DueCheck(due=True, reason="an old CA has expired")
        if now >= state.retire.get(old.fingerprint, old.ends):
            return DueCheck(due=True, reason="the last serving certificate of an old CA has expired")
    return DueCheck(due=False, reason="no old CA can be dropped")


def retained(state: State, now: datetime) -> tuple[Authority, ...]:
    """The old authorities that stay when ``DROP_OLD`` is taken."""
    return tuple(o for o in state.old if now < min(o.ends, state.retire.get(o.fingerprint, o.ends)))


def works(state: State, now: datetime) -> bool:
    """Whether a client of the published bundle accepts the serving certificate as it is stored."""
    leaf = state.leaf
    if leaf is None or leaf.problem or not leaf.begins <= now < leaf.ends:
        return False
    known = {a.fingerprint: a for a in (state.current, *state.old) if a is not None}
    signer = known.get(leaf.issuer)
    return signer is not None and signer.begins <= now < signer.ends


def unusable(authority: Authority, now: datetime) -> str:
    """Why an authority cannot sign now, as the end of a sentence; empty when it can."""
    if authority.problem:
        return f"cannot sign: {authority.problem}"
    if now < authority.begins:
        return f"is not valid before {authority.begins:%F %R}Z (check the clock)"
    return f"expired at {authority.ends:%F %R}Z" if now >= authority.ends else ""


def renewal(begins: datetime, ends: datetime) -> datetime:
    """When two thirds of a life are over."""
    return begins + (ends - begins) * 2 / 3


def lifetime(now: datetime, days: int, no_later_than: datetime | None = None) -> tuple[datetime, datetime]:
    """Begin and end of a certificate made now. It never outlives ``no_later_than``, the end of its authority."""
    begins = now - BACKDATED
    ends = begins + timedelta(days=days)
    return begins, ends if no_later_than is None else min(ends, no_later_than)


def _unfit(leaf: Leaf, current: Authority | None, wanted: DesiredCertificates) -> str:
    """Why a serving certificate does not do, whatever the time, as the end of a sentence; empty when it does."""
    checks = (
        (bool(leaf.problem), f"cannot be used: {leaf.problem}"),
        (current is None or leaf.issuer != current.fingerprint, "is not signed by the current CA"),
        (leaf.names != wanted.names, f"is for {_listed(leaf.names)}, not for {_listed(wanted.names)}"),
        (current is not None and leaf.ends > current.ends, "expires after its CA"),
        (
            leaf.ends - leaf.begins > timedelta(days=wanted.leaf_days),
            f"has a lifetime of more than {wanted.leaf_days} days",
        ),
    )
    return next((text for failed, text in checks if failed), "")


def _leaf_in_time(leaf: Leaf, now: datetime) -> DueCheck:
    moment = renewal(leaf.begins, leaf.ends)
    if now < leaf.begins:
        return DueCheck(due=True, reason=f"the serving certificate is not valid before {leaf.begins:%F %R}Z")
    if now >= leaf.ends:
        return DueCheck(due=True, reason=f"the serving certificate expired at {leaf.ends:%F %R}Z")
    if now >= moment:
        return DueCheck(
            due=True, reason=f"the serving certificate passed two thirds of its lifetime at {moment:%F %R}Z"
        )
    return DueCheck(due=False, reason=f"gpu-share certs renews the serving certificate after {moment:%F %R}Z")


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
