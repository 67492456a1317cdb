"""What the detector is given, remembers and returns, as frozen values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.detection import debt as debts
from enforcer.detection import doubt, storm
from enforcer.detection.debt import Debt, DebtKey
from enforcer.detection.kill_history import ContainerKey, RecentKill, Tenant
from enforcer.quota.types import Quota

Key = tuple[str, str]
"""Container id and GPU UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorConfig:
    """How careful to be. Times in seconds.

    ``max_gap`` is the longest time between two looks that still counts; after a longer one nobody knows what happened
    meanwhile and the grace period starts again. ``kills`` in a ``window`` are the most a node makes of one namespace;
    for ``storm_window`` they count towards a storm. They count from their end: a first signal may be long in coming. A
    container is spared for ``kill_interval`` after a kill acted on it, while its memory is freed, and for ``cool_down``
    after a kill that did nothing to it.
    """

    samples: int = 3
    max_gap: float = 10.0
    kills: int = 3
    window: float = 60.0
    storm_window: float = 600.0
    cool_down: float = 15.0
    kill_interval: float = 1.0
    debt: debts.Terms = field(default_factory=debts.Terms)


class Phase(StrEnum):
    """Where a container stands on one GPU."""

    NOT_STARTED = "NotStarted"
    WITHIN = "Within"
    OVER = "Over"
    WARNED = "Warned"
    KILLING = "Killing"
    COOLING_DOWN = "CoolingDown"
    POSTPONED = "Postponed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationState:
    """One container on one GPU: samples in a row over quota, seconds over it, when last seen over.

    ``blind``: its GPU could not be read since. ``cgroup_inode`` distinguishes its cgroup from a later one of that name.
    ``lenient``: only a warning was wanted. After that warning it has a full grace period once more is. ``graceless``:
    no grace period, for its credit is used up, it was killed lately, or it is fresh (``enforcer.detection.fresh``).
    """

    used_mib: int = 0
    samples: int = 0
    over_for: float = 0.0
    last: float | None = None
    blind: bool = False
    lenient: bool = False
    cgroup_inode: int | None = None
    warned: bool = False
    acting: bool = False
    acted: bool = False
    postponed: bool = False
    graceless: bool = False


@dataclass(frozen=True, slots=True)
class DetectorState:
    """All that the detector remembers: cases, when it decided to kill lately, and until when it lets a place be.

    A place stays in ``cooling`` for the breaker's window after that: who was acted upon lately comes after the others.
    ``open`` is the breaker's; ``opening`` says who opened it, and is ``None`` where an operator did. ``trips`` is who
    opened it within the hour, and when. ``within`` is since when each place is within its quota, ``None`` before the
    first sample: what runs then is not fresh. ``ended`` are fresh containers that ended over quota.
    """

    cases: Mapping[Key, ViolationState] = field(default_factory=dict)
    kills: tuple[RecentKill, ...] = ()
    cooling: Mapping[ContainerKey, float] = field(default_factory=dict)
    open: bool = False
    debts: Mapping[DebtKey, Debt] = field(default_factory=dict)
    opening: storm.Opening | None = None
    trips: Mapping[Tenant, float] = field(default_factory=dict)
    within: Mapping[ContainerKey, float] | None = None
    ended: tuple[RecentKill, ...] = ()
    thresholds: Mapping[DebtKey, doubt.Threshold] = field(default_factory=dict)


class Decision(StrEnum):
    """What the detector decides."""

    GRACE_STARTED = "GraceStarted"
    """Over quota in one sample: the grace period has begun."""
    WARNED = "Warned"
    """Over quota in enough samples to be believed."""
    IN_DEBT = "InDebt"
    """Half of the credit is used up, by this violation and earlier ones."""
    KILL = "Kill"
    RATE_LIMITED = "RateLimited"
    """Would be killed, had this node not seen too many kills of its namespace in this minute."""
    BREAKER_OPEN = "BreakerOpen"
    """Would be killed, were the breaker not open."""
    BACK_UNDER = "BackUnder"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDecision:
    """One decision about one container on one GPU.

    ``targets`` are the processes to end, largest first; ``kill_in`` the seconds left, ``None`` where only a warning is
    wanted; ``at`` is when a KILL was decided; ``respawns``: ending some of its processes has not helped. ``debt`` is in
    seconds, 0 below half of the credit; ``unaccounted_mib`` is the part of ``used_mib`` that NVML lists for no process.
    """

    decision: Decision
    quota: Quota
    used_mib: int
    over_for: float = 0.0
    kill_in: float | None = None
    targets: tuple[ProcessUsage, ...] = ()
    at: float = 0.0
    respawns: bool = False
    debt: float = 0.0
    unaccounted_mib: int = 0
