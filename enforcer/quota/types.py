"""Quotas and containers as frozen values, without behaviour beyond arithmetic. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from gpushare.reasons import Reason

DEFAULT_GRACE_SECONDS: Final = 5.0
MIN_TOLERANCE_MIB: Final = 256
TOLERANCE_SHARE: Final = 20
"""One twentieth, 5 %: a process that fills its pinned limit is never over quota."""
WHOLE_POD: Final = "*"
"""Stands for all containers of a pod; none is called so."""


class Mode(StrEnum):
    """How a GPU is shared, and so what its limits rest on.

    ``MPS``: side by side, with limits that NVIDIA's daemon keeps. ``TIME_SLICING``: by turns, as the driver does it;
    limits are watched, and compute is not limited at all. ``MIG``: an instance cut out of the GPU has one tenant.
    """

    MPS = "mps"
    TIME_SLICING = "time-slicing"
    MIG = "mig"


class ForeignClaims(StrEnum):
    """What follows from claims of NVIDIA's DRA driver: nothing, a report, or quotas that are enforced."""

    OFF = "off"
    REPORT = "report"
    ENFORCE = "enforce"


class OnExceed(StrEnum):
    """What happens to a container over its quota (namespace annotation ``gpu-share.io/on-exceed``)."""

    KILL = "kill"
    KILL_CONTAINER = "kill-container"
    WARN = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one container may hold on one GPU, frozen when its claim was prepared.

    ``container_id`` is the runtime's 64 hex digits as the node shows them, ``None`` until the container has started.
    ``tolerance_mib`` is ``None`` for the default, ``max(256 MiB, 5 %)``.

    The row of a whole pod has the container ``WHOLE_POD`` and the pod's UID as id. ``reserved_mib`` is what the pod's
    claims reserved on that GPU, and ``memory_mib`` 0: it may hold nothing beyond that sum
    (``enforcer.attribution.snapshot``).

    ``memory_mib`` is reserved. With a ``limit_mib`` above it the container may borrow up to that, until others reserve
    the memory (``enforcer.detection.lending``).
    """

    claim_uid: str
    namespace: str
    pod: str
    pod_uid: str
    container: str
    container_id: str | None = None
    gpu: str
    memory_mib: int
    compute_percent: int | None = None
    on_exceed: OnExceed = OnExceed.KILL
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    tolerance_mib: int | None = None
    reserved_mib: int | None = None
    """The most it could be given of that GPU; ``None`` where a quota comes from elsewhere."""
    clients: int | None = None
    """MPS clients that its claim consumed; ``None`` where none are counted."""
    resized: bool = False
    """Whether a resize request changed it: below what the container uses only somebody who forced that."""
    limit_mib: int | None = None
    """From the pod's annotation, within the namespace's maximum, frozen when the claim was prepared; or ``None``."""

    @property
    def whole_pod(self) -> bool:
        """Whether this is the row of a whole pod."""
        return self.container == WHOLE_POD

    @property
    def granted(self) -> bool:
        """Whether anything was given; else the container only has nothing to do on that GPU."""
        return self.memory_mib > 0

    @property
    def most_mib(self) -> int:
        """Memory that it may hold, borrowed memory included: what a limit backend is given."""
        return max(self.memory_mib, self.limit_mib or 0)

    @property
    def may_borrow(self) -> bool:
        """Whether it may hold more than it reserved. Where nobody is killed, nothing can be taken back."""
        return self.most_mib > self.memory_mib and self.on_exceed is not OnExceed.WARN

    @property
    def ceiling_mib(self) -> int:
        """Memory above which the container is over its quota: what it may hold plus the tolerance."""
        default = max(MIN_TOLERANCE_MIB, self.most_mib // TOLERANCE_SHARE)
        return self.most_mib + (default if self.tolerance_mib is None else self.tolerance_mib)

    def without_loan(self) -> Self:
        """Return the quota that is in force while all borrowed memory has to be given back."""
        return replace(self, limit_mib=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """Whether a container's limit on a GPU is in force (``enforcer.limits.verification`` says what each state means).

    ``backend`` is who keeps the limit, ``sentence`` what the state rests on.
    """

    state: Reason
    backend: str
    sentence: str


def pod_row(like: Quota, reserved_mib: int) -> Quota:
    """Write the row of the whole pod, with the terms of a row of that pod."""
    return replace(
        like, container=WHOLE_POD, container_id=like.pod_uid, memory_mib=0, tolerance_mib=0, compute_percent=None,
        reserved_mib=reserved_mib, clients=None, resized=False, limit_mib=None,
    )  # fmt: skip
