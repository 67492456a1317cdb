"""Parse a namespace's annotations: defaults, maximums, and what happens to a container over quota. Pure.

Read as strictly as a pod's annotations: a ceiling with a typing error is no ceiling, so it refuses pods until mended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from gpushare import contract
from gpushare.annotation_table import OF_NAMESPACES
from gpushare.annotation_values import BY_MEMORY
from gpushare.errors import PolicyDenied, QuantityError
from gpushare.findings import Findings, collect
from gpushare.host_access import HostAccess
from gpushare.quantity import format_mib
from gpushare.reasons import Reason
from gpushare.suggestion import nearest

FIELD: Final = "namespace "
"""What the field of a namespace begins with, where it stands beside those of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """One namespace's policy. Memory in MiB, compute in percent of one GPU, time in seconds; ``None`` is unset."""

    default_memory_mib: int | None = None
    default_compute: int | str | None = None
    """Percent, ``memory`` or ``none``; ``None``: as the chart says."""
    max_memory_mib: int | None = None
    max_memory_limit_mib: int | None = None
    """``None``: nobody borrows."""
    max_compute: int | None = None
    any_claims: bool = False
    count_amounts: bool = False
    host_paths: tuple[str, ...] = ()
    added_capabilities: tuple[str, ...] = ()
    toolkit_variables: tuple[str, ...] = ()
    driver_capabilities: tuple[str, ...] = tuple(contract.DRIVER_CAPABILITIES.split(","))
    frameworks: tuple[str, ...] | None = ()
    """Frameworks that get variables on request; ``None``: none gets any."""

    def above_memory(self, mib: int, amount: str = "") -> str:
        """Say why one container may not have so many MiB; empty where it may."""
        if self.max_memory_mib is None or mib <= self.max_memory_mib:
            return ""
        maximum = f"{contract.MAX_MEMORY} of {format_mib(self.max_memory_mib)}"
        return f"{amount or format_mib(mib)} is above this namespace's {maximum}; ask for less"

    def above_memory_limit(self, mib: int, amount: str = "") -> str:
        """Say why one container may not hold so many MiB, borrowed memory included; empty where it may."""
        key = contract.MAX_MEMORY_LIMIT
        if self.max_memory_limit_mib is None:
            return f"containers of this namespace may not borrow GPU memory; remove it, or ask an operator to set {key}"
        if mib <= self.max_memory_limit_mib:
            return ""
        maximum = f"{key} of {format_mib(self.max_memory_limit_mib)}"
        return f"{amount or format_mib(mib)} is above this namespace's {maximum}; ask for less"

    def above_compute(self, percent: int | None) -> str:
        """Say why one container may not have so many percent, ``None`` being all; empty where it may."""
        if self.max_compute is None or (percent is not None and percent <= self.max_compute):
            return ""
        asked = "compute without a limit" if percent is None else f"{percent}%"
        return f"{asked} is above this namespace's {contract.MAX_COMPUTE} of {self.max_compute}%; ask for less"

    def host_access(self, host: HostAccess) -> HostAccess:
        """Return what pods may reach of a node: what ``host`` says of the node, and what is listed here."""
        return HostAccess(
            paths=self.host_paths,
            capabilities=self.added_capabilities,
            variables=self.toolkit_variables,
            protected=host.protected,
            network=host.network,
        )

    def compute_by_default(self, chart: int | str) -> int | None:
        """Return the percent that a container reserves which asks for none; ``None``: it reserves nothing.

        Args:
            chart: the default of the cluster, as ``annotation_values.parse_default_compute`` returns it.
        """
        default = chart if self.default_compute is None else self.default_compute
        known = [each for each in (default, self.max_compute) if isinstance(each, int)]
        return min(known, default=None)

    def caps_by_memory(self, chart: int | str) -> bool:
        """Tell whether a container that reserved no compute has as much of it as of the memory."""
        return (chart if self.default_compute is None else self.default_compute) == BY_MEMORY

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str] | None) -> Self:
        """Read a namespace's ``metadata.annotations``; keys of other products are none of our business.

        Raises:
            PolicyDenied: unknown keys of ours, values that cannot be read, or a default above its ceiling.
        """
        return collect(cls.read, annotations)

    @classmethod
    def read(cls, findings: Findings, annotations: Mapping[str, str] | None) -> Self:
        """Read as ``from_annotations`` does. What is returned lacks the values that have a problem."""
        values: dict[str, Any] = {}
        for key, value in sorted(item for item in (annotations or {}).items() if contract.is_ours(item[0])):
            values |= findings.attempt(_read, key, value) or {}
        policy = cls(**values)
        _check_defaults(findings, policy)
        if policy.max_memory_limit_mib is not None and (annotations or {}).get(contract.ON_EXCEED) == "warn":
            message = f"borrowed memory cannot be taken back with {contract.ON_EXCEED}: warn; remove one of the two"
            findings.problem(field_of(contract.MAX_MEMORY_LIMIT), message, Reason.INVALID_NAMESPACE)
        return policy


def field_of(key: str) -> str:
    """Name a namespace annotation in a message."""
    return f"{FIELD}metadata.annotations[{key:.120}]"


def _read(key: str, value: object) -> dict[str, Any]:
    row = OF_NAMESPACES.get(key)
    if row is None:
        raise _invalid(key, _unknown_key(key))
    try:
        read = row.type.parse(value)
    except QuantityError as error:
        raise _invalid(key, error.message) from error
    return {_FIELDS[key]: read} if key in _FIELDS else {}


def _unknown_key(key: str) -> str:
    if key == contract.NAMESPACE_LABEL:
        return "is a namespace label, not an annotation; move it to metadata.labels"
    if key == contract.MANAGED_LABEL:
        return "is a pod label that the webhook sets; remove it"
    near = nearest(key, OF_NAMESPACES)
    hint = f"did you mean {near}?" if near else f"write one of {', '.join(OF_NAMESPACES)}"
    return f"is not a namespace annotation of gpu-share; {hint}"


def _check_defaults(findings: Findings, policy: NamespacePolicy) -> None:
    memory, most_memory = policy.default_memory_mib, policy.max_memory_mib
    if memory and most_memory and memory > most_memory:
        ceiling = f"{contract.MAX_MEMORY} of {format_mib(most_memory)}"
        message = f"{format_mib(memory)} is above {ceiling}; write at most that, or raise the maximum"
        findings.problem(field_of(contract.DEFAULT_MEMORY), message, Reason.INVALID_NAMESPACE)
    compute, most_compute = policy.default_compute, policy.max_compute
    if compute == BY_MEMORY and most_compute:
        message = (
            f"{BY_MEMORY!r} reserves no compute, but every container reserves some where the namespace has "
            f"{contract.MAX_COMPUTE}; write a percentage, or remove one of the two"
        )
        findings.problem(field_of(contract.DEFAULT_COMPUTE), message, Reason.INVALID_NAMESPACE)
    if isinstance(compute, int) and most_compute and compute > most_compute:
        ceiling = f"{contract.MAX_COMPUTE} of {most_compute}%"
        message = f"{compute}% is above {ceiling}; write at most that, or raise the maximum"
        findings.problem(field_of(contract.DEFAULT_COMPUTE), message, Reason.INVALID_NAMESPACE)


def _invalid(key: str, message: str) -> PolicyDenied:
    return PolicyDenied(field_of(key), message, Reason.INVALID_NAMESPACE)


_FIELDS: Final = {
    contract.DEFAULT_MEMORY: "default_memory_mib",
    contract.DEFAULT_COMPUTE: "default_compute",
    contract.MAX_MEMORY: "max_memory_mib",
    contract.MAX_MEMORY_LIMIT: "max_memory_limit_mib",
    contract.MAX_COMPUTE: "max_compute",
    contract.OWN_CLAIMS: "any_claims",
    contract.COUNT_AMOUNTS: "count_amounts",
    contract.HOST_PATHS: "host_paths",
    contract.ADDED_CAPABILITIES: "added_capabilities",
    contract.TOOLKIT_VARIABLES: "toolkit_variables",
    contract.ALLOWED_CAPABILITIES: "driver_capabilities",
    contract.FRAMEWORKS: "frameworks",
}
"""What is kept here. The enforcer reads the others from its own copy of the annotations."""
