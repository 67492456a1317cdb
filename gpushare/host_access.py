"""Refuse what lets a pod reach its node around a share: host namespaces, capabilities, host paths, devices. Pure.

The webhook checks a pod before it admits it. The driver checks it again before it prepares a claim, so that a pod which
another webhook changed, or which brings a claim of its own, meets the same rules. Both pass the raw object.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.fields import boolean, mapping, objects, strings
from gpushare.quantity import shown

Object = Mapping[str, Any]
_POD_FLAGS: Final = {
    "hostPID": "lets the tenant see and end the processes that enforce the limit; remove it",
    "hostIPC": "shares memory with other tenants of the GPU; remove it",
    "shareProcessNamespace": "lets containers that share a GPU act in each other's name; remove it",
}
SECTIONS: Final = ("initContainers", "containers", "ephemeralContainers")
CAPABILITIES: Final = frozenset({
    "ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO",
})  # fmt: skip
"""With one of these a process leaves its cgroup, reads its node's files, or acts on processes of others."""
_DEVICES: Final = "/dev"
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/dri", "/dev/char")
_TOOLKIT_MOUNTS: Final = "/run/nvidia-container-devices"
"""A mount below asks NVIDIA's container toolkit for a device. Written as ``normal`` writes it."""
_DEVICE_ANNOTATIONS: Final = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
"""Annotations by which a container runtime hands out devices."""
OF_EVERY_NODE: Final = (
    "/proc", "/sys", "/etc/cdi", "/etc/kubernetes", "/opt/cni", "/run/cdi", "/run/containerd", "/run/crio",
    "/run/docker.sock", "/run/nvidia",
    "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet",
)  # fmt: skip
"""Host paths by which a pod controls other containers, or what they get of a GPU."""
OUR_OWN: Final = ("/var/lib/gpu-share", "/run/gpu-share")
"""Where the chart keeps audit log, checkpoints and MPS pipes unless its values say otherwise."""
MAX_PATH: Final = 4096
"""Linux' longest path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """What of the host a sharing pod may reach.

    ``paths`` are prefixes that the namespace's operator lists; ``None``: nothing is listed, and other paths than the
    protected ones draw a warning. ``protected`` stay refused whatever is listed. ``network`` allows ``hostNetwork``.
    """

    paths: tuple[str, ...] | None = None
    protected: tuple[str, ...] = OUR_OWN
    network: bool = False


NOTHING_LISTED: Final = HostAccess()


def check(pod: Object, allowed: HostAccess) -> Iterator[str]:
    """Check a pod, all its containers included; yields warnings.

    Raises:
        PolicyDenied: it can reach around its share.
    """
    spec = mapping(pod.get("spec"), "spec")
    for flag, why in _POD_FLAGS.items():
        if boolean(spec.get(flag), f"spec.{flag}"):
            raise PolicyDenied(f"spec.{flag}", f"true {why}")
    if boolean(spec.get("hostNetwork"), "spec.hostNetwork") and not allowed.network:
        message = "true reaches the ports of the node's own programs; remove it, or ask a cluster operator to allow it"
        raise PolicyDenied("spec.hostNetwork", message)
    _check_annotations(mapping(mapping(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations"))
    for index, volume in enumerate(objects(spec.get("volumes"), "spec.volumes")):
        yield from _check_volume(volume, f"spec.volumes[{index}]", allowed)
    for section in SECTIONS:
        for index, container in enumerate(objects(spec.get(section), f"spec.{section}")):
            check_container(container, f"spec.{section}[{index}]")


def check_container(container: Object, field: str) -> None:
    """Check one container of any kind.

    Raises:
        PolicyDenied: it is privileged, has a capability that leads out of it, or mounts devices.
    """
    security = mapping(container.get("securityContext"), f"{field}.securityContext")
    if boolean(security.get("privileged"), f"{field}.securityContext.privileged"):
        message = "true reaches every GPU of the node, around the share; set it to false"
        raise PolicyDenied(f"{field}.securityContext.privileged", message)
    _check_capabilities(security, f"{field}.securityContext.capabilities")
    for index, mount in enumerate(objects(container.get("volumeMounts"), f"{field}.volumeMounts")):
        _check_mount(mount, f"{field}.volumeMounts[{index}]")


def normal(path: object) -> str:
    """Write an absolute path in one way: no doubled slashes, no ``.`` and ``..``, ``/run`` for ``/var/run``."""
    if not isinstance(path, str) or len(path) > MAX_PATH:
        return ""
    found = posixpath.normpath("/" + path.lstrip("/"))
    return found.removeprefix("/var") if within(found, "/var/run") else found


def within(path: str, folder: str) -> bool:
    """Tell whether a normal path is a folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def overlaps(path: str, protected: Sequence[str]) -> bool:
    """Tell whether a normal path lies in a protected folder, or contains one."""
    return any(within(path, each) or within(each, path) for each in map(normal, protected))


def _check_annotations(annotations: Object) -> None:
    key = min((key for key in map(str, annotations) if key.startswith(_DEVICE_ANNOTATIONS)), default=None)
    if key is not None:
        message = "hands the container a device beside its share; remove the annotation"
        raise PolicyDenied(f"metadata.annotations[{ascii(key[:120])[1:-1]:.120}]", message)


def _check_capabilities(security: Object, field: str) -> None:
    added = strings(mapping(security.get("capabilities"), field).get("add"), f"{field}.add")
    for index, each in enumerate(added):
        if each[:MAX_PATH].upper().removeprefix("CAP_") in CAPABILITIES:
            message = f"{shown(each)} lets the container act on the node around its share; remove it"
            raise PolicyDenied(f"{field}.add[{index}]", message)


def _check_volume(volume: Object, field: str, allowed: HostAccess) -> Iterator[str]:
    host = mapping(volume.get("hostPath"), f"{field}.hostPath")
    if not host:
        return
    path, said = normal(host.get("path")), shown(str(host.get("path"))[:MAX_PATH])
    field = f"{field}.hostPath.path"
    if path in {"", _DEVICES} or path.startswith(_GPU_DEVICES):
        raise PolicyDenied(field, f"{said} reaches the node's GPUs, around the share; remove the volume")
    if overlaps(path, (*OF_EVERY_NODE, *allowed.protected)):
        raise PolicyDenied(field, f"{said} reaches what the node's own programs keep; remove the volume")
    if allowed.paths is None:
        yield f"hostPath {said:.40} can lead around the share; operators list paths in {contract.HOST_PATHS}"
    elif not any(within(path, each) for each in allowed.paths):
        message = f"{said} is not below a path that this namespace's {contract.HOST_PATHS} lists; remove the volume"
        raise PolicyDenied(field, message)


def _check_mount(mount: Object, field: str) -> None:
    path = normal(mount.get("mountPath"))
    if within(path, _TOOLKIT_MOUNTS):
        message = (
            f"{shown(str(mount['mountPath']))} asks NVIDIA's toolkit for a GPU, around the share; remove the mount"
        )
        raise PolicyDenied(f"{field}.mountPath", message)
