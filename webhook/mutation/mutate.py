"""Mutate one pod, or deny it, by the namespace policy and the settings. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation import validation
from webhook.mutation.annotations import asks, read_plan
from webhook.mutation.json_patch import diff
from webhook.mutation.podview import Kind, PodView, objects, read_annotations, read_pod
from webhook.mutation.resourceclaims import check_compute, check_memory, claim_plan
from webhook.mutation.rewrite import hide, rewrite
from webhook.mutation.settings import Settings

WARNING_LENGTH: Final = 119
"""The API server asks for warnings of less than 120 characters."""
_CUT: Final = "..."
NONE: Final[frozenset[str]] = frozenset()

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done to a pod. ``patch`` is JSON Patch, ``pod`` the pod it leads to."""

    reason: Reason
    pod: Json
    patch: list[dict[str, Any]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()


def decide(  # noqa: PLR0913 - one argument per fact the answer depends on
    pod: Json,
    *,
    policy: NamespacePolicy,
    settings: Settings,
    user: str = "",
    operation: str = "CREATE",
    subresource: str = "",
    old: Json | None = None,
    own_claims: Container[str] = NONE,
) -> Decision:
    """Decide about one pod of an opted-in namespace.

    Args:
        pod: the raw object of the review; never changed.
        policy: what the namespace's annotations say.
        settings: what the operator decided for the cluster.
        user: who asks; only the kubelet may create mirror pods.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        subresource: of the request, empty for the pod itself.
        old: the object before an UPDATE.
        own_claims: claims (``claim/<name>``) and templates (``template/<name>``) of our class in the namespace.

    Raises:
        PolicyDenied: the pod asks for something it cannot have.
    """
    if operation == "UPDATE" and subresource == "ephemeralcontainers":
        return _debug(pod, old or {})
    if operation != "CREATE" or subresource:
        return Decision(reason=Reason.UNCHANGED, pod=pod)
    annotations = read_annotations(pod)
    if not asks(annotations):
        return Decision(reason=Reason.NO_SHARE, pod=pod)
    view = read_pod(pod)
    if _is_mirror(view, user):
        return Decision(reason=Reason.MIRROR_POD, pod=pod)
    if claim := _own_claim(view, own_claims):
        warning = f"resource claim {claim:.40} is used as it is; the annotations of {contract.GROUP} are ignored"
        return Decision(reason=Reason.OWN_CLAIM, pod=pod, warnings=(warning,))
    return _share(view, policy, settings)


def _share(view: PodView, policy: NamespacePolicy, settings: Settings) -> Decision:
    plan = read_plan(view, policy, settings)
    warnings = validation.check(view, plan, settings)
    claim = claim_plan(plan)
    check_compute(plan, settings.most_compute)
    check_memory(plan, settings.max_memory_mib)
    after = rewrite(view, plan, claim, settings)
    patch = diff(view.pod, after.pod)
    said = _said((*plan.warnings, *warnings, *after.warnings))
    return Decision(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after.pod, patch=patch, warnings=said)


def _debug(pod: Json, old: Json) -> Decision:
    """Answer ``kubectl debug`` on a sharing pod: containers added later get no GPU; those there are immutable."""
    annotated = asks(read_annotations(pod))
    claims = (pod.get("spec") or {}).get("resourceClaims") if isinstance(pod.get("spec"), dict) else None
    claimed = any(each.get("name") == contract.CLAIM for each in objects(claims, "spec.resourceClaims"))
    if not annotated and not claimed:
        return Decision(reason=Reason.NO_SHARE, pod=pod)
    view = read_pod(pod)
    known = {each.name for each in read_pod(old).containers if each.kind is Kind.EPHEMERAL} if old else set()
    warnings: list[str] = []
    containers: list[Json] = []
    for each in view.containers:
        if each.kind is Kind.EPHEMERAL:
            new = each.name not in known
            warnings += validation.check_container(each) if new else ()
            containers.append(hide(each, warnings) if new else each.raw)
    after = {**pod, "spec": {**view.spec, "ephemeralContainers": containers}} if containers else pod
    patch = diff(pod, after)
    said = _said(warnings)
    return Decision(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch, warnings=said)


def _said(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each warning once, and short enough; one that is cut shows it."""
    cut = WARNING_LENGTH - len(_CUT)
    return tuple(each if len(each) <= WARNING_LENGTH else each[:cut] + _CUT for each in dict.fromkeys(warnings))


def _is_mirror(view: PodView, user: str) -> bool:
    """Tell a static pod's mirror: the annotation alone exempts nobody, the kubelet of that very node has to say it."""
    node = view.spec.get("nodeName")
    return contract.MIRROR in view.annotations and bool(node) and user == f"system:node:{node}"


def _own_claim(view: PodView, own_claims: Container[str]) -> str | None:
    """Name the pod's own claim on a share: one of our class, or an entry of our name that is no template of ours."""
    for entry in objects(view.spec.get("resourceClaims"), "spec.resourceClaims"):
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        ours = entry.get("name") == contract.CLAIM
        managed = ours and isinstance(template, str) and template.startswith(contract.TEMPLATE_PREFIX)
        if not managed and (ours or f"template/{template}" in own_claims or f"claim/{claim}" in own_claims):
            return str(entry.get("name"))
    return None
