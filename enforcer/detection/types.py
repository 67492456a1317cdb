"""What the detector is given, remembers and returns, as frozen values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.detection.budget import Account, AccountKey
from enforcer.quota.types import Quota
from gpushare.reasons import Reason

ContainerKey = tuple[str, str]
"""Pod UID and container name: what stays the same when a container restarts."""
Key = tuple[ContainerKey, str]
"""A container and the UUID of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorConfig:
    """How careful to be. Times in seconds.

    ``samples`` over quota are the least for a kill. ``max_gap`` is the longest time between two samples that still
    counts; after a longer one nobody knows what happened meanwhile. ``first`` is what the first sample of a violation
    counts: nobody knows since when it lasts. A node ends ``kills`` containers in a ``window``; that counts from
    the end of a kill. A container is spared for ``kill_interval`` after a kill acted on it, while its memory is freed,
    and for ``cool_down`` after a kill that did nothing to it, unless it was back within its quota.
    ``notice``: from the notice to give borrowed memory back to the kill.
    """

    samples: int = 3
    max_gap: float = 10.0
    first: float = 0.5
    kills: int = 3
    window: float = 60.0
    cool_down: float = 15.0
    kill_interval: float = 1.0
    notice: float = 10.0


class Phase(StrEnum):
    """Where a container stands on one GPU."""

    NOT_STARTED = "NotStarted"
    WITHIN = "Within"
    OVER = "Over"
    WARNED = "Warned"
    LOWERED = "Lowered"
    KILLING = "Killing"
    COOLING_DOWN = "CoolingDown"
    POSTPONED = "Postponed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One container on one GPU.

    ``used`` is what is used of its budget at the time ``at``, in seconds. ``killed``: since the budget was full last.
    ``samples`` in a row were over quota, and ``over_for`` seconds.
    ``spared_until``: after a kill. ``threshold_mib`` is the kill threshold that counts; one that was lowered below what
    the container used counts later (``lowered``: when it was).
    """

    used_mib: int = 0
    phase: Phase = Phase.WITHIN
    over_for: float = 0.0
    used: float = 0.0
    at: float = 0.0
    samples: int = 0
    killed: bool = False
    spared_until: float = 0.0
    threshold_mib: int | None = None
    lowered: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrower:
    """A container that holds borrowed memory of a GPU, in ``samples`` in a row.

    It was ``warned`` to give some back, and its kill was decided at ``killed``; ``None``: not.
    """

    samples: int = 0
    warned: float | None = None
    killed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loans:
    """The loans of one GPU at its last sample ``at``; ``short`` since then, ``None`` where it is not.

    ``needed`` since then is the same, but for memory of kills that counts as coming: it is free when this ends.
    """

    short: float | None = None
    needed: float | None = None
    at: float = 0.0
    borrowers: Mapping[Key, Borrower] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DetectorState:
    """All that the detector remembers.

    ``sampled`` is when each GPU was read last, and ``blind`` those that could not be read since. ``kills`` are those of
    the last minute that count towards the most a node makes. ``open`` is the breaker's. ``loans`` are by GPU, and
    are not kept over a restart: who was warned to give memory back is warned again.
    """

    cases: Mapping[Key, ContainerState] = field(default_factory=dict)
    accounts: Mapping[AccountKey, Account] = field(default_factory=dict)
    sampled: Mapping[str, float] = field(default_factory=dict)
    blind: frozenset[str] = frozenset()
    kills: Mapping[ContainerKey, float] = field(default_factory=dict)
    open: bool = False
    loans: Mapping[str, Loans] = field(default_factory=dict)

    def of(self, quota: Quota) -> ContainerState:
        """Return what is known of a container on a GPU."""
        return self.cases.get(key_of(quota), ContainerState())


def container_key(quota: Quota) -> ContainerKey:
    """Name a container, whatever its id is now."""
    return quota.pod_uid, quota.container


def key_of(quota: Quota) -> Key:
    """Name a container on a GPU."""
    return container_key(quota), quota.gpu


class Decision(StrEnum):
    """What the detector decides."""

    GRACE_STARTED = "GraceStarted"
    """Over quota in one sample: time begins to count."""
    WARNED = "Warned"
    """Over quota in enough samples to be believed."""
    LOWERED = "Lowered"
    """Over a kill threshold that was lowered below what it used, and does not count yet."""
    KILL = "Kill"
    RATE_LIMITED = "RateLimited"
    """Would be killed, had this node not killed too many containers in this minute."""
    BREAKER_OPEN = "BreakerOpen"
    """Would be killed, were the breaker not open."""
    BACK_UNDER = "BackUnder"
    LENT = "Lent"
    """Borrows memory, in enough samples to be believed."""
    RECLAIM_NOTICE = "ReclaimNotice"
    """Must give back borrowed memory in ``kill_in`` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDecision:
    """One decision about one container on one GPU.

    ``targets`` are the processes to end, largest first; ``kill_in`` the seconds left, ``None`` where only a warning is
    wanted; ``at`` is when a KILL was decided; ``respawns``: ending some of its processes has not helped.
    ``overdrawn``: a budget is used up by more than what a worker and its successor explain.
    ``unaccounted_mib`` is the part of ``used_mib`` that NVML lists for no process.
    ``reclaim_mib`` of borrowed memory have to be given back, 0 where the decision is about a quota. Then ``quota`` is
    without the loan.
    """

    decision: Decision
    quota: Quota
    used_mib: int
    over_for: float = 0.0
    kill_in: float | None = None
    targets: tuple[ProcessUsage, ...] = ()
    at: float = 0.0
    respawns: bool = False
    overdrawn: bool = False
    unaccounted_mib: int = 0
    reclaim_mib: int = 0

    @property
    def reason(self) -> Reason:
        """What it is about: a loan, memory to be given back, or a quota."""
        if self.decision is Decision.LENT:
            return Reason.LENT
        return Reason.RECLAIMED if self.reclaim_mib else Reason.OVER_QUOTA
