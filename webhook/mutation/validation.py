"""Deny or warn about fields that cannot be combined with a share. Pure.

Each rule closes a way around the limit, or a second way to a GPU. Nothing here changes the pod.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from gpushare import contract, host_access
from gpushare.errors import Problem
from gpushare.fields import mapping
from gpushare.findings import Findings
from gpushare.host_access import HostAccess
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import is_zero, quoted
from webhook.mutation.podview import Container, Json, PodView
from webhook.mutation.settings import Settings
from webhook.mutation.user_namespaces import effective, hindrance, isolated, may_run_as_root

_WHOLE_PREFIXES: Final = ("nvidia.com/gpu.", "nvidia.com/mig-")
_GPU_CLASSES: Final = (*contract.OTHER_GPU_CLASSES, *contract.ALL_CLASSES)
_NON_ROOT: Final = "false: this cluster denies root in pods with a share; set it to true"
SANDBOXES: Final = ("gvisor", "runsc", "kata")
"""What names of RuntimeClasses have in them whose pods run in a sandbox."""
_WHOLE: Final = {contract.WHOLE_GPU, *(contract.IMPLICIT_RESOURCE + name for name in _GPU_CLASSES)}
"""Resources that are a GPU; for those of device classes, the scheduler itself makes a claim."""


def validate_pod(
    findings: Findings, pod: PodView, sharing: Collection[str], policy: NamespacePolicy, settings: Settings
) -> None:
    """Check a pod that asks for a share, or whose annotations divide a claim of its own.

    Args:
        findings: get the problems and warnings.
        pod: what was created.
        sharing: names of the containers that ask.
        policy: of its namespace.
        settings: of the cluster.
    """
    findings.independent((_node_name, _windows), pod)
    if "runtimeClassName" in pod.spec:
        findings.attempt(_sandbox, findings, pod)
    findings.attempt(check_host, findings, pod.pod, policy, settings)
    for container in pod.containers:
        _whole_gpus(findings, container)
    findings.attempt(_root, findings, pod, sharing, settings)


def check_host(findings: Findings, pod: Json, policy: NamespacePolicy, settings: Settings) -> None:
    """Check whether a pod can reach its node around the share; its containers need not be readable."""
    host = HostAccess(protected=settings.protected_paths, network=settings.host_network)
    host_access.check(findings, pod, policy.host_access(host))


def validate_container(findings: Findings, container: Container) -> None:
    """Check one container that is added to a sharing pod: no access to the node, no devices, no whole GPU."""
    host_access.check_container(findings, container.raw, container.field)
    _whole_gpus(findings, container)


def as_root(pod: PodView, sharing: Collection[str]) -> list[Problem]:
    """Find what makes a sharing container run as root where the pod itself says so; images say it elsewhere."""
    found, outer = list[Problem](), pod.security
    inherit = [each.name in sharing for each in pod.containers if each.security.get("runAsNonRoot") is None]
    if outer.get("runAsNonRoot") is False and any(inherit):
        outer = {**outer, "runAsNonRoot": True}  # the advice for the sharing container changes it for the others too
        found.append(Problem("spec.securityContext.runAsNonRoot", _NON_ROOT))
    for container in pod.containers:
        found += _root_of(container, outer, sharing=container.name in sharing)
    return found


def _root_of(container: Container, outer: Json, *, sharing: bool) -> Iterator[Problem]:
    non_root, field = effective(container, outer, "runAsNonRoot")
    if sharing and non_root is False:
        yield Problem(field, _NON_ROOT)
    user, field = effective(container, outer, "runAsUser")
    if user == 0 and (sharing or non_root is not False):
        yield Problem(field, "0 is root, which this cluster denies in pods with a share; write another user ID")


def _node_name(findings: Findings, pod: PodView) -> None:
    if node := pod.spec.get("nodeName"):
        message = (
            f"{quoted(str(node))} bypasses the scheduler, which must choose the GPU; remove spec.nodeName, and use "
            "nodeSelector or nodeAffinity"
        )
        findings.problem("spec.nodeName", message)


def _windows(findings: Findings, pod: PodView) -> None:
    if "os" in pod.spec and mapping(pod.spec["os"], "spec.os").get("name") == "windows":
        message = f"GPU sharing is not supported on Windows; remove the {contract.GROUP} annotations"
        findings.problem("spec.os.name", message)


def _sandbox(findings: Findings, pod: PodView) -> None:
    """Warn by the name: the RuntimeClass, which an administrator writes, is not read here."""
    name = str(pod.spec.get("runtimeClassName") or "")
    if any(each in name.lower() for each in SANDBOXES):
        findings.warn(
            f"runtimeClassName {name:.32}: programs in a sandbox cannot reach MPS, so a share fails; use runc"
        )


def _root(findings: Findings, pod: PodView, sharing: Collection[str], settings: Settings) -> None:
    """Refuse root, or warn of it; what the image says is invisible here."""
    if settings.root_tenants == "refuse":
        for problem in as_root(pod, sharing):
            findings.add(problem)
        return
    perhaps = [] if isolated(pod) else may_run_as_root(pod, sharing)
    if perhaps and settings.root_tenants == "allow":
        findings.warn(f"may run as root and disturb others on the GPU (set runAsNonRoot: true): {', '.join(perhaps)}")
    elif perhaps and (field := hindrance(pod)):
        why = f"not isolated because of {field:.60}"
        findings.warn(f"may run as root; {why} (set runAsNonRoot: true): {', '.join(perhaps)}")


def not_isolated(findings: Findings, pod: PodView, sharing: Collection[str], settings: Settings) -> None:
    """Warn of root in a pod that brings its own claim: nothing of it is rewritten."""
    perhaps = may_run_as_root(pod, sharing)
    if settings.root_tenants == "isolate" and perhaps and not isolated(pod) and not hindrance(pod):
        hint = "set spec.hostUsers: false"
        findings.warn(f"may run as root and disturb others on the GPU ({hint}): {', '.join(perhaps)}")


def _whole_gpus(findings: Findings, container: Container) -> None:
    for part, amounts in (("limits", container.limits), ("requests", container.requests)):
        for key in amounts:
            if key not in _WHOLE and not str(key).startswith(_WHOLE_PREFIXES):
                continue
            value = amounts[key]
            if not _is_zero(value):
                message = (
                    f"{quoted(str(value))} requests a whole GPU in a container of a pod with a share; remove it, or "
                    "the gpu-share annotations"
                )
                findings.problem(f"{container.field}.resources.{part}[{key:.80}]", message)
            elif part == "limits" or key not in container.limits:
                findings.warn(f"{key:.40}: 0 of container {container.name:.40} has no effect in a pod with a share")


def _is_zero(value: Any) -> bool:
    if isinstance(value, str):
        return is_zero(value)
    return value is None or value == 0
