"""A prepared claim: what its containers may hold, frozen when the kubelet asked, and how that is kept on disk. Pure.

Kept as one JSON object per claim, version 1, with the fields below in lowerCamelCase.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, TypeVar

from enforcer.quota.file_values import flag, seconds, text, whole
from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Mode, OnExceed
from gpushare.errors import ConfigError
from gpushare.formats import CLAIM
from gpushare.patterns import Pattern
from gpushare.reasons import Reason

T = TypeVar("T")
KEPT: Final = 100
"""Characters of an annotation that are kept to know it again."""
_UID: Final = Pattern(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", 63)
_REQUEST: Final = Pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """What one request was allocated: a device and, where that is a GPU, how much of it; of several, one of them.

    ``gpu`` is ``None`` for the status device. ``memory_mib`` and ``compute`` (percent) are what was consumed,
    ``device_mib`` is the memory of the whole card. ``mode`` is how the GPU is shared while this claim lasts.
    """

    request: str
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
    request: str
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

    uid: str
    namespace: str
    name: str
    pod: str
    pod_uid: str
    granted: tuple[AllocatedDevice, ...]
    limits: tuple[ContainerLimit, ...]
    terms: Terms
    answers: tuple[ResizeResult, ...] = ()
    own_shared_memory: tuple[str, ...] = ()
    """Requests whose containers bring a /dev/shm of their own."""
    driver_capabilities: tuple[tuple[str, str], ...] = ()
    """By request, what NVIDIA's toolkit brings to its containers; without an entry, what they ask for."""

    seen: tuple[Seen, ...] = ()
    """What programs see of its GPUs; none in claims of enforcers that did not keep it."""
    clients: tuple[tuple[str, int], ...] = ()
    """By request, how many MPS clients it consumed."""
    caps: tuple[tuple[str, int], ...] = ()
    """By request that reserved no compute, the percent of the SMs it may use all the same; without an entry, all."""
    settings: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By request, which variables of frameworks its containers get: keys of ``framework_variables.SETTINGS``."""

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

    def thread_percentage(self, request: str) -> int | None:
        """Return the percent of the SMs that the processes of a request may use, the same for all of its containers.

        ``None``: there is no cap, or its containers differ, so that each states its own and one without has no cap.
        """
        limits = {limit.compute for limit in self.limits if limit.request == request}
        reserved = limits or {each.compute or None for each in self.of(request)}
        if len(reserved) > 1:
            return None
        return next(iter(reserved)) or dict(self.caps).get(request)

    def mib_on(self, gpu: str) -> int:
        """MiB it consumed of one GPU."""
        return sum(each.memory_mib for each in self.granted if each.gpu == gpu)


def shortened(asked: Any) -> str:
    """Shorten what an annotation says to what is kept of it."""
    return str(asked)[:KEPT]


def safe_uid(uid: str) -> bool:
    """Tell whether a UID can be part of a file name."""
    return _UID.fullmatch(uid) is not None


def encode(claim: PreparedClaim) -> bytes:
    """Write a claim as its file holds it."""
    content = {
        "version": CLAIM.version,
        "uid": claim.uid,
        "namespace": claim.namespace,
        "name": claim.name,
        "pod": claim.pod,
        "podUid": claim.pod_uid,
        "granted": [
            {
                "request": each.request, "pool": each.pool, "device": each.device, "shareId": each.share_id,
                "gpu": each.gpu, "memoryMib": each.memory_mib, "compute": each.compute, "deviceMib": each.device_mib,
                "mode": None if each.mode is None else str(each.mode),
            }
            for each in claim.granted
        ],
        "limits": [
            {
                "container": each.container, "request": each.request, "memoryMib": each.memory_mib,
                "compute": each.compute, "limitMib": each.limit_mib,
            }
            for each in claim.limits
        ],
        "terms": {
            "onExceed": str(claim.terms.on_exceed), "graceSeconds": claim.terms.grace_seconds,
            "toleranceMib": claim.terms.tolerance_mib, "tolerancePercent": claim.terms.tolerance_percent,
        },
        "ownSharedMemory": claim.own_shared_memory,
        "driverCapabilities": dict(claim.driver_capabilities),
        "seen": [{"gpu": each.gpu, "totalMib": each.total_mib, "byCgroup": each.by_cgroup, "sms": each.sms}
                 for each in claim.seen],
        "settings": dict(claim.settings),
        "clients": dict(claim.clients),
        "caps": dict(claim.caps),
        "answers": [
            {
                "container": each.container, "asked": each.asked, "done": each.done, "beforeMib": each.before_mib,
                "reason": each.reason, "note": each.note, "effect": each.effect,
            }
            for each in claim.answers
        ],
    }  # fmt: skip
    return json.dumps(content, indent=1).encode() + b"\n"


def decode(data: bytes) -> PreparedClaim:
    """Read a claim's file; unknown fields of newer versions are passed over.

    Raises:
        ConfigError: it is not what ``encode`` writes.
    """
    CLAIM.check(data)
    try:
        return _decoded(json.loads(data))
    except KeyError as error:
        raise ConfigError(f"the file has no field {error}", Reason.CHECKPOINT_UNREADABLE) from error
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(str(error)[:200], Reason.CHECKPOINT_UNREADABLE) from error


def _decoded(content: Mapping[str, Any]) -> PreparedClaim:
    granted = tuple(_granted(row) for row in content["granted"])
    limits = tuple(_limit(row) for row in content["limits"])
    shared = {each.request for each in granted if each.gpu is not None}
    if any(limit.request not in shared for limit in limits):
        raise ValueError("the file has a limit for a request to which it assigns no GPU")
    return PreparedClaim(
        uid=_field(content, "uid", partial(_named, form=_UID)),
        namespace=_field(content, "namespace", text),
        name=_field(content, "name", text),
        pod=_field(content, "pod", text),
        pod_uid=_field(content, "podUid", partial(_named, form=_UID)),
        granted=granted,
        limits=limits,
        terms=_terms(content["terms"]),
        # Files of older enforcers lack the fields from here on.
        answers=tuple(_answer(row) for row in content.get("answers", [])),
        own_shared_memory=tuple(_named(each, _REQUEST) for each in content.get("ownSharedMemory", [])),
        driver_capabilities=tuple(
            (_named(request, _REQUEST), text(each)) for request, each in content.get("driverCapabilities", {}).items()
        ),
        seen=tuple(_seen(row) for row in content.get("seen", [])),
        clients=tuple((_named(name, _REQUEST), whole(number)) for name, number in content.get("clients", {}).items()),
        caps=tuple((_named(name, _REQUEST), whole(cap)) for name, cap in content.get("caps", {}).items()),
        settings=tuple(
            (_named(request, _REQUEST), tuple(text(key) for key in keys))
            for request, keys in content.get("settings", {}).items()
        ),
    )


def _granted(row: Mapping[str, Any]) -> AllocatedDevice:
    return AllocatedDevice(
        request=_field(row, "request", partial(_named, form=_REQUEST)),
        pool=_field(row, "pool", text),
        device=_field(row, "device", text),
        share_id=None if row["shareId"] is None else _field(row, "shareId", text),
        gpu=None if row["gpu"] is None else _field(row, "gpu", text),
        memory_mib=_field(row, "memoryMib", whole),
        compute=_field(row, "compute", whole),
        device_mib=_field(row, "deviceMib", whole),
        mode=_mode(row),
    )


def _mode(row: Mapping[str, Any]) -> Mode | None:
    """How its GPU was shared; of a claim from before there were several ways, through MPS."""
    value = row.get("mode", None if row["gpu"] is None else Mode.MPS)
    return None if value is None else Mode(value)


def _limit(row: Mapping[str, Any]) -> ContainerLimit:
    return ContainerLimit(
        container=_field(row, "container", text),
        request=_field(row, "request", partial(_named, form=_REQUEST)),
        memory_mib=_field(row, "memoryMib", whole),
        compute=None if row["compute"] is None else _field(row, "compute", whole),
        limit_mib=None if row.get("limitMib") is None else _field(row, "limitMib", whole),
    )


def _seen(row: Mapping[str, Any]) -> Seen:
    return Seen(
        gpu=_field(row, "gpu", text),
        total_mib=_field(row, "totalMib", whole),
        by_cgroup=_field(row, "byCgroup", flag),
        sms=_field(row, "sms", whole) if "sms" in row else 0,
    )


def _answer(row: Mapping[str, Any]) -> ResizeResult:
    return ResizeResult(
        container=_field(row, "container", text),
        asked=str(row["asked"]),
        done=_field(row, "done", flag),
        before_mib=_field(row, "beforeMib", whole),
        reason=_field(row, "reason", text),
        note=_field(row, "note", text),
        effect=str(row["effect"]),
    )


def _terms(row: Mapping[str, Any]) -> Terms:
    return Terms(
        on_exceed=_field(row, "onExceed", OnExceed),
        grace_seconds=_field(row, "graceSeconds", seconds),
        tolerance_mib=None if row["toleranceMib"] is None else _field(row, "toleranceMib", whole),
        tolerance_percent=None if row["tolerancePercent"] is None else _field(row, "tolerancePercent", whole),
    )


def _field(row: Mapping[str, Any], name: str, parse: Callable[[Any], T]) -> T:
    """Parse a field; an error names it."""
    try:
        return parse(row[name])
    except (ValueError, TypeError) as error:
        raise ValueError(f"field {name}: {error}") from error


def _named(value: Any, form: Pattern[str]) -> str:
    if not form.fullmatch(text(value)):
        raise ValueError(f"{value!r:.80} is not {'a UID' if form is _UID else 'the name of a request'}")
    return str(value)
