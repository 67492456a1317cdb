"""Parse a namespace's annotations: defaults, maximums, and what happens to a container over quota. Pure.

Read as strictly as a pod's annotations: a ceiling with a typing error is no ceiling, so it refuses pods until mended.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Self

from gpushare import contract
from gpushare.checks import Check, attempt, collect, values_of
from gpushare.errors import PolicyDenied, Problem, QuantityError
from gpushare.framework_variables import ON_REQUEST
from gpushare.host_access import OF_EVERY_NODE, normal, overlaps
from gpushare.quantity import format_mib, parse_debt, parse_duration, parse_memory, parse_percent, shown
from gpushare.reasons import Reason

FIELD: Final = "namespace "
"""What the field of a namespace begins with, where it stands beside those of a pod."""
ON_EXCEED_VALUES: Final = ("kill", "kill-container", "warn")
ANY: Final = "any"
"""Of ``gpu-share.io/own-claims``."""
CAPABILITIES: Final = ("compute", "utility", "compat32", "display", "graphics", "ngx", "video")
"""Those that NVIDIA's container toolkit knows, without ``all``."""
NONE: Final = "none"
"""Of ``gpu-share.io/frameworks``."""
MAX_LIST: Final = 4096
"""Characters of a list in an annotation."""
MAX_PATHS: Final = 64
KEY_COMPARED: Final = 80
"""Characters of an unknown key that are compared with the known ones; difflib's cost grows with their cube."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """One namespace's policy. Memory in MiB, compute in percent of one GPU, time in seconds; ``None`` is unset."""

    default_memory_mib: int | None = None
    default_compute: int | None = None
    max_memory_mib: int | None = None
    max_compute: int | None = None
    on_exceed: str = "kill"
    grace_seconds: float | None = None
    tolerance_mib: int | None = None
    tolerance_percent: int | None = None
    debt_credit: float | None = None
    debt_refill: float | None = None
    any_claims: bool = False
    host_paths: tuple[str, ...] | None = None
    driver_capabilities: tuple[str, ...] = tuple(contract.DRIVER_CAPABILITIES.split(","))
    frameworks: tuple[str, ...] | None = ()
    """Frameworks that get variables on request; ``None``: none gets any."""

    def above_memory(self, mib: int, said: str = "") -> str:
        """Say why one container may not have so many MiB; empty where it may."""
        if self.max_memory_mib is None or mib <= self.max_memory_mib:
            return ""
        maximum = f"{contract.MAX_MEMORY} of {format_mib(self.max_memory_mib)}"
        return f"{said or format_mib(mib)} is above this namespace's {maximum}; ask for less"

    def above_compute(self, percent: int | None) -> str:
        """Say why one container may not have so many percent, ``None`` being all; empty where it may."""
        if self.max_compute is None or (percent is not None and percent <= self.max_compute):
            return ""
        said = "no word about compute" if percent is None else f"{percent}%"
        return f"{said} is above this namespace's {contract.MAX_COMPUTE} of {self.max_compute}%; ask for less"

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str] | None) -> Self:
        """Read a namespace's ``metadata.annotations``; keys of other products are none of our business.

        Raises:
            PolicyDenied: unknown keys of ours, values that cannot be read, or a default above its ceiling.
        """
        return collect(cls.reading(annotations))[0]

    @classmethod
    def reading(cls, annotations: Mapping[str, str] | None) -> Check[Self]:
        """Read as ``from_annotations`` does. What is returned lacks the values that have a problem."""
        ours = sorted(item for item in (annotations or {}).items() if contract.is_ours(item[0]))
        read = yield from values_of(attempt(partial(_read, key, value)) for key, value in ours)
        values: dict[str, Any] = {}
        for each in read:
            values |= each or {}
        policy = cls(**values)
        yield from _check_defaults(policy)
        return policy


def field_of(key: str) -> str:
    """Name a namespace annotation in a message."""
    return f"{FIELD}metadata.annotations[{key:.120}]"


def _read(key: str, value: object) -> dict[str, Any]:
    reader = _READERS.get(key)
    if reader is None:
        raise _invalid(key, _unknown_key(key))
    try:
        return reader(value)
    except QuantityError as error:
        raise _invalid(key, error.message) from error


def _unknown_key(key: str) -> str:
    if key == contract.NAMESPACE_LABEL:
        return "is a label of namespaces and no annotation; move it to metadata.labels"
    if key == contract.MANAGED_LABEL:
        return "is a label of pods, which gpu-share itself sets; remove it"
    near = get_close_matches(key[:KEY_COMPARED], contract.NAMESPACE_ANNOTATIONS, 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(contract.NAMESPACE_ANNOTATIONS)}"
    return f"no such annotation of a namespace; {hint}"


def _check_defaults(policy: NamespacePolicy) -> Iterator[Problem]:
    memory, most_memory = policy.default_memory_mib, policy.max_memory_mib
    if memory and most_memory and memory > most_memory:
        ceiling = f"{contract.MAX_MEMORY} of {format_mib(most_memory)}"
        message = f"{format_mib(memory)} is above {ceiling}; lower one or raise the other"
        yield Problem(field_of(contract.DEFAULT_MEMORY), message, Reason.INVALID_NAMESPACE)
    compute, most_compute = policy.default_compute, policy.max_compute
    if compute and most_compute and compute > most_compute:
        ceiling = f"{contract.MAX_COMPUTE} of {most_compute}%"
        message = f"{compute}% is above {ceiling}; lower one or raise the other"
        yield Problem(field_of(contract.DEFAULT_COMPUTE), message, Reason.INVALID_NAMESPACE)


def _invalid(key: str, message: str) -> PolicyDenied:
    return PolicyDenied(field_of(key), message, Reason.INVALID_NAMESPACE)


def _on_exceed(value: object) -> dict[str, Any]:
    if not isinstance(value, str) or value not in ON_EXCEED_VALUES:
        raise QuantityError(f"{shown(str(value))} is none of {', '.join(ON_EXCEED_VALUES)}")
    return {"on_exceed": value}


def _tolerance(value: object) -> dict[str, Any]:
    if isinstance(value, str) and value.endswith("%"):
        return {"tolerance_percent": parse_percent(value)}
    return {"tolerance_mib": parse_memory(value)}


def _own_claims(value: object) -> dict[str, Any]:
    if value != ANY:
        raise QuantityError(f"{shown(str(value))} is not {ANY!r}; write {ANY!r}, or remove the annotation")
    return {"any_claims": True}


def _host_paths(value: object) -> dict[str, Any]:
    paths = _words(value)
    for path in paths:
        if not path.startswith("/") or len(paths) > MAX_PATHS:
            raise QuantityError(f"{shown(path)}: write at most {MAX_PATHS} absolute paths, such as /data,/scratch")
        if overlaps(normal(path), OF_EVERY_NODE):
            raise QuantityError(f"{shown(path)} reaches what the node's own programs keep; remove it from the list")
    return {"host_paths": tuple(normal(path) for path in paths)}


def _driver_capabilities(value: object) -> dict[str, Any]:
    found = _words(value)
    for each in found:
        if each not in CAPABILITIES:
            raise QuantityError(f"{shown(each)} is none of {', '.join(CAPABILITIES)}")
    return {"driver_capabilities": tuple(dict.fromkeys(found))}


def _frameworks(value: object) -> dict[str, Any]:
    found = _words(value)
    for each in found:
        if each not in ON_REQUEST and found != [NONE]:
            raise QuantityError(f"{shown(each)} is none of {', '.join(ON_REQUEST)}; or write {NONE!r} alone")
    return {"frameworks": None if found == [NONE] else tuple(dict.fromkeys(found))}


def _words(value: object) -> list[str]:
    """Read a comma-separated list of at least one word."""
    text = value if isinstance(value, str) else ""
    words = [word.strip(" ") for word in text.split(",")] if len(text) <= MAX_LIST else []
    if not words or not all(words):
        raise QuantityError(f"{shown(str(value)[:MAX_LIST])} is not a list of words with commas between them")
    return words


_READERS: Final[dict[str, Callable[[object], dict[str, Any]]]] = {
    contract.DEFAULT_MEMORY: lambda value: {"default_memory_mib": parse_memory(value)},
    contract.DEFAULT_COMPUTE: lambda value: {"default_compute": parse_percent(value)},
    contract.MAX_MEMORY: lambda value: {"max_memory_mib": parse_memory(value)},
    contract.MAX_COMPUTE: lambda value: {"max_compute": parse_percent(value)},
    contract.ON_EXCEED: _on_exceed,
    contract.GRACE_PERIOD: lambda value: {"grace_seconds": parse_duration(value)},
    contract.TOLERANCE: _tolerance,
    contract.DEBT_CREDIT: lambda value: {"debt_credit": parse_debt(value)},
    contract.DEBT_REFILL: lambda value: {"debt_refill": parse_debt(value)},
    contract.OWN_CLAIMS: _own_claims,
    contract.HOST_PATHS: _host_paths,
    contract.ALLOWED_CAPABILITIES: _driver_capabilities,
    contract.FRAMEWORKS: _frameworks,
}
