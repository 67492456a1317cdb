"""Deny or warn about fields that cannot be combined with a share. Pure.

Each rule closes a way around the limit, or a second way to a GPU. Nothing here changes the pod.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from gpushare import contract, host_access
from gpushare.errors import PolicyDenied
from gpushare.fields import check_number, mapping
from gpushare.host_access import HostAccess
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import exact, shown
from webhook.mutation.podview import Container, Json, PodView
from webhook.mutation.settings import Settings

_WHOLE_PREFIXES: Final = ("nvidia.com/gpu.", "nvidia.com/mig-")
_GPU_CLASSES: Final = (*contract.OTHER_GPU_CLASSES, *contract.ALL_CLASSES)
_WHOLE: Final = {contract.WHOLE_GPU, *(contract.IMPLICIT_RESOURCE + name for name in _GPU_CLASSES)}
"""Resources that are a GPU; for those of device classes, the scheduler itself makes a claim."""


def check(pod: PodView, sharing: Collection[str], policy: NamespacePolicy, settings: Settings) -> tuple[str, ...]:
    """Check a pod that asks for a share, or whose annotations divide a claim of its own; return warnings.

    Args:
        pod: what was created.
        sharing: names of the containers that ask.
        policy: of its namespace.
        settings: of the cluster.

    Raises:
        PolicyDenied: something stands in it that would undo the share.
    """
    _check_spec(pod)
    access = HostAccess(paths=policy.host_paths, protected=settings.protected_paths, network=settings.host_network)
    warnings = [*host_access.check(pod.pod, access)]
    warnings += [warning for each in pod.containers for warning in _whole_gpus(each)]
    warnings += _root(pod, sharing, settings)
    return tuple(warnings)


def check_container(container: Container) -> Iterator[str]:
    """Check one container that is added to a sharing pod; yields warnings.

    Raises:
        PolicyDenied: it can act on the node, mounts devices or asks for a whole GPU.
    """
    host_access.check_container(container.raw, container.field)
    yield from _whole_gpus(container)


def as_root(pod: PodView, sharing: Collection[str]) -> PolicyDenied | None:
    """Find what makes a sharing container run as root where the pod itself says so; images say it elsewhere."""
    outer = mapping(pod.spec.get("securityContext"), "spec.securityContext")
    for each in pod.containers:
        inner = mapping(each.raw.get("securityContext"), f"{each.field}.securityContext")
        user, user_field = _effective(inner, outer, "runAsUser", each)
        non_root, non_root_field = _effective(inner, outer, "runAsNonRoot", each)
        if each.name in sharing and non_root is False:
            message = "false: this cluster refuses root beside a share; set it to true"
            return PolicyDenied(non_root_field, message)
        if user == 0 and (each.name in sharing or non_root is not False):
            message = "0 is root, which this cluster refuses beside a share; name another user"
            return PolicyDenied(user_field, message)
    return None


def _check_spec(pod: PodView) -> None:
    if node := pod.spec.get("nodeName"):
        message = (
            f"{shown(str(node))} goes around the scheduler, which chooses the GPU; use nodeSelector or nodeAffinity"
        )
        raise PolicyDenied("spec.nodeName", message)
    if mapping(pod.spec.get("os"), "spec.os").get("name") == "windows":
        raise PolicyDenied("spec.os.name", "'windows' has no MPS, on which a share rests; remove the annotations")


def _root(pod: PodView, sharing: Collection[str], settings: Settings) -> Iterator[str]:
    """Refuse root, or warn of it; what the image says is invisible here."""
    problem = as_root(pod, sharing) if settings.root_tenants == "refuse" else None
    if problem is not None:
        raise problem
    outer = mapping(pod.spec.get("securityContext"), "spec.securityContext")
    perhaps = (
        []
        if settings.root_tenants == "refuse"
        else [each.name for each in pod.containers if each.name in sharing and _perhaps_root(each, outer)]
    )
    if perhaps:
        yield f"may run as root, which can disturb others on the GPU (set runAsNonRoot: true): {', '.join(perhaps)}"


def _perhaps_root(container: Container, outer: Json) -> bool:
    inner = mapping(container.raw.get("securityContext"), f"{container.field}.securityContext")
    return not any(_effective(inner, outer, key, container)[0] for key in ("runAsNonRoot", "runAsUser"))


def _effective(inner: Json, outer: Json, key: str, container: Container) -> tuple[object, str]:
    """Return what holds for a container, and the field that says so: its own context wins over the pod's."""
    if inner.get(key) is not None:
        return inner[key], f"{container.field}.securityContext.{key}"
    return outer.get(key), f"spec.securityContext.{key}"


def _whole_gpus(container: Container) -> Iterator[str]:
    resources = mapping(container.raw.get("resources"), f"{container.field}.resources")
    for part in ("limits", "requests"):
        field = f"{container.field}.resources.{part}"
        amounts = mapping(resources.get(part), field)
        check_number(amounts, field)
        for key, value in amounts.items():
            if key not in _WHOLE and not str(key).startswith(_WHOLE_PREFIXES):
                continue
            if not _is_zero(value):
                message = f"{shown(str(value))} asks for a whole GPU beside a share; remove it, or the annotations"
                raise PolicyDenied(f"{field}[{key:.80}]", message)
            if part == "limits" or key not in mapping(resources.get("limits"), field):
                yield f"{key:.40}: 0 of container {container.name:.40} has no meaning beside a share"


def _is_zero(value: Any) -> bool:
    if isinstance(value, str):
        return exact(value) == 0
    return value is None or value == 0
