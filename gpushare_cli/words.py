"""Write names, numbers and errors into sentences, and texts of others without what drives a terminal. Pure.

Of a refusal of the API server, ``sentence`` says which right is missing, of a conflicting write what to do.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from gpushare import contract
from gpushare.errors import ClusterError, GpuShareError
from gpushare.patterns import Search


def clean(text: str) -> str:
    """Return a text without what drives a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def some(names: Sequence[object], most: int = 5) -> str:
    """Name the first of many, and count the rest."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def moment(time: datetime) -> str:
    """Write a time as Kubernetes does: ``2026-11-28T10:00:00Z``. It has a zone."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def counted(number: int, noun: str, verbs: tuple[str, str] = ("", "")) -> str:
    """Write a number of things: ``1 node``, ``2 nodes``; with what one does and several do, ``1 anchor matches``."""
    return f"{number} {noun} {verbs[0]}".rstrip() if number == 1 else f"{number} {noun}s {verbs[1]}".rstrip()


_RIGHT: Final = Search(
    r'cannot ([a-z]+) resource "([a-z0-9./-]+)" in API group "[^"]*"(?: in the namespace "([^"]+)")?', 4096
)
"""How Kubernetes' RBAC says no. Policies say it in their own words, and those stand."""
READING: Final = frozenset({"get", "list", "watch"})
AGAIN: Final = "another client changed the object at the same time; run the command again"
OPERATOR: Final = "gpu-share-operator"


QUOTA: Final = (
    "a ResourceQuota of the namespace is used up, requires each container to set resources, or bars "
    "CrossNamespacePodAffinity, which the chart's placement.acrossNodes needs: kubectl describe resourcequotas"
)
_REMEDIES: Final = {
    QUOTA: ("exceeded quota:", "failed quota:"),
    "a LimitRange of the namespace does not fit the sidecar: change it, or the chart's sidecar.resources; the message "
    "has both amounts": ("usage per Container is", "usage per Pod is", "limit to request ratio per"),
}
"""By what to do, how the API server names a quota and a LimitRange; a namespace may have the word in its name."""


_WEBHOOK: Final = Search(r'webhook "(?![a-z]{1,9}\.gpu-share\.io")([A-Za-z0-9.:-]{1,253})"', 4096)
"""How the API server names a webhook of others that it cannot call, or that denies the request."""
_POLICY: Final = Search(r"ValidatingAdmissionPolicy '(?!gpu-share-)([A-Za-z0-9.:-]{1,253})' ", 4096)
"""How it names a policy of others."""
CONFIGURATIONS: Final = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


_PART: Final = Search(
    r'User "system:(?:(kube-scheduler)|serviceaccount:kube-system:([a-z-]{1,63}))" cannot [a-z]{1,16} resource', 4096
)
"""How it names a part of Kubernetes that lacks a right of its own."""


_DISABLED: Final = Search(
    r"claim [a-z0-9./-]{1,317}, (?:sub)?request [a-z0-9/-]{1,127}: [a-z ]{1,63}, but the (DRA[A-Za-z]{1,60}) "
    r"feature is disabled", 4096,
)  # fmt: skip
"""How kube-scheduler says that it has not the feature gates of the API server: in a condition of the pod alone."""


def webhook_of_others(refusal: str) -> str:
    """Name the webhook that refused; empty where none did, or none but gpu-share's."""
    found = _WEBHOOK.search(refusal[:4096])
    return "" if found is None else found[1]


def is_over_quota(refusal: str) -> bool:
    """Tell whether a refusal is that of a ResourceQuota."""
    return any(each in refusal for each in _REMEDIES[QUOTA])


def refusal_remedy(refusal: str, configuration: str = CONFIGURATIONS) -> str:
    """Say what to do about a refusal of a quota, a LimitRange, a webhook or policy of others, or RBAC; else empty."""
    if hook := webhook_of_others(refusal):
        field = "failurePolicy: Ignore or a namespaceSelector" if "failed calling" in refusal else "a namespaceSelector"
        lets = f"{field} in its configuration lets them pass: kubectl describe {configuration}"
        return f"webhook {hook} is not one of gpu-share; {lets}"
    if policy := _POLICY.search(refusal[:4096]):
        return f"the policy is not one of gpu-share: kubectl describe validatingadmissionpolicies {policy[1]}"
    if part := _PART.search(refusal[:4096]):
        role = f"system:{part[1] or f'controller:{part[2]}'}"
        lacking = (
            f"a part of Kubernetes lacks a right of its own: kubectl describe clusterroles,clusterrolebindings {role}"
        )
        return f"{lacking}; an API server that starts restores both"
    return next((each for each, words in _REMEDIES.items() if any(one in refusal for one in words)), "")


def scheduler_remedy(message: str) -> str:
    """Say what to do about what the scheduler writes into a pod's condition; empty where nothing is known."""
    if gate := _DISABLED.search(message[:4096]):
        return f"an operator enables the feature gate {gate[1]} in kube-scheduler, as it is in the API server"
    return refusal_remedy(message)


def sentence(error: GpuShareError) -> str:
    """Say an error for people: of a refusal which right is missing and whom to ask for it, of a conflict what to do."""
    if not isinstance(error, ClusterError):
        return error.message
    if error.status == HTTPStatus.CONFLICT and "already exists" not in error.message:
        return f"{AGAIN} ({error.message})"
    if error.status == HTTPStatus.UNAUTHORIZED:
        return f"the API server does not accept your credentials; log in again ({error.message})"
    missing = lacking(error)
    return error.message if missing is None else f"you may not {missing[0]}; {missing[1]}"


def lacking(error: ClusterError) -> tuple[str, str] | None:
    """Return what the user may not do and what to ask for; ``None`` where it was not a right that was missing."""
    found = _RIGHT.search(error.message) if error.status == HTTPStatus.FORBIDDEN else None
    if found is None:
        return None
    verb, resource, namespace = found.groups()
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    return f"{verb} {resource} {where}", _ask_for(verb, resource, namespace)


def _ask_for(verb: str, resource: str, namespace: str | None) -> str:
    """Which of the chart's roles, or of Kubernetes' own, has that right."""
    if resource == "pods/exec":
        return (
            "this permission equals root access to the nodes of those pods, so no role of gpu-share includes it; "
            "ask an administrator"
        )
    role = _role(verb, resource, namespace)
    if role is None:
        return f"ask an administrator for a role with verb {verb} on {resource}"
    return f"ask for the ClusterRole {role}" + (f" in namespace {namespace}" if namespace else "")


def _role(verb: str, resource: str, namespace: str | None) -> str | None:
    if verb in READING:
        own = {"resourceclaims": "gpu-share-view", "resourceclaimtemplates": "gpu-share-view"}
        return own.get(resource, "view") if namespace else OPERATOR
    if (verb, resource) in {("patch", "pods"), ("update", contract.RESIZE_RIGHT)}:
        return "gpu-share-resize"
    if resource in {"resourceclaims", "resourceclaimtemplates"} and namespace:
        return "gpu-share-edit"
    return OPERATOR if (verb, resource) in {("patch", "namespaces"), ("update", "namespaces")} else None
