"""What the checker sees at one moment, as plain data from kubectl, /proc and files, not from the product. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Object = dict[str, Any]
LABEL: Final = "rehearsal"
STEADY: Final = "steady"
"""A tenant that has to run through every step."""
PLAIN: Final = "plain"
"""A tenant that comes and goes."""
BURST: Final = "burst"
"""A tenant that goes over its quota and has to be killed."""
JOB: Final = "job"
"""A tenant that has to end by itself, with success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One moment of the cluster and its node.

    Attributes:
        time: seconds since 1970.
        pods: of the tenants; ``everybody``: UIDs of all pods; ``claims``: of all; ``templates``: of the tenants;
            ``slices``: of our driver.
        cdi: claim UIDs of CDI files on the node.
        kept: claim UIDs of the driver's own files on the node, with the version that each names.
        status: pod UIDs of status folders on the node.
        mounts: pod UIDs for which the node has mounts.
        cgroups: pod UIDs of processes on the node, by their control groups.
        daemons: by MPS directory that is served, the pids of all control daemons that have served it in this step.
        alive: by pod UID, when it ran last and was not on its way out, in seconds since 1970.
        announced: since when the node has a taint that says that pods have to leave; ``None``: it has had none.
        used: by name of a claim template, when a pod was seen last that uses it, in seconds since 1970.
        over: by pod UID, for how many seconds without a break it has been over its quota while an enforcer ran.
        audit: the lines of the audit log.
        admitted: what became of a sharing pod in a dry run: ``share``, ``open`` (without a claim) or ``refused``.
        check: what ``gpu-share check`` found wrong; ``None``: not asked.
        red: whether it was red while a part was away; ``None``: not asked.
    """

    time: float
    pods: tuple[Object, ...] = ()
    everybody: frozenset[str] = frozenset()
    claims: tuple[Object, ...] = ()
    templates: tuple[Object, ...] = ()
    slices: tuple[Object, ...] = ()
    cdi: frozenset[str] = frozenset()
    kept: Mapping[str, int] = field(default_factory=dict)
    status: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    cgroups: frozenset[str] = frozenset()
    daemons: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    alive: Mapping[str, float] = field(default_factory=dict)
    announced: float | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    over: Mapping[str, float] = field(default_factory=dict)
    audit: tuple[bytes, ...] = ()
    admitted: str = "share"
    check: tuple[str, ...] | None = None
    red: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a step may bring with it.

    ``daemons``: new MPS control daemons for each GPU; ``restarts``: of the containers of a steady tenant; ``sidecars``:
    restarts of its sidecar.
    """

    daemons: int = 0
    restarts: int = 0
    sidecars: int = 0


def uid(item: Object) -> str:
    """Return an object's UID."""
    return str(item["metadata"]["uid"])


def kind(pod: Object) -> str:
    """Return what a tenant of the rehearsal is for; empty for other pods."""
    return str((pod["metadata"].get("labels") or {}).get(LABEL, ""))
