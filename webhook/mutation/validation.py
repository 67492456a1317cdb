"""Deny or warn about fields that cannot be combined with a share. Pure.

Each rule closes a way around the limit, or a second way to a GPU. Nothing here changes the pod.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.quantity import shown
from webhook.mutation.annotations import Plan
from webhook.mutation.podview import Container, Json, PodView, boolean, mapping, objects
from webhook.mutation.settings import Settings

_POD_FLAGS: Final = {
    "hostPID": "lets the tenant see and end the processes that enforce the limit; remove it",
    "hostIPC": "shares memory with other tenants of the GPU; remove it",
    "shareProcessNamespace": "lets containers that share a GPU act in each other's name; remove it",
}
_DEVICES: Final = "/dev"
_DEVICE_PREFIX: Final = "/dev/nvidia"
_TOOLKIT_MOUNTS: Final = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
"""A mount below asks NVIDIA's container toolkit for a device."""
_DEVICE_ANNOTATIONS: Final = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
"""Annotations by which a container runtime hands out devices."""
_WHOLE_PREFIXES: Final = ("nvidia.com/gpu.", "nvidia.com/mig-")
_GPU_CLASSES: Final = ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", *contract.SHARING_CLASSES)
_WHOLE: Final = {contract.WHOLE_GPU, *(f"deviceclass.resource.kubernetes.io/{name}" for name in _GPU_CLASSES)}
"""Resources that are a GPU; for those of device classes, the scheduler itself makes a claim."""
_ZERO: Final = re.compile(r"[+-]?(0+\.?0*|\.0+)([eE][+-]?[0-9]+|[A-Za-z]{0,2})", re.ASCII)


def check(pod: PodView, plan: Plan, settings: Settings) -> tuple[str, ...]:
    """Hold a sharing pod against every rule and return warnings.

    Raises:
        PolicyDenied: something stands in it that would undo the share.
    """
    _check_spec(pod)
    _check_annotations(pod)
    for index, volume in enumerate(objects(pod.spec.get("volumes"), "spec.volumes")):
        _check_volume(volume, f"spec.volumes[{index}]")
    warnings = [warning for each in pod.containers for warning in check_container(each)]
    warnings += _root(pod, plan, settings)
    return tuple(warnings)


def check_container(container: Container) -> Iterator[str]:
    """Hold one container of a sharing pod, of any kind, against the rules; yields warnings.

    Raises:
        PolicyDenied: it is privileged, mounts devices or asks for a whole GPU.
    """
    security = mapping(container.raw.get("securityContext"), f"{container.field}.securityContext")
    field = f"{container.field}.securityContext.privileged"
    if boolean(security.get("privileged"), field):
        raise PolicyDenied(field, "true reaches every GPU of the node, around the share; set it to false")
    for index, mount in enumerate(objects(container.raw.get("volumeMounts"), f"{container.field}.volumeMounts")):
        _check_mount(mount, f"{container.field}.volumeMounts[{index}]")
    yield from _whole_gpus(container)


def normal(path: object) -> str:
    """Write an absolute path in one way: no doubled slashes, no ``.`` and ``..``."""
    return posixpath.normpath("/" + path.lstrip("/")) if isinstance(path, str) else ""


def _check_spec(pod: PodView) -> None:
    if node := pod.spec.get("nodeName"):
        message = (
            f"{shown(str(node))} goes around the scheduler, which chooses the GPU; use nodeSelector or nodeAffinity"
        )
        raise PolicyDenied("spec.nodeName", message)
    if mapping(pod.spec.get("os"), "spec.os").get("name") == "windows":
        raise PolicyDenied("spec.os.name", "'windows' has no MPS, on which a share rests; remove the annotations")
    for flag, why in _POD_FLAGS.items():
        if boolean(pod.spec.get(flag), f"spec.{flag}"):
            raise PolicyDenied(f"spec.{flag}", f"true {why}")


def _check_annotations(pod: PodView) -> None:
    for key in sorted(pod.annotations):
        if key.startswith(_DEVICE_ANNOTATIONS):
            message = "hands the container a device beside its share; remove the annotation"
            raise PolicyDenied(f"metadata.annotations[{ascii(key)[1:-1]:.120}]", message)


def _check_volume(volume: Json, field: str) -> None:
    host = mapping(volume.get("hostPath"), f"{field}.hostPath")
    path = normal(host.get("path"))
    if path == _DEVICES or path.startswith(_DEVICE_PREFIX):
        message = f"{shown(str(host['path']))} reaches the node's GPUs, around the share; remove the volume"
        raise PolicyDenied(f"{field}.hostPath.path", message)


def _check_mount(mount: Json, field: str) -> None:
    if (normal(mount.get("mountPath")) + "/").startswith(tuple(path + "/" for path in _TOOLKIT_MOUNTS)):
        message = (
            f"{shown(str(mount['mountPath']))} asks NVIDIA's toolkit for a GPU, around the share; remove the mount"
        )
        raise PolicyDenied(f"{field}.mountPath", message)


def _root(pod: PodView, plan: Plan, settings: Settings) -> Iterator[str]:
    """Look for root where it can be seen: what the image says is invisible here."""
    refused = settings.root_tenants == "refuse"
    perhaps: list[str] = []
    outer = mapping(pod.spec.get("securityContext"), "spec.securityContext")
    for each in pod.containers:
        inner = mapping(each.raw.get("securityContext"), f"{each.field}.securityContext")
        user, user_field = _effective(inner, outer, "runAsUser", each)
        non_root, non_root_field = _effective(inner, outer, "runAsNonRoot", each)
        sharing = plan.of(each.name) is not None
        if refused and sharing and non_root is False:
            raise PolicyDenied(non_root_field, "false: this cluster refuses root beside a share; set it to true")
        if refused and user == 0 and (sharing or non_root is not False):
            raise PolicyDenied(user_field, "0 is root, which this cluster refuses beside a share; name another user")
        if not refused and sharing and not non_root and not user:
            perhaps.append(each.name)
    if perhaps:
        yield f"may run as root, which can disturb others on the GPU (set runAsNonRoot: true): {', '.join(perhaps)}"


def _effective(inner: Json, outer: Json, key: str, container: Container) -> tuple[object, str]:
    """Return what holds for a container, and the field that says so: its own context wins over the pod's."""
    if inner.get(key) is not None:
        return inner[key], f"{container.field}.securityContext.{key}"
    return outer.get(key), f"spec.securityContext.{key}"


def _whole_gpus(container: Container) -> Iterator[str]:
    resources = mapping(container.raw.get("resources"), f"{container.field}.resources")
    for part in ("limits", "requests"):
        field = f"{container.field}.resources.{part}"
        for key, value in mapping(resources.get(part), field).items():
            if key not in _WHOLE and not str(key).startswith(_WHOLE_PREFIXES):
                continue
            if not _is_zero(value):
                message = f"{shown(str(value))} asks for a whole GPU beside a share; remove it, or the annotations"
                raise PolicyDenied(f"{field}[{key:.80}]", message)
            if part == "limits" or key not in mapping(resources.get("limits"), field):
                yield f"{key:.40}: 0 of container {container.name:.40} has no meaning beside a share"


def _is_zero(value: Any) -> bool:
    if isinstance(value, str):
        return _ZERO.fullmatch(value) is not None
    return value is None or value == 0
