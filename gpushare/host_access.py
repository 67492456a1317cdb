"""Refuse what lets a pod reach its node around a share: host namespaces, capabilities, host paths, devices. Pure.

The webhook checks a pod before it admits it. The driver checks it again before it prepares a claim, so that a pod which
another webhook changed, or which brings a claim of its own, meets the same rules. Both pass the raw object.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from typing import Any, Final

from gpushare import contract, defaults
from gpushare.errors import MAX_PROBLEMS
from gpushare.fields import MAX_ENTRIES, boolean, mapping, names_of, objects, strings
from gpushare.findings import Findings
from gpushare.quantity import quoted

Object = Mapping[str, Any]
_POD_FLAGS: Final = {
    "hostPID": "lets containers see and kill the node's processes, the enforcer and MPS included; remove it",
    "hostIPC": "lets containers use the shared memory of other tenants' GPU processes; remove it",
    "shareProcessNamespace": "lets a process see and control processes of the pod's other containers; remove it",
}
SECTIONS: Final = ("initContainers", "containers", "ephemeralContainers")
USUAL_CAPABILITIES: Final = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
"""What container runtimes give every container."""
CAPABILITIES: Final = frozenset({
    "ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO",
})  # fmt: skip
"""Never allowed: with one of these a process leaves its cgroup, reads files of its node, or acts on other processes."""
STEERING: Final = "NVIDIA_"
"""What variables begin with that NVIDIA's container toolkit reads: some add devices, libraries or mounts."""
HARMLESS: Final = frozenset({
    contract.NVIDIA_VISIBLE_DEVICES, contract.NVIDIA_DRIVER_CAPABILITIES, *contract.NOT_OF_THE_TOOLKIT,
})  # fmt: skip
"""The first two are replaced in every sharing pod; the toolkit does not read the others."""
_DEVICES: Final = "/dev"
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/dri", "/dev/char")
_TOOLKIT_FOLDER: Final = "nvidia-container-devices"
_TOOLKIT_MOUNTS: Final = f"/run/{_TOOLKIT_FOLDER}"
"""A mount below asks NVIDIA's container toolkit for a device. Written as ``normal`` writes it."""
_DEVICE_ANNOTATIONS: Final = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
"""Annotations by which a container runtime hands out devices."""
OF_EVERY_NODE: Final = (
    "/proc", "/sys", "/etc/cdi", "/etc/kubernetes", "/opt/cni", "/run/cdi", "/run/containerd", "/run/crio",
    "/run/docker.sock", "/run/nvidia",
    "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet",
)  # fmt: skip
"""Host paths by which a pod controls other containers, or what they get of a GPU."""
OUR_OWN: Final = (defaults.STATE_DIRECTORY, defaults.RUN_DIRECTORY)
"""Where the chart keeps audit log, checkpoints and MPS pipes unless its values say otherwise."""
MAX_PATH: Final = 4096
"""Linux' longest path."""
_MOUNTS_SHOWN: Final = 8
_ASK: Final = "remove it, or ask a cluster operator to list it there"
_OF_PRIVILEGED: Final = "Bidirectional"
"""Mount propagation that the API server admits in privileged containers alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """What of the host a sharing pod may reach.

    Listed for the namespace are ``paths``, which are prefixes, ``capabilities`` and ``variables``. ``protected`` paths
    stay refused even so. ``network`` allows ``hostNetwork``.
    """

    paths: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    protected: tuple[str, ...] = OUR_OWN
    network: bool = False


NOTHING_LISTED: Final = HostAccess()


def check(findings: Findings, pod: Object, allowed: HostAccess) -> None:
    """Check a pod, all its containers included: whether it can reach around its share."""
    spec = mapping(pod.get("spec"), "spec")
    for flag in _POD_FLAGS:
        if flag in spec:
            findings.attempt(_flag, findings, spec, flag)
    findings.independent((_network, _volumes), spec, allowed)
    findings.attempt(_annotations, findings, pod)
    for section in SECTIONS:
        containers = findings.attempt(objects, spec[section], f"spec.{section}") if section in spec else None
        for index, container in enumerate(containers or ()):
            check_container(findings, container, f"spec.{section}[{index}]", allowed)


def check_container(findings: Findings, container: Object, field: str, allowed: HostAccess = NOTHING_LISTED) -> None:
    """Check one container of any kind: its rights on the node, its mounts, and variables that steer the toolkit."""
    findings.independent((_security, _mounts, _variables), container, field, allowed)


def normal(path: object) -> str:
    """Write an absolute path in one way: no doubled slashes, no ``.`` and ``..``, ``/run`` for ``/var/run``."""
    if not isinstance(path, str) or len(path) > MAX_PATH:
        return ""
    found = posixpath.normpath("/" + path.lstrip("/"))
    return found.removeprefix("/var") if within(found, "/var/run") else found


def within(path: str, folder: str) -> bool:
    """Tell whether a normal path is a folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def overlaps(path: str, protected: tuple[str, ...]) -> bool:
    """Tell whether a normal path lies in a protected folder, or contains one."""
    folders, ended = _folders(protected), _ended(path)
    return ended.startswith(folders) or any(each.startswith(ended) for each in folders)


@lru_cache(maxsize=256)  # of the node, and of one namespace each
def _folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_ended(normal(each)) for each in paths)


def _ended(path: str) -> str:
    """Write a path so that what lies in it, written alike, begins with it."""
    return path.rstrip("/") + "/"


def _flag(findings: Findings, spec: Object, flag: str) -> None:
    if boolean(spec[flag], f"spec.{flag}"):
        findings.problem(f"spec.{flag}", f"true {_POD_FLAGS[flag]}")


def _network(findings: Findings, spec: Object, allowed: HostAccess) -> None:
    if "hostNetwork" in spec and boolean(spec["hostNetwork"], "spec.hostNetwork") and not allowed.network:
        message = (
            "true gives access to ports of node services; remove it, or ask a cluster operator for tenantHostNetwork"
        )
        findings.problem("spec.hostNetwork", message)


def _annotations(findings: Findings, pod: Object) -> None:
    annotations = mapping(mapping(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations")
    found = [key for key in map(str, annotations) if key.startswith(_DEVICE_ANNOTATIONS)]
    for key in nsmallest(MAX_PROBLEMS, found) if found else ():
        message = "makes the container runtime add a device that bypasses the share; remove the annotation"
        findings.problem(f"metadata.annotations[{ascii(key[:120])[1:-1]:.120}]", message)


def _variables(findings: Findings, container: Object, field: str, allowed: HostAccess) -> None:
    names = [*map(str, names_of(objects(container.get("env"), f"{field}.env")))]
    if STEERING not in "\n".join(names):  # of hundreds of variables mostly none
        return
    for index, name in enumerate(names):
        if name.startswith(STEERING) and name not in HARMLESS and name not in allowed.variables:
            why = f"may steer NVIDIA's container toolkit and is not in this namespace's {contract.TOOLKIT_VARIABLES}"
            findings.problem(f"{field}.env[{index}].name", f"{quoted(name)} {why}; {_ASK}")


def _security(findings: Findings, container: Object, field: str, allowed: HostAccess) -> None:
    security = mapping(container.get("securityContext"), f"{field}.securityContext")
    if security:
        findings.independent((_privileged, _capabilities), container, security, field, allowed)


def _privileged(findings: Findings, container: Object, security: Object, field: str, _: HostAccess) -> None:
    if boolean(security.get("privileged"), f"{field}.securityContext.privileged"):
        hint = f"set it to false{_propagation(container, field)}"
        message = f"privileged containers can access every GPU on the node and bypass the limit; {hint}"
        findings.problem(f"{field}.securityContext.privileged", message)


def _propagation(container: Object, field: str) -> str:
    """Name the mounts for which the API server would refuse a container that is no longer privileged."""
    mounts = _readable(container.get("volumeMounts"))
    found = [index for index, mount in enumerate(mounts) if mount.get("mountPropagation") == _OF_PRIVILEGED]
    named = _listed([f"{field}.volumeMounts[{index}]" for index in found])
    return f", and remove mountPropagation: {_OF_PRIVILEGED} from {named}" if found else ""


def _capabilities(findings: Findings, _: Object, security: Object, field: str, allowed: HostAccess) -> None:
    field = f"{field}.securityContext.capabilities"
    added = strings(mapping(security.get("capabilities"), field).get("add"), f"{field}.add")
    for index, written in enumerate(added):
        name = capability(written)
        if name in CAPABILITIES:
            why = "lets the container bypass its GPU limit or reach other processes of the node"
            findings.problem(f"{field}.add[{index}]", f"{quoted(written)} {why}; remove it")
        elif name not in USUAL_CAPABILITIES and name not in allowed.capabilities:
            why = f"is not in this namespace's {contract.ADDED_CAPABILITIES}"
            findings.problem(f"{field}.add[{index}]", f"{quoted(written)} {why}; {_ASK}")


def capability(written: str) -> str:
    """Write the name of a capability in one way."""
    return written[:MAX_PATH].upper().removeprefix("CAP_")


def _volumes(findings: Findings, spec: Object, allowed: HostAccess) -> None:
    volumes = objects(spec.get("volumes"), "spec.volumes")
    mounts: Mapping[str, list[str]] | None = None
    for index, volume in enumerate(volumes):
        if volume.get("hostPath") is None:
            continue
        field = f"spec.volumes[{index}].hostPath"
        found = _host_path(mapping(volume["hostPath"], field), allowed)
        if found is not None:
            (why, otherwise), mounts = found, _mounts_of(spec, volumes) if mounts is None else mounts
            removal = _removal(mounts.get(str(volume.get("name")), []))
            findings.problem(f"{field}.path", f"{why}; {removal}{otherwise}")


def _host_path(host: Object, allowed: HostAccess) -> tuple[str, str] | None:
    """Return why a host path is refused, and what else helps than to remove it; ``None`` for one that is not."""
    if not host:
        return None
    path, written = normal(host.get("path")), quoted(str(host.get("path"))[:MAX_PATH])
    if path in {"", _DEVICES} or path.startswith(_GPU_DEVICES):
        return f"{written} contains GPU devices, so the container could bypass its limit", ""
    if overlaps(path, (*OF_EVERY_NODE, *allowed.protected)):
        return f"{written} contains files of the kubelet, container runtime or enforcer", ""
    if not _ended(path).startswith(_folders(allowed.paths)):
        why = f"{written} is not in or below a path of this namespace's annotation {contract.HOST_PATHS}"
        return why, ", or ask a cluster operator to list the path there"
    return None


def _removal(mounts: Sequence[str]) -> str:
    """Advise to remove a volume. The API server refuses a pod that mounts a volume which it does not have."""
    if not mounts:
        return "remove the volume"
    return f"remove the volume and its mounts: {_listed(mounts)}"


def _listed(mounts: Sequence[str]) -> str:
    return ", ".join(mounts[:_MOUNTS_SHOWN]) + " and others" * (len(mounts) > _MOUNTS_SHOWN)


def _mounts_of(spec: Object, volumes: Sequence[Object]) -> Mapping[str, list[str]]:
    """Return the fields of the mounts of each host path, by the volume's name: one more than are shown."""
    found: dict[str, list[str]] = {str(one.get("name")): [] for one in volumes if one.get("hostPath")}
    for container, index, mount in _all_mounts(spec):
        fields = found.get(str(mount.get("name")))
        if fields is not None and len(fields) <= _MOUNTS_SHOWN:
            fields.append(f"{container}.volumeMounts[{index}]")
    return found


def _all_mounts(spec: Object) -> Iterator[tuple[str, int, Object]]:
    """Yield each mount that can be read, with its container's field and its index there."""
    for section in SECTIONS:
        for place, container in enumerate(_readable(spec.get(section))):
            field = f"spec.{section}[{place}]"
            yield from ((field, index, mount) for index, mount in enumerate(_readable(container.get("volumeMounts"))))


def _readable(value: object) -> Sequence[Object]:
    """Return a list of objects; another value is reported by the check that needs it."""
    readable = isinstance(value, list) and len(value) <= MAX_ENTRIES and all(isinstance(one, dict) for one in value)
    return value if isinstance(value, list) and readable else ()


def _mounts(findings: Findings, container: Object, field: str, _: HostAccess) -> None:
    for index, mount in enumerate(objects(container.get("volumeMounts"), f"{field}.volumeMounts")):
        path = mount.get("mountPath")
        # Looked at first, because ``normal`` is slow: no spelling of the folder does without its name.
        if isinstance(path, str) and _TOOLKIT_FOLDER in path and within(normal(path), _TOOLKIT_MOUNTS):
            message = f"{quoted(path)} makes NVIDIA's container toolkit add a GPU without a limit; remove the mount"
            findings.problem(f"{field}.volumeMounts[{index}].mountPath", message)
