"""Mutate one pod, or deny it, by the namespace policy and the settings. Pure."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.fields import objects
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation import other_gpu_systems, sidecar_validation, validation
from webhook.mutation.annotations import Plan, asking, asks, main_name, read_plan
from webhook.mutation.json_patch import diff
from webhook.mutation.podview import Kind, PodView, claims_used, names_claim, read_annotations, read_pod
from webhook.mutation.resourceclaims import ClaimPlan, check_compute, check_memory, claim_plan
from webhook.mutation.rewrite import hide, rewrite
from webhook.mutation.settings import Settings
from webhook.mutation.template_content import content_of

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
    other_claims: Container[str] = NONE,
    standing: Callable[[str], int | None] = lambda _: None,
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
        own_claims: claims (``claim/<name>``) and templates (``template/<name>``) of our class that people of the
            namespace wrote. A claim that is missing here makes the pod a sharing one.
        other_claims: claims and templates that ask for GPUs of other drivers, written as those of ``own_claims``.
        standing: by its name, what a claim template of the namespace asks for (``template_content``); ``None`` where
            there is none.

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
    sharing = asking(view)
    own = _brings_claims(view, sharing, own_claims)
    if not own:
        sidecar_validation.check(view, settings)
    warnings = validation.check(view, sharing, policy, settings)
    other_gpu_systems.check_claims(view, sharing, other_claims)
    warnings = (*warnings, *other_gpu_systems.warnings(view, main_name(view), settings))
    if own:
        warning = f"the pod's own claims give its containers GPUs; annotations of {contract.GROUP} only divide them"
        return Decision(reason=Reason.OWN_CLAIM, pod=pod, warnings=_said((warning, *warnings)))
    return _share(view, policy, settings, standing, warnings)


def _share(
    view: PodView,
    policy: NamespacePolicy,
    settings: Settings,
    standing: Callable[[str], int | None],
    warnings: tuple[str, ...],
) -> Decision:
    plan = read_plan(view, policy, settings)
    claim = claim_plan(plan)
    check_compute(plan, settings.most_compute)
    check_memory(plan, settings.max_memory_mib)
    _check_template(claim, plan, standing(claim.template))
    after = rewrite(view, plan, claim, policy, settings)
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


def _check_template(claim: ClaimPlan, plan: Plan, found: int | None) -> None:
    """Refuse a pod whose template's name somebody gave to other content before the namespace opted in."""
    if found is not None and found != content_of(claim.requests, plan.models, same_gpu=plan.same_gpu):
        message = f"{claim.template} is another's ResourceClaimTemplate under a name of {contract.GROUP}; delete it"
        raise PolicyDenied("spec.resourceClaims", message, Reason.TEMPLATE_TAKEN)


def _brings_claims(view: PodView, sharing: Iterable[str], own_claims: Container[str]) -> bool:
    """Tell whether each container that asks uses a claim of our class that people wrote, and needs no share.

    A pod with our entry is a sharing one whatever else it names, and a claim that nobody uses gives nothing.
    """
    entries = objects(view.spec.get("resourceClaims"), "spec.resourceClaims")
    if any(_is_ours(entry) for entry in entries):
        return False
    own = {str(entry.get("name")) for entry in entries if names_claim(entry, own_claims)}
    using = {each.name for each in view.containers if own and own & claims_used(each)}
    return using.issuperset(sharing)


def _is_ours(entry: Json) -> bool:
    template = entry.get("resourceClaimTemplateName")
    named = isinstance(template, str) and template.startswith(contract.TEMPLATE_PREFIX)
    return entry.get("name") == contract.CLAIM and named
