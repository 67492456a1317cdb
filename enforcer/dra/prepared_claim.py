"""A prepared claim: what its containers may hold, frozen when the kubelet asked, and how that is kept on disk. Pure.

Kept as one JSON object per claim, version 1, with the fields below in lowerCamelCase.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Self

from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Mode
from enforcer.runtime.codec import Form, Reader, row
from gpushare.errors import ConfigError
from gpushare.formats import CLAIM
from gpushare.patterns import Pattern
from gpushare.reasons import Reason

KEPT: Final = 100
"""Characters of an annotation that are kept to know it again."""
_UID: Final = Pattern(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", 63)
_REQUEST: Final = Pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", 63)
Uid = Annotated[str, Form(_UID, "a UID")]
Request = Annotated[str, Form(_REQUEST, "the name of a request")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """What one request was allocated: a device and, where that is a GPU, how much of it; of several, one of them.

    ``gpu`` is ``None`` for the status device. ``memory_mib`` and ``compute`` (percent) are what was consumed,
    ``device_mib`` is the memory of the whole card. ``mode`` is how the GPU is shared while this claim lasts.
    """

    request: Request
    pool: str
    device: str
    share_id: str | None = None
    gpu: str | None = None
    memory_mib: int = 0
    compute: int = 0
    device_mib: int = 0
    mode: Mode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimit:
    """What one container may hold of each GPU of its request: MiB, and percent of its SMs or ``None`` for no cap.

    It reserves ``memory_mib``, and may borrow up to a ``limit_mib``.
    """

    container: str
    request: Request
    memory_mib: int
    compute: int | None = None
    limit_mib: int | None = None

    @property
    def most_mib(self) -> int:
        """MiB that it may hold, borrowed memory included."""
        return max(self.memory_mib, self.limit_mib or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeResult:
    """The result of the last resize request of a container.

    ``asked`` is the annotation as it stood, so that it is answered once; ``effect`` is when the limit itself changes,
    empty where nothing does. ``reason`` is a ``Reason``, ``note`` a sentence for the container's owner.
    """

    container: str
    asked: str
    done: bool
    before_mib: int
    reason: str
    note: str
    effect: str = ""

    def answers(self, container: str, asked: Any) -> bool:
        """Tell whether this is the answer to that resize request."""
        return (self.container, self.asked) == (container, shortened(asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What CUDA reports as the memory of a GPU: ``total_mib``, or the container's limit where the driver keeps that.

    ``sms`` is the number of its multiprocessors, on which the size of a CUDA context depends; 0 in claims of enforcers
    that did not keep it.
    """

    gpu: str
    total_mib: int
    by_cgroup: bool = False
    sms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """One claim as it was prepared, for the one pod that uses it."""

    uid: Uid
    namespace: str
    name: str
    pod: str
    pod_uid: Uid
    granted: tuple[AllocatedDevice, ...]
    limits: tuple[ContainerLimit, ...]
    terms: Terms
    own_shared_memory: tuple[Request, ...] = ()
    """Requests whose containers bring a /dev/shm of their own."""
    driver_capabilities: Mapping[Request, str] = field(default_factory=dict)
    """By request, what NVIDIA's toolkit brings to its containers; without an entry, what they ask for."""

    seen: tuple[Seen, ...] = ()
    """What programs see of its GPUs; none in claims of enforcers that did not keep it."""
    settings: Mapping[Request, tuple[str, ...]] = field(default_factory=dict)
    """By request, which variables of frameworks its containers get: keys of ``framework_variables.SETTINGS``."""
    clients: Mapping[Request, int] = field(default_factory=dict)
    """By request, how many MPS clients it consumed."""
    caps: Mapping[Request, int] = field(default_factory=dict)
    """By request that reserved no compute, the percent of the SMs it may use all the same; without an entry, all."""
    answers: tuple[ResizeResult, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs it holds something of."""
        return tuple(sorted({each.gpu for each in self.granted if each.gpu is not None}))

    @property
    def has_status(self) -> bool:
        """Whether a container of the pod reads the pod's status directory."""
        return any(each.gpu is None for each in self.granted)

    @property
    def modes(self) -> dict[str, Mode]:
        """By GPU, how it is shared."""
        return {each.gpu: each.mode for each in self.granted if each.gpu is not None and each.mode is not None}

    def shared_by(self, modes: Mapping[str, Mode | None]) -> Self:
        """Say the same of GPUs that are shared like this."""
        return replace(self, granted=tuple(replace(each, mode=modes.get(each.gpu or "")) for each in self.granted))

    def of(self, request: str) -> tuple[AllocatedDevice, ...]:
        """Name what a request was allocated of GPUs: one of each."""
        return tuple(each for each in self.granted if each.request == request and each.gpu is not None)

    def limits_of(self, request: str) -> tuple[ContainerLimit, ...]:
        """Return the limits of the containers that use a request."""
        return tuple(each for each in self.limits if each.request == request)

    def thread_percentage(self, request: str) -> int | None:
        """Return the percent of the SMs that the processes of a request may use, the same for all of its containers.

        ``None``: there is no cap, or its containers differ, so that each states its own and one without has no cap.
        """
        limits = {limit.compute for limit in self.limits_of(request)}
        reserved = limits or {each.compute or None for each in self.of(request)}
        if len(reserved) > 1:
            return None
        return next(iter(reserved)) or self.caps.get(request)

    def mib_on(self, gpu: str) -> int:
        """MiB it consumed of one GPU."""
        return sum(each.memory_mib for each in self.granted if each.gpu == gpu)


def shortened(asked: Any) -> str:
    """Shorten what an annotation says to what is kept of it."""
    return str(asked)[:KEPT]


def safe_uid(uid: str) -> bool:
    """Tell whether a UID can be part of a file name."""
    return _UID.fullmatch(uid) is not None


_READ: Final = Reader(
    PreparedClaim,
    lacking={
        "answers", "ownSharedMemory", "driverCapabilities", "seen", "sms", "clients", "caps", "settings", "limitMib",
    },
    blank={"asked", "effect"},
)  # fmt: skip
"""Files of older enforcers lack these fields."""


def encode(claim: PreparedClaim) -> bytes:
    """Write a claim as its file holds it."""
    return json.dumps({"version": CLAIM.version, **row(claim)}, indent=1, default=row).encode() + b"\n"


def decode(data: bytes) -> PreparedClaim:
    """Read a claim's file; unknown fields of newer versions are passed over.

    Raises:
        ConfigError: it is not what ``encode`` writes.
    """
    content = CLAIM.load(data)
    try:
        for each in content["granted"]:  # before there were several ways to share a GPU, it was through MPS
            each.setdefault("mode", None if each["gpu"] is None else Mode.MPS)
        claim = _READ(content)
    except KeyError as error:
        raise _unreadable(f"has no field {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(f"cannot be read: {error}") from error
    shared = {each.request for each in claim.granted if each.gpu is not None}
    for limit in claim.limits:
        if limit.request not in shared:
            raise _unreadable(f"has a limit for request {limit.request}, to which it assigns no GPU")
    return claim


def _unreadable(problem: str) -> ConfigError:
    return ConfigError(f"the file {problem}; {CLAIM.remedy}", Reason.CHECKPOINT_UNREADABLE)
