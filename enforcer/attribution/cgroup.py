"""Attribute a process to its pod and container by ``/proc/<pid>/cgroup`` alone. Pure.

Names, arguments, environment and anything cached by pid are the tenant's to forge. The cgroup path is too, below the
container's own cgroup: a nested group may be called like another pod. So paths are read whole, from the front, and
only as far as the container: what lies below belongs to it, and what does not look exactly like the kubelet's work
belongs to nobody.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpushare.patterns import Match, Pattern

REMEMBERED: Final = 128
"""Texts whose meaning is kept: it depends on the text alone, and all processes of a container have the same one."""
SHORT: Final = 4096
"""Longer ones are a tenant's doing and not worth the memory."""
MAX_TEXT: Final = 64 * 1024
"""A longer answer is no honest one; a path has at most 4096 bytes and there are a dozen hierarchies."""

_ID: Final = r"(?P<id>[0-9a-f]{64})"
# A static pod's UID is a hash of its manifest: 32 digits without dashes.
_DASHED: Final = r"pod(?P<uid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})"
_UNDERSCORED: Final = r"pod(?P<uid>[0-9a-f]{8}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{12}|[0-9a-f]{32})"
_QOS: Final = r"(?P<qos>burstable|besteffort)"
_SCOPE: Final = rf"(?:cri-containerd|crio|docker)-{_ID}\.scope"
_BELOW: Final = r"(?:/.*)?"
_UP: Final = r"(?:/\.\.)+"
# One step up from a container is still its own pod: there nothing of the kubelet's is called like another pod.
_OUT: Final = r"(?:/\.\.){2,}"

_FORMS: Final = tuple(
    Pattern(rf"(?s){form}", MAX_TEXT)
    for form in (
        # cgroupfs driver: /kubepods/burstable/pod<uid>/<id>; guaranteed pods have no QoS level.
        rf"(?:{_UP})?(?:/kubelet)?/kubepods(?:/{_QOS})?/{_DASHED}/(?:crio-)?{_ID}{_BELOW}",
        # The same seen from inside another pod's cgroup namespace: the shared front is missing.
        rf"{_OUT}(?:/{_QOS})?/{_DASHED}/(?:crio-)?{_ID}{_BELOW}",
        # systemd driver: each slice's name repeats its parents'.
        (
            rf"(?:{_UP})?/kubepods\.slice(?:/kubepods-{_QOS}\.slice)?"
            rf"/kubepods(?(qos)-(?P=qos))-{_UNDERSCORED}\.slice/{_SCOPE}{_BELOW}"
        ),
        # systemd driver below a kubelet's own root, as kind makes it.
        (
            rf"(?:{_UP})?/kubelet\.slice/kubelet-kubepods\.slice(?:/kubelet-kubepods-{_QOS}\.slice)?"
            rf"/kubelet-kubepods(?(qos)-(?P=qos))-{_UNDERSCORED}\.slice/{_SCOPE}{_BELOW}"
        ),
        # systemd driver from inside another pod's cgroup namespace.
        (
            rf"{_OUT}(?:/(?P<root>kubelet-)?kubepods-{_QOS}\.slice)?"
            rf"/(?(qos)(?(root)kubelet-)kubepods-(?P=qos)|(?:kubelet-)?kubepods(?:-(?:burstable|besteffort))?)"
            rf"-{_UNDERSCORED}\.slice/{_SCOPE}{_BELOW}"
        ),
        # Kubelet with the systemd driver over a containerd with cgroupfs: one component, colons inside.
        (
            rf"(?:{_UP})?(?:/system\.slice/containerd\.service)?"
            rf"/kubepods(?:-(?:burstable|besteffort))?-{_UNDERSCORED}\.slice:cri-containerd:{_ID}{_BELOW}"
        ),
    )
)


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """The container a process runs in: its pod's UID, and the runtime's 64 hex digits."""

    pod_uid: str
    container_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process at one moment.

    ``start`` is in clock ticks since boot and, like the pid, may come round again; ``cgroup_inode`` is that of its
    cgroup directory, ``None`` where it cannot be seen; ``owner`` is ``None`` where the process is in no container.
    """

    pid: int
    start: int
    owner: ContainerRef | None
    cgroup_inode: int | None = None
    kernel_thread: bool = False


def container_of(text: str) -> ContainerRef | None:
    """Read the text of ``/proc/<pid>/cgroup``: cgroup v1, v2 or both.

    Hierarchies that name no container (a controller the runtime does not use) are passed over; two that disagree, or a
    line that is none, make the process nobody's.
    """
    if len(text) > MAX_TEXT:
        return None
    return _known_owner(text) if len(text) <= SHORT else _owner(text)


def _owner(text: str) -> ContainerRef | None:
    lines = [line.split(":", 2) for line in text.split("\n") if line]
    if not all(len(line) == 3 and line[0].isascii() and line[0].isdigit() for line in lines):  # noqa: PLR2004
        return None
    owners = {owner for _, _, path in lines if (owner := container_in(path)) is not None}
    return owners.pop() if len(owners) == 1 else None


_known_owner = lru_cache(maxsize=REMEMBERED)(_owner)


def container_in(path: str) -> ContainerRef | None:
    """Read one cgroup path."""
    match = _match(path)
    return None if match is None else ContainerRef(match["uid"].replace("_", "-"), match["id"])


def container_cgroups(text: str) -> list[tuple[str, str]]:
    """List where the container's own cgroups are: (controllers, path from the mount), nothing of what lies below.

    Dots at the front, from a reader in a cgroup namespace, are left out: they lead to the root of what it may see.
    """
    return list(_known_cgroups(text) if len(text) <= SHORT else _cgroups(text))


def _cgroups(text: str) -> tuple[tuple[str, str], ...]:
    lines = [line.split(":", 2) for line in text.split("\n") if line.count(":") > 1]
    found = [(controllers, path, match) for _, controllers, path in lines if (match := _match(path)) is not None]
    return tuple((controllers, _container_part(path, match)) for controllers, path, match in found)


_known_cgroups = lru_cache(maxsize=REMEMBERED)(_cgroups)


def _match(path: str) -> Match[str] | None:
    matches = (form.fullmatch(path) for form in _FORMS)
    return next((match for match in matches if match is not None), None)


def _container_part(path: str, match: Match[str]) -> str:
    end = match.end("id")
    whole = path[:end] + path[end:].partition("/")[0]
    return whole.replace("/..", "")[1:]  # no form has dots behind its front
