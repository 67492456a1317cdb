"""Deny or warn about fields that cannot be combined with a share. Pure.

Each rule closes a way around the limit, or a second way to a GPU. Nothing here changes the pod.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from gpushare import contract, host_access
from gpushare.checks import Check, guarded, independent
from gpushare.errors import Problem
from gpushare.fields import check_number, mapping
from gpushare.host_access import HostAccess
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import exact_value, quoted
from webhook.mutation.podview import Container, Json, PodView
from webhook.mutation.settings import Settings
from webhook.mutation.user_namespaces import effective, hindrance, isolated, may_run_as_root

_WHOLE_PREFIXES: Final = ("nvidia.com/gpu.", "nvidia.com/mig-")
_GPU_CLASSES: Final = (*contract.OTHER_GPU_CLASSES, *contract.ALL_CLASSES)
_NON_ROOT: Final = "false: this cluster denies root in pods with a share; set it to true"
_WHOLE: Final = {contract.WHOLE_GPU, *(contract.IMPLICIT_RESOURCE + name for name in _GPU_CLASSES)}
"""Resources that are a GPU; for those of device classes, the scheduler itself makes a claim."""


def validate_pod(pod: PodView, sharing: Collection[str], policy: NamespacePolicy, settings: Settings) -> Check[None]:
    """Check a pod that asks for a share, or whose annotations divide a claim of its own.

    Args:
        pod: what was created.
        sharing: names of the containers that ask.
        policy: of its namespace.
        settings: of the cluster.
    """
    yield from independent([_node_name(pod), _windows(pod), check_host(pod.pod, policy, settings)])
    yield from independent(_whole_gpus(container) for container in pod.containers)
    yield from guarded(_root(pod, sharing, settings))


def check_host(pod: Json, policy: NamespacePolicy, settings: Settings) -> Check[None]:
    """Check whether a pod can reach its node around the share; its containers need not be readable."""
    host = HostAccess(protected=settings.protected_paths, network=settings.host_network)
    return host_access.check(pod, policy.host_access(host))


def validate_container(container: Container) -> Check[None]:
    """Check one container that is added to a sharing pod: no access to the node, no devices, no whole GPU."""
    yield from independent([host_access.check_container(container.raw, container.field), _whole_gpus(container)])


def as_root(pod: PodView, sharing: Collection[str]) -> Iterator[Problem]:
    """Find what makes a sharing container run as root where the pod itself says so; images say it elsewhere."""
    outer = mapping(pod.spec.get("securityContext"), "spec.securityContext")
    contexts = [
        (container, mapping(container.raw.get("securityContext"), f"{container.field}.securityContext"))
        for container in pod.containers
    ]
    inherit = [container.name in sharing for container, inner in contexts if inner.get("runAsNonRoot") is None]
    if outer.get("runAsNonRoot") is False and any(inherit):
        outer = {**outer, "runAsNonRoot": True}  # the advice for the sharing container changes it for the others too
        yield Problem("spec.securityContext.runAsNonRoot", _NON_ROOT)
    for container, inner in contexts:
        yield from _root_of(container, inner, outer, sharing=container.name in sharing)


def _root_of(container: Container, inner: Json, outer: Json, *, sharing: bool) -> Iterator[Problem]:
    non_root, field = effective(inner, outer, "runAsNonRoot", container)
    if sharing and non_root is False:
        yield Problem(field, _NON_ROOT)
    user, field = effective(inner, outer, "runAsUser", container)
    if user == 0 and (sharing or non_root is not False):
        yield Problem(field, "0 is root, which this cluster denies in pods with a share; write another user ID")


def _node_name(pod: PodView) -> Check[None]:
    if node := pod.spec.get("nodeName"):
        message = (
            f"{quoted(str(node))} bypasses the scheduler, which must choose the GPU; remove spec.nodeName, and use "
            "nodeSelector or nodeAffinity"
        )
        yield Problem("spec.nodeName", message)


def _windows(pod: PodView) -> Check[None]:
    if mapping(pod.spec.get("os"), "spec.os").get("name") == "windows":
        message = f"GPU sharing is not supported on Windows; remove the {contract.GROUP} annotations"
        yield Problem("spec.os.name", message)


def _root(pod: PodView, sharing: Collection[str], settings: Settings) -> Check[None]:
    """Refuse root, or warn of it; what the image says is invisible here."""
    if settings.root_tenants == "refuse":
        yield from as_root(pod, sharing)
        return
    perhaps = [] if isolated(pod) else may_run_as_root(pod, sharing)
    if perhaps and settings.root_tenants == "allow":
        yield f"may run as root and disturb others on the GPU (set runAsNonRoot: true): {', '.join(perhaps)}"
    elif perhaps and (field := hindrance(pod)):
        yield f"may run as root; not isolated because of {field:.60} (set runAsNonRoot: true): {', '.join(perhaps)}"


def not_isolated(pod: PodView, sharing: Collection[str], settings: Settings) -> Iterator[str]:
    """Warn of root in a pod that brings its own claim: nothing of it is rewritten."""
    perhaps = may_run_as_root(pod, sharing)
    if settings.root_tenants == "isolate" and perhaps and not isolated(pod) and not hindrance(pod):
        yield f"may run as root and disturb others on the GPU (set spec.hostUsers: false): {', '.join(perhaps)}"


def _whole_gpus(container: Container) -> Check[None]:
    field = f"{container.field}.resources"
    resources = mapping(container.raw.get("resources"), field)
    yield from independent(
        _whole_amounts(container, resources, part, f"{field}.{part}") for part in ("limits", "requests")
    )


def _whole_amounts(container: Container, resources: Json, part: str, field: str) -> Check[None]:
    amounts = mapping(resources.get(part), field)
    check_number(amounts, field)
    for key, value in amounts.items():
        if key not in _WHOLE and not str(key).startswith(_WHOLE_PREFIXES):
            continue
        if not _is_zero(value):
            message = (
                f"{quoted(str(value))} requests a whole GPU in a container of a pod with a share; remove it, or the "
                "gpu-share annotations"
            )
            yield Problem(f"{field}[{key:.80}]", message)
        elif part == "limits" or key not in mapping(resources.get("limits"), field):
            yield f"{key:.40}: 0 of container {container.name:.40} has no effect in a pod with a share"


def _is_zero(value: Any) -> bool:
    if isinstance(value, str):
        return exact_value(value) == 0
    return value is None or value == 0
