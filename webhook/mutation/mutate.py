"""Mutate one pod, or deny it, by the namespace policy and the settings. Pure."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from gpushare import contract
from gpushare.checks import Check, attempt, collect, first_of_fields, guarded, independent
from gpushare.errors import Problem
from gpushare.fields import objects
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation import framework_warnings, other_gpu_systems, sidecar_validation, validation
from webhook.mutation.json_patch import diff
from webhook.mutation.podview import Kind, PodView, claims_used, names_claim, read_annotations, read_pod, reading
from webhook.mutation.resourceclaims import ClaimPlan, check_compute, check_memory, check_number, claim_plan
from webhook.mutation.rewrite import hide_gpus, is_our_claim, rewrite
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import ShareRequest, asking, planning, requests_share
from webhook.mutation.template_content import content_of

WARNING_LENGTH: Final = 119
"""The API server asks for warnings of less than 120 characters."""
MAX_WARNINGS: Final = 64
"""Of one pod. The API server passes on 4096 characters of all warnings together."""
_CUT: Final = "..."
NONE: Final[frozenset[str]] = frozenset()

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What is done to a pod. ``patch`` is JSON Patch, ``pod`` the pod it leads to."""

    reason: Reason
    pod: Json
    patch: list[dict[str, Any]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Around:
    """What a decision depends on besides the pod; ``mutate_pod`` describes it."""

    policy: NamespacePolicy
    settings: Settings
    own_claims: Container[str]
    other_claims: Container[str]
    standing: Callable[[str], int | None]


def mutate_pod(  # noqa: PLR0913 - one argument per fact the answer depends on
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
) -> Mutation:
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
        return _collected(_debug(pod, old or {}))
    if operation != "CREATE" or subresource:
        return Mutation(reason=Reason.UNCHANGED, pod=pod)
    if not requests_share(read_annotations(pod)):
        return Mutation(reason=Reason.NO_SHARE, pod=pod)
    around = _Around(policy, settings, own_claims, other_claims, standing)
    return _collected(_created(pod, user, around))


def _collected(check: Check[Mutation]) -> Mutation:
    decision, warnings = collect(check)
    return replace(decision, warnings=_bounded(warnings)) if warnings else decision


def _created(pod: Json, user: str, around: _Around) -> Check[Mutation]:
    view = yield from guarded(reading(pod))
    if view is None:
        yield from validation.check_host(pod, around.policy, around.settings)
        return Mutation(reason=Reason.UNCHANGED, pod=pod)
    if _is_mirror(view, user):
        return Mutation(reason=Reason.MIRROR_POD, pod=pod)
    main = view.main.name
    sharing = asking(view, main)
    if (yield from attempt(partial(_brings_claims, view, sharing, around.own_claims))):
        yield (
            f"the pod's own ResourceClaims reserve its GPU memory; {contract.GROUP} annotations only "
            "divide it among containers"
        )
        yield from _checked(view, main, sharing, around)
        yield from validation.not_isolated(view, sharing, around.settings)
        return Mutation(reason=Reason.OWN_CLAIM, pod=pod)
    sidecar = view.named(contract.SIDECAR)
    shared = _shared(view, main, sharing, around)
    return (yield from (first_of_fields(sidecar.field, shared) if sidecar else shared))


def _shared(view: PodView, main: str, sharing: frozenset[str], around: _Around) -> Check[Mutation]:
    """Make a sharing pod. Problems of the sidecar come first: other checks take it for a container of the tenant."""
    plan = yield from planning(view, around.policy, around.settings)
    yield from guarded(sidecar_validation.problems(view, around.settings))
    yield from _checked(view, main, sharing, around)
    yield from framework_warnings.warnings(view, plan)
    return (yield from _share(view, plan, around))


def _checked(view: PodView, main: str, sharing: frozenset[str], around: _Around) -> Check[None]:
    """Check what annotations cannot change, for shares and for claims that the pod brings."""
    yield from validation.validate_pod(view, sharing, around.policy, around.settings)
    others = other_gpu_systems.check_claims(view, sharing, around.other_claims)
    yield from independent([others, other_gpu_systems.warnings(view, main, around.settings)])


def _share(view: PodView, plan: ShareRequest, around: _Around) -> Check[Mutation]:
    claim, settings = claim_plan(plan), around.settings
    yield from check_number(claim.requests)
    yield from check_compute(claim, settings.most_compute)
    yield from check_memory(claim, settings.max_memory_mib)
    yield from _check_template(claim, plan, around.standing)
    after = yield from rewrite(view, plan, claim, around.policy, settings)
    patch = diff(view.pod, after) if plan.complete else []
    return Mutation(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch)


def _debug(pod: Json, old: Json) -> Check[Mutation]:
    """Answer ``kubectl debug`` on a sharing pod: containers added later get no GPU; those there are immutable."""
    annotated = requests_share(read_annotations(pod))
    claims = (pod.get("spec") or {}).get("resourceClaims") if isinstance(pod.get("spec"), dict) else None
    claimed = any(each.get("name") == contract.CLAIM for each in objects(claims, "spec.resourceClaims"))
    if not annotated and not claimed:
        return Mutation(reason=Reason.NO_SHARE, pod=pod)
    view = yield from reading(pod)
    known = {each.name for each in read_pod(old).containers if each.kind is Kind.EPHEMERAL} if old else set()
    containers: list[Json] = []
    for each in view.containers:
        if each.kind is Kind.EPHEMERAL and each.name not in known:
            yield from validation.validate_container(each)
            containers.append((yield from hide_gpus(each)))
        elif each.kind is Kind.EPHEMERAL:
            containers.append(each.raw)
    after = {**pod, "spec": {**view.spec, "ephemeralContainers": containers}} if containers else pod
    patch = diff(pod, after)
    return Mutation(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch)


def _bounded(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each warning once, printable and short enough; one that is cut shows it. Of many the last one counts the rest."""
    cut, found = WARNING_LENGTH - len(_CUT), list(dict.fromkeys(map(_line, warnings)))
    if len(found) > MAX_WARNINGS:
        found[MAX_WARNINGS - 1 :] = [f"and {len(found) - MAX_WARNINGS + 1} more warnings"]
    return tuple(each if len(each) <= WARNING_LENGTH else each[:cut] + _CUT for each in found)


def _line(text: str) -> str:
    printable = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())


def _is_mirror(view: PodView, user: str) -> bool:
    """Tell a static pod's mirror: the annotation alone exempts nobody, the kubelet of that very node has to say it."""
    node = view.spec.get("nodeName")
    return contract.MIRROR in view.annotations and bool(node) and user == f"system:node:{node}"


def _check_template(claim: ClaimPlan, plan: ShareRequest, standing: Callable[[str], int | None]) -> Iterator[Problem]:
    """Find a template of the claim's name to which somebody gave other content before the namespace opted in."""
    found = standing(claim.template) if plan.complete else None
    if found is not None and found != content_of(claim.requests, plan.models, same_gpu=plan.same_gpu):
        message = f"ResourceClaimTemplate {claim.template} differs from the one that gpu-share writes; delete it"
        yield Problem("spec.resourceClaims", message, Reason.TEMPLATE_CONFLICT)


def _brings_claims(view: PodView, sharing: Iterable[str], own_claims: Container[str]) -> bool:
    """Tell whether each container that asks uses a claim of our class that people wrote, and needs no share.

    A pod with our entry is a sharing one whatever else it names, and a claim that nobody uses gives nothing.
    """
    entries = objects(view.spec.get("resourceClaims"), "spec.resourceClaims")
    if any(is_our_claim(entry) for entry in entries):
        return False
    own = {str(entry.get("name")) for entry in entries if names_claim(entry, own_claims)}
    using = {each.name for each in view.containers if own and own & claims_used(each)}
    return using.issuperset(sharing)
