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
REPLICA: Final = "replica"
"""A tenant of the Deployment."""
REPLICAS: Final = 3
MINIMUM: Final = 2
"""Pods that the Deployment has, and that its PodDisruptionBudget keeps ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One moment of the cluster and its nodes. What is found on a node is named by :func:`at`.

    Attributes:
        time: seconds since 1970.
        pods: of the tenants; ``everybody``: all pods on their nodes; ``claims``: of all; ``templates``: of the
            tenants; ``slices``: of our driver.
        cdi: claims of CDI files.
        kept: claims of the driver's own files, with the version that each names.
        status: pods of status folders.
        mounts: pods for which a node has mounts.
        cgroups: pods of processes, by their control groups.
        daemons: by MPS directory that is served, the pids of all control daemons that have served it in this step.
        alive: by pod UID, when it ran last and was not on its way out, in seconds since 1970.
        announced: by node, since when it has a taint that says that pods have to leave.
        fewest: how many pods of the Deployment were ready at once, at least; ``None``: there is no Deployment.
        used: by name of a claim template, when a pod was seen last that uses it, in seconds since 1970.
        over: by pod UID, for how many seconds without a break it has been over its quota while an enforcer ran.
        audit: by node, the lines of its audit log.
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
    announced: Mapping[str, float] = field(default_factory=dict)
    fewest: int | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    over: Mapping[str, float] = field(default_factory=dict)
    audit: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    admitted: str = "share"
    check: tuple[str, ...] | None = None
    red: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a step may bring with it.

    ``daemons``: new MPS control daemons for each GPU; ``restarts``: of the containers of a steady tenant; ``sidecars``:
    restarts of its sidecar; ``fewer``: whether the Deployment may have fewer ready pods than its minimum.
    """

    daemons: int = 0
    restarts: int = 0
    sidecars: int = 0
    fewer: bool = False


def at(node: str, what: str) -> str:
    """Return the name of something on a node."""
    return f"{node}/{what}"


def located(pod: Object) -> str:
    """Return a pod's UID on its node."""
    return at(node_of(pod), uid(pod))


def node_of(pod: Object) -> str:
    """Return the node of a pod; empty for one that has none yet."""
    return str(pod["spec"].get("nodeName", ""))


def is_ready(pod: Object) -> bool:
    """Whether Kubernetes counts a pod as ready, and nobody has deleted it."""
    found = (pod.get("status") or {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in found)
    return ready and not pod["metadata"].get("deletionTimestamp")


def uid(item: Object) -> str:
    """Return an object's UID."""
    return str(item["metadata"]["uid"])


def kind(pod: Object) -> str:
    """Return what a tenant of the rehearsal is for; empty for other pods."""
    return str((pod["metadata"].get("labels") or {}).get(LABEL, ""))
