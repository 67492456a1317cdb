"""Mutate one pod, or deny it, by the namespace policy and the settings. Pure."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from gpushare import contract
from gpushare.checks import Check, attempt, collect, guarded
from gpushare.errors import Problem
from gpushare.fields import mapping, objects
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation import validation
from webhook.mutation.annotations import Plan, asking, asks, planning
from webhook.mutation.json_patch import diff
from webhook.mutation.podview import Container as PodContainer
from webhook.mutation.podview import Kind, PodView, read_annotations, read_pod, reading
from webhook.mutation.resourceclaims import ClaimPlan, check_compute, check_memory, check_number, claim_plan
from webhook.mutation.rewrite import hide, is_our_claim, rewrite
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
        standing: by its name, what a claim template of the namespace asks for (``template_content``); ``None`` where
            there is none.

    Raises:
        PolicyDenied: the pod asks for something it cannot have.
    """
    if operation == "UPDATE" and subresource == "ephemeralcontainers":
        return _collected(_debug(pod, old or {}))
    if operation != "CREATE" or subresource:
        return Decision(reason=Reason.UNCHANGED, pod=pod)
    if not asks(read_annotations(pod)):
        return Decision(reason=Reason.NO_SHARE, pod=pod)
    return _collected(_created(pod, policy, settings, user, own_claims, standing))


def _collected(check: Check[Decision]) -> Decision:
    decision, warnings = collect(check)
    return replace(decision, warnings=_said(warnings))


def _created(
    pod: Json,
    policy: NamespacePolicy,
    settings: Settings,
    user: str,
    own_claims: Container[str],
    standing: Callable[[str], int | None],
) -> Check[Decision]:
    view = yield from guarded(reading(pod))
    if view is None:
        yield from validation.check_host(pod, policy, settings)
        return Decision(reason=Reason.UNCHANGED, pod=pod)
    if _is_mirror(view, user):
        return Decision(reason=Reason.MIRROR_POD, pod=pod)
    sharing = asking(view)
    if (yield from attempt(partial(_brings_claims, view, sharing, own_claims))):
        yield f"the pod's own claims give its containers GPUs; annotations of {contract.GROUP} only divide them"
        yield from validation.check(view, sharing, policy, settings)
        return Decision(reason=Reason.OWN_CLAIM, pod=pod)
    plan = yield from planning(view, policy, settings)
    yield from validation.check(view, sharing, policy, settings)
    return (yield from _share(view, plan, policy, settings, standing))


def _share(
    view: PodView, plan: Plan, policy: NamespacePolicy, settings: Settings, standing: Callable[[str], int | None]
) -> Check[Decision]:
    claim = claim_plan(plan)
    yield from check_number(claim.requests)
    yield from check_compute(plan, settings.most_compute)
    yield from check_memory(plan, settings.max_memory_mib)
    yield from _check_template(claim, plan, standing)
    after = yield from rewrite(view, plan, claim, policy, settings)
    patch = diff(view.pod, after) if plan.complete else []
    return Decision(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch)


def _debug(pod: Json, old: Json) -> Check[Decision]:
    """Answer ``kubectl debug`` on a sharing pod: containers added later get no GPU; those there are immutable."""
    annotated = asks(read_annotations(pod))
    claims = (pod.get("spec") or {}).get("resourceClaims") if isinstance(pod.get("spec"), dict) else None
    claimed = any(each.get("name") == contract.CLAIM for each in objects(claims, "spec.resourceClaims"))
    if not annotated and not claimed:
        return Decision(reason=Reason.NO_SHARE, pod=pod)
    view = yield from reading(pod)
    known = {each.name for each in read_pod(old).containers if each.kind is Kind.EPHEMERAL} if old else set()
    containers: list[Json] = []
    for each in view.containers:
        if each.kind is Kind.EPHEMERAL and each.name not in known:
            yield from validation.check_container(each)
            containers.append((yield from hide(each)))
        elif each.kind is Kind.EPHEMERAL:
            containers.append(each.raw)
    after = {**pod, "spec": {**view.spec, "ephemeralContainers": containers}} if containers else pod
    patch = diff(pod, after)
    return Decision(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch)


def _said(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each warning once, and short enough; one that is cut shows it."""
    cut = WARNING_LENGTH - len(_CUT)
    return tuple(each if len(each) <= WARNING_LENGTH else each[:cut] + _CUT for each in dict.fromkeys(warnings))


def _is_mirror(view: PodView, user: str) -> bool:
    """Tell a static pod's mirror: the annotation alone exempts nobody, the kubelet of that very node has to say it."""
    node = view.spec.get("nodeName")
    return contract.MIRROR in view.annotations and bool(node) and user == f"system:node:{node}"


def _check_template(claim: ClaimPlan, plan: Plan, standing: Callable[[str], int | None]) -> Iterator[Problem]:
    """Find a template of the claim's name to which somebody gave other content before the namespace opted in."""
    found = standing(claim.template) if plan.complete else None
    if found is not None and found != content_of(claim.requests, plan.models, same_gpu=plan.same_gpu):
        message = f"{claim.template} is another's ResourceClaimTemplate under a name of {contract.GROUP}; delete it"
        yield Problem("spec.resourceClaims", message, Reason.TEMPLATE_TAKEN)


def _brings_claims(view: PodView, sharing: Iterable[str], own_claims: Container[str]) -> bool:
    """Tell whether each container that asks uses a claim of our class that people wrote, and needs no share.

    A pod with our entry is a sharing one whatever else it names, and a claim that nobody uses gives nothing.
    """
    entries = objects(view.spec.get("resourceClaims"), "spec.resourceClaims")
    if any(is_our_claim(entry) for entry in entries):
        return False
    own = {str(entry.get("name")) for entry in entries if _is_own(entry, own_claims)}
    using = {each.name for each in view.containers if own and own & _used(each)}
    return using.issuperset(sharing)


def _is_own(entry: Json, own_claims: Container[str]) -> bool:
    template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
    return f"template/{template}" in own_claims or f"claim/{claim}" in own_claims


def _used(container: PodContainer) -> set[str]:
    field = f"{container.field}.resources"
    claims = mapping(container.raw.get("resources"), field).get("claims")
    return {str(each.get("name")) for each in objects(claims, f"{field}.claims")}
