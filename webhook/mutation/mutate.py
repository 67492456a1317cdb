"""Mutate one pod, or deny it, by the namespace policy and the settings. Pure."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import contract
from gpushare.fields import objects
from gpushare.findings import Findings, collect, first_of_fields
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation import framework_warnings, other_gpu_systems, sidecar_validation, validation
from webhook.mutation.json_patch import diff
from webhook.mutation.podview import Kind, PodView, claims_used, names_claim, read_annotations, read_pod, view_pod
from webhook.mutation.resourceclaims import ClaimPlan, check_claim, claim_plan
from webhook.mutation.rewrite import hide_gpus, is_our_claim, rewrite
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import Asked, ShareRequest, planning, read_asked, requests_share

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
        return collect(_debug, pod, old or {})
    if operation != "CREATE" or subresource:
        return Mutation(reason=Reason.UNCHANGED, pod=pod)
    annotations = read_annotations(pod)
    if not requests_share(annotations):
        return Mutation(reason=Reason.NO_SHARE, pod=pod)
    around = _Around(policy, settings, own_claims, other_claims, standing)
    return collect(_created, pod, annotations, user, around)


def _created(findings: Findings, pod: Json, annotations: Json, user: str, around: _Around) -> Mutation:
    view = findings.attempt(view_pod, findings, pod, annotations)
    if view is None:
        validation.check_host(findings, pod, around.policy, around.settings)
        # Nobody gets this: what could not be read is a problem, so ``collect`` denies the pod.
        return Mutation(reason=Reason.UNCHANGED, pod=pod)
    if _is_mirror(view, user):
        return Mutation(reason=Reason.MIRROR_POD, pod=pod)
    asked = read_asked(view, annotations)
    if findings.attempt(_brings_claims, view, asked.names, around.own_claims):
        findings.warn(
            f"the pod's own ResourceClaims reserve its GPU memory; {contract.GROUP} annotations only "
            "divide it among containers"
        )
        _check(findings, view, asked, around)
        validation.not_isolated(findings, view, asked.names, around.settings)
        return Mutation(reason=Reason.OWN_CLAIM, pod=pod, warnings=_bounded(findings.warnings))
    if view.sidecar is not None:
        findings = findings.through(first_of_fields(view.sidecar.field))
    return _shared(findings, view, asked, around)


def _shared(findings: Findings, view: PodView, asked: Asked, around: _Around) -> Mutation:
    """Make a sharing pod. Problems of the sidecar come first: other checks take it for a container of the tenant."""
    policy, settings = around.policy, around.settings
    plan = planning(findings, view, asked, policy, settings)
    sidecar_validation.check(findings, view, settings)
    _check(findings, view, asked, around)
    framework_warnings.warnings(findings, view, plan, policy.frameworks or ())
    claim = claim_plan(plan)
    check_claim(findings, claim, settings.most_compute, settings.max_memory_mib)
    _check_template(findings, claim, plan, around.standing)
    return _mutation(findings, view.pod, rewrite(findings, view, plan, claim, policy, settings))


def _check(findings: Findings, view: PodView, asked: Asked, around: _Around) -> None:
    """Check what annotations cannot change, for shares and for claims that the pod brings."""
    validation.validate_pod(findings, view, asked.names, around.policy, around.settings)
    findings.attempt(other_gpu_systems.check_claims, findings, view, asked.names, around.other_claims)
    other_gpu_systems.warnings(findings, view, asked.main.name, around.settings)


def _debug(findings: Findings, pod: Json, old: Json) -> Mutation:
    """Answer ``kubectl debug`` on a sharing pod: containers added later get no GPU; those there are immutable."""
    annotations = read_annotations(pod)
    claims = (pod.get("spec") or {}).get("resourceClaims") if isinstance(pod.get("spec"), dict) else None
    claimed = any(each.get("name") == contract.CLAIM for each in objects(claims, "spec.resourceClaims"))
    if not claimed and not requests_share(annotations):
        return Mutation(reason=Reason.NO_SHARE, pod=pod)
    view = view_pod(findings, pod, annotations)
    known = {each.name for each in read_pod(old).containers if each.kind is Kind.EPHEMERAL} if old else set()
    containers: list[Json] = []
    for each in view.containers:
        if each.kind is Kind.EPHEMERAL and each.name not in known:
            validation.validate_container(findings, each)
            containers.append(hide_gpus(findings, each))
        elif each.kind is Kind.EPHEMERAL:
            containers.append(each.raw)
    after = {**pod, "spec": {**view.spec, "ephemeralContainers": containers}} if containers else pod
    return _mutation(findings, pod, after)


def _mutation(findings: Findings, before: Json, after: Json) -> Mutation:
    patch, warnings = diff(before, after), _bounded(findings.warnings)
    return Mutation(reason=Reason.APPLIED if patch else Reason.UNCHANGED, pod=after, patch=patch, warnings=warnings)


def _bounded(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each warning once, printable and short enough; one that is cut shows it. Of many the last one counts the rest."""
    cut, found = WARNING_LENGTH - len(_CUT), list(dict.fromkeys(warnings))
    if len(found) > MAX_WARNINGS:
        found[MAX_WARNINGS - 1 :] = [f"and {len(found) - MAX_WARNINGS + 1} more warnings"]
    lines = dict.fromkeys(map(_line, found))
    return tuple([each if len(each) <= WARNING_LENGTH else each[:cut] + _CUT for each in lines])


def _line(text: str) -> str:
    printable = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())


def _is_mirror(view: PodView, user: str) -> bool:
    """Tell a static pod's mirror: the annotation alone exempts nobody, the kubelet of that very node has to say it."""
    node = contract.MIRROR in view.annotations and view.spec.get("nodeName")
    return bool(node) and user == f"system:node:{node}"


def _check_template(
    findings: Findings, claim: ClaimPlan, plan: ShareRequest, standing: Callable[[str], int | None]
) -> None:
    """Find a template of the claim's name to which somebody gave other content before the namespace opted in."""
    found = standing(claim.template) if plan.complete else None
    if found is not None and found != claim.content:
        message = f"ResourceClaimTemplate {claim.template} differs from the one that gpu-share writes; delete it"
        findings.problem("spec.resourceClaims", message, Reason.TEMPLATE_CONFLICT)


def _brings_claims(view: PodView, sharing: Iterable[str], own_claims: Container[str]) -> bool:
    """Tell whether each container that asks uses a claim of our class that people wrote, and needs no share.

    A pod with our entry is a sharing one whatever else it names, and a claim that nobody uses gives nothing.
    """
    entries = objects(view.spec.get("resourceClaims"), "spec.resourceClaims")
    if any(is_our_claim(entry) for entry in entries):
        return False
    own = {str(entry.get("name")) for entry in entries if names_claim(entry, own_claims)}
    return bool(own) and {each.name for each in view.containers if own & claims_used(each)}.issuperset(sharing)
