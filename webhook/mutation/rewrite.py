"""Rewrite a pod: a new dict that shares every unchanged part with the original. Pure.

Each step leaves what is already right as it is, so rewriting twice changes nothing, also after the API server's
defaults and other webhooks. Content decides what is right, never a marker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import contract, mps_variables
from gpushare.fields import bounded_mapping, mapping, names_of, objects
from gpushare.findings import Findings
from gpushare.host_access import normal, within
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import quoted, same_quantity
from gpushare.reasons import Reason
from webhook.mutation import sidecar_merge, sidecar_spec, sidecar_validation
from webhook.mutation.framework_warnings import passing_of
from webhook.mutation.node_affinity import with_node_affinity
from webhook.mutation.podview import Container, Json, Kind, PodView
from webhook.mutation.resourceclaims import ClaimPlan
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import Share, ShareRequest
from webhook.mutation.user_namespaces import hindrance, may_run_as_root

Object = dict[str, Any]
NO_GPU_ENV: Final = {
    contract.CUDA_VISIBLE_DEVICES: contract.NO_CUDA_DEVICE,
    contract.NVIDIA_VISIBLE_DEVICES: contract.NO_NVIDIA_DEVICE,
}
"""What a container that asked for nothing gets: no GPU, whatever its image says."""
_OUR_FOLDER: Final = "/run/gpu-share"
"""An MPS daemon of this folder is the node's, whichever release named it; the variable is renewed."""
_OF_SHARES: Final = (*mps_variables.OURS, contract.MEMORY_MIB)


@dataclass(frozen=True, slots=True)
class _Basis:
    """What a sharing pod is made from. ``renew``: the pod has our sidecar, so it was rewritten before."""

    view: PodView
    plan: ShareRequest
    claim: ClaimPlan
    policy: NamespacePolicy
    settings: Settings
    renew: bool


def rewrite(
    findings: Findings, view: PodView, plan: ShareRequest, claim: ClaimPlan, policy: NamespacePolicy, settings: Settings
) -> Object:
    """Make a sharing pod of a pod that asks. It must not use a name of ours for something else.

    A plan that is not complete gives problems only; it is not compared with amounts and names in the pod.
    """
    sidecar = sidecar_validation.ours(view, settings)
    basis = _Basis(view, plan, claim, policy, settings, renew=sidecar is not None)
    metadata = findings.attempt(_metadata, findings, view, plan)
    sections: dict[str, list[Json]] = {}
    for one in view.containers:
        raw = hide_gpus(findings, one) if one is sidecar else _container(findings, one, basis)
        sections.setdefault(one.section, []).append(raw)
    spec = {**view.spec, **sections}
    steps = (_add_sidecar, _add_volume, _add_claim, _add_tolerations, _choose_nodes, _keep_from_root)
    findings.independent(steps, spec, basis)
    return {**view.pod, "metadata": metadata, "spec": spec}


def hide_gpus(findings: Findings, container: Container) -> Json:
    """Return the container without any GPU; the same object where that is so already."""
    return _with_env(findings, container, NO_GPU_ENV)


def environment(container: Container, share: Share, policy: NamespacePolicy) -> dict[str, str]:
    """Return the variables of a sharing container, in the order in which they are written.

    With 4 GiB of one GPU the limit is ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M``, an entry for each GPU.
    """
    if share.profile:
        return NO_GPU_ENV | _capabilities(container, policy) | {contract.MIG_PROFILE_VARIABLE: share.profile}
    most = share.limit_mib or share.memory_mib
    wanted = NO_GPU_ENV | mps_variables.DAEMON | mps_variables.limits(most, share.compute, share.gpus)
    wanted |= _capabilities(container, policy) | {contract.MEMORY_MIB: str(share.memory_mib)}
    return wanted | ({contract.GPUS_VARIABLE: str(share.gpus)} if share.gpus > 1 else {})


def _capabilities(container: Container, policy: NamespacePolicy) -> dict[str, str]:
    """What the toolkit brings along, where the pod does not say it or asks for more than its namespace allows.

    Graphics, video and display go past MPS, and so past the share of compute.
    """
    own = [_literal(entry) for entry in container.reserved if entry["name"] == contract.NVIDIA_DRIVER_CAPABILITIES]
    if own and all(isinstance(each, str) and set(each.split(",")) <= {*policy.driver_capabilities} for each in own):
        return {}
    return {contract.NVIDIA_DRIVER_CAPABILITIES: contract.DRIVER_CAPABILITIES}


def _container(findings: Findings, container: Container, basis: _Basis) -> Json:
    share = basis.plan.of(container.name)
    if share is None:
        _check_unclaimed(findings, container)
        return hide_gpus(findings, container)
    request = basis.claim.request_of[container.name]
    if basis.renew:
        container = _renewed(container, request)
    if not share.profile:
        _check_own_daemon(findings, container)
    _check_other_kind(findings, container, share)
    wanted = environment(container, share, basis.policy)
    _left_alone(findings, container, wanted)
    if basis.policy.frameworks and not share.profile:
        container = _with_fraction(container, basis.policy.frameworks)
    raw = _with_env(findings, container, wanted)
    resources = _with_claim(findings, container, request, basis.plan)
    return raw if resources is container.raw.get("resources") else {**raw, "resources": resources}


def _with_fraction(container: Container, frameworks: Sequence[str]) -> Container:
    """Start one of these frameworks with the memory fraction of its share, where that can be done."""
    raw = passing_of(container.raw, frameworks)
    return container if raw is None else replace(container, raw=raw)


def _with_env(findings: Findings, container: Container, wanted: Mapping[str, str]) -> Json:
    """Give a container each variable once, with our literal value, before its own: those may refer to ours."""
    found = [(entry["name"], _literal(entry)) for entry in container.reserved if entry["name"] in wanted]
    if found and found == list(wanted.items()):
        return container.raw
    changed = {name for name, value in found if value != wanted[name]}
    for name in wanted:
        if name in changed:
            findings.warn(f"gpu-share replaces variable {name} of container {container.name:.40}")
    kept = [entry for entry in container.env if entry["name"] not in wanted] if found else list(container.env)
    return {**container.raw, "env": [{"name": name, "value": value} for name, value in wanted.items()] + kept}


def _literal(entry: Json) -> object:
    """Return a variable's value, ``None`` where it is taken from elsewhere; no value is an empty one."""
    if entry.get("valueFrom") is not None:
        return None
    value = entry.get("value")
    return "" if value is None else value


def _check_own_daemon(findings: Findings, container: Container) -> None:
    for entry in container.reserved:
        wanted = mps_variables.DAEMON.get(entry["name"])
        value = _literal(entry)
        if wanted is not None and not (isinstance(value, str) and within(normal(value), _OUR_FOLDER)):
            source = "a value from a ConfigMap, Secret or field" if value is None else quoted(str(value))
            message = (
                f"{source} names an MPS daemon of the pod, but a share uses the node's daemon; remove the variable"
            )
            findings.problem(f"{container.field}.env[{entry['name']}]", message)


def _check_other_kind(findings: Findings, container: Container, share: Share) -> None:
    """Find variables that say of a share that it is an instance or of several GPUs, and the other way round."""
    others = _OF_SHARES if share.profile else (contract.MIG_PROFILE_VARIABLE,)
    others = others if share.gpus > 1 else (*others, contract.GPUS_VARIABLE)
    for name in dict.fromkeys(entry["name"] for entry in container.reserved if entry["name"] in others):
        what = "a share of one GPU" if name == contract.GPUS_VARIABLE else "a share"
        what = "a MIG instance" if share.profile else what
        message = (
            "gpu-share sets this variable only for other kinds of share, and this container requests "
            f"{what}; remove the variable"
        )
        findings.problem(f"{container.field}.env[{name}]", message, Reason.RESERVED_NAME)


def _left_alone(findings: Findings, container: Container, wanted: Mapping[str, str]) -> None:
    """Warn of a tenant's own thread percentage where gpu-share sets none: it can only lower what the container gets."""
    name = contract.MPS_THREAD_PERCENTAGE
    if name not in wanted and any(entry["name"] == name for entry in container.reserved):
        findings.warn(f"{name} of container {container.name:.30} stays: it can only lower what it gets")


def _with_claim(findings: Findings, container: Container, request: str, plan: ShareRequest) -> Json:
    wanted = {"name": contract.CLAIM, "request": request}
    ours = [one for one in container.claims if one.get("name") == contract.CLAIM]
    if not ours:
        return {**container.resources, "claims": [*container.claims, wanted]}
    known = plan.complete or container.kind is not Kind.INIT  # which request an init container uses depends on amounts
    if ours != [wanted] if known else any(one.keys() != wanted.keys() for one in ours):
        message = f"the entry {contract.CLAIM!r} differs from the one that gpu-share writes; remove it"
        findings.problem(f"{container.field}.resources.claims[{contract.CLAIM}]", message, Reason.RESERVED_NAME)
    return container.resources


def _renewed(container: Container, request: str) -> Container:
    """Return a container of a pod that was rewritten before; another release may have named its request otherwise."""
    ours = [each for each in container.claims if each.get("name") == contract.CLAIM]
    if len(ours) != 1 or ours[0].get("request") == request:
        return container
    claims = [{**each, "request": request} if each is ours[0] else each for each in container.claims]
    resources = {**container.resources, "claims": claims}
    return replace(container, raw={**container.raw, "resources": resources}, resources=resources, claims=claims)


def _check_unclaimed(findings: Findings, container: Container) -> None:
    """Find a container that asked for nothing and helps itself to another's request."""
    if container.kind is Kind.SIDECAR and container.name == contract.SIDECAR:
        return
    if container.claims and contract.CLAIM in names_of(container.claims):
        hint = f"remove the entry; for a share of its own, write {contract.MEMORY_OF}{container.name:.63}"
        message = f"uses the claim {contract.CLAIM!r} but requests no share; {hint}"
        findings.problem(f"{container.field}.resources.claims[{contract.CLAIM}]", message, Reason.RESERVED_NAME)


def _metadata(findings: Findings, view: PodView, plan: ShareRequest) -> Object:
    """Add our label, and name the main container where nobody did, for what inserts containers after us."""
    metadata, labels = dict(view.metadata), bounded_mapping(view.metadata.get("labels"), "metadata.labels")
    if labels.get(contract.MANAGED_LABEL) != "true":
        metadata["labels"] = {**labels, contract.MANAGED_LABEL: "true"}
        if contract.MANAGED_LABEL in labels:
            findings.warn(f"label {contract.MANAGED_LABEL} is replaced")
    if plan.main and contract.DEFAULT_CONTAINER not in view.annotations:
        metadata["annotations"] = {**view.annotations, contract.DEFAULT_CONTAINER: plan.main}
    return metadata


def _add_sidecar(findings: Findings, spec: Object, basis: _Basis) -> None:
    """Add the sidecar, or renew the one that is there; ``sidecar_validation`` finds what is wrong with that one."""
    standing = basis.view.sidecar
    wanted = sidecar_spec.container(
        basis.settings,
        guaranteed=_is_guaranteed(basis.view),
        budgeted=_has_budget(spec),
        unconfined=_is_unconfined(basis.view),
    )
    containers = [*(spec.get("initContainers") or [])]
    if standing is None:
        spec["initContainers"] = [wanted, *containers]
        return
    for index, one in enumerate(containers):
        if one.get("name") == contract.SIDECAR:
            containers[index] = findings.attempt(sidecar_merge.merged, one, wanted, standing.field)
            spec["initContainers"] = containers


def _is_unconfined(view: PodView) -> bool:
    """Tell a pod without AppArmor profile: its containers inherit that, and the sidecar is not to."""
    profile = mapping(view.security.get("appArmorProfile"), "spec.securityContext.appArmorProfile")
    return profile.get("type") == "Unconfined"


def _has_budget(spec: Json) -> bool:
    """Tell a pod with resources of its own: its containers must not ask for more than that together."""
    resources = mapping(spec.get("resources"), "spec.resources")
    return bool(resources) and bool(resources.get("requests") or resources.get("limits"))


def _is_guaranteed(view: PodView) -> bool:
    """Tell a pod of QoS class Guaranteed: exclusive CPUs and the last place in evictions hang on it."""
    return all(map(_asks_for_its_limits, [each for each in view.containers if each.kind is not Kind.EPHEMERAL]))


def _asks_for_its_limits(container: Container) -> bool:
    limits, requests = container.limits, {**container.limits, **container.requests}
    return bool(limits) and all(
        limits.get(name) and same_quantity(requests[name], limits[name]) for name in ("cpu", "memory")
    )


def _add_volume(findings: Findings, spec: Object, _: _Basis) -> None:
    volumes = objects(spec.get("volumes"), "spec.volumes")
    wanted = sidecar_spec.volume()
    standing = [each for each in volumes if each.get("name") == contract.NO_TOKEN_VOLUME]
    if not standing:
        spec["volumes"] = [*volumes, wanted]
    elif any(each.keys() != wanted.keys() for each in standing):
        message = f"the name {contract.NO_TOKEN_VOLUME!r} is reserved; rename the volume and its mounts"
        findings.problem(f"spec.volumes[{contract.NO_TOKEN_VOLUME}].name", message, Reason.RESERVED_NAME)
    else:
        spec["volumes"] = [
            _renewed_volume(each, wanted) if each.get("name") == contract.NO_TOKEN_VOLUME else each for each in volumes
        ]


def _renewed_volume(volume: Object, wanted: Json) -> Json:
    field = f"spec.volumes[{contract.NO_TOKEN_VOLUME}].emptyDir"
    return {**volume, "emptyDir": {**mapping(volume["emptyDir"], field), **wanted["emptyDir"]}}


def _add_claim(findings: Findings, spec: Object, basis: _Basis) -> None:
    """Name the template. The one of another release is renewed; an entry without our sidecar is not ours to change."""
    entries = objects(spec.get("resourceClaims"), "spec.resourceClaims")
    wanted = {"name": contract.CLAIM, "resourceClaimTemplateName": basis.claim.template}
    standing = [each for each in entries if each.get("name") == contract.CLAIM]
    if not standing:
        spec["resourceClaims"] = [*entries, wanted]
    elif basis.renew and len(standing) == 1 and is_our_claim(standing[0]) and not standing[0].get("resourceClaimName"):
        spec["resourceClaims"] = [{**each, **wanted} if each is standing[0] else each for each in entries]
    elif standing != [wanted] if basis.plan.complete else not all(map(is_our_claim, standing)):
        named = standing[0].get("resourceClaimTemplateName")
        written = f"the template {quoted(str(named))}" if named else "a ResourceClaim"
        message = f"{contract.CLAIM!r} refers to {written}, but the annotations need another template; remove the entry"
        findings.problem(f"spec.resourceClaims[{contract.CLAIM}]", message)


def is_our_claim(entry: Json) -> bool:
    """Tell an entry of ``resourceClaims`` that has the form of ours."""
    template = entry.get("resourceClaimTemplateName")
    named = isinstance(template, str) and template.startswith(contract.TEMPLATE_PREFIX)
    return entry.get("name") == contract.CLAIM and named


def _add_tolerations(_: Findings, spec: Object, basis: _Basis) -> None:
    standing = objects(spec.get("tolerations"), "spec.tolerations")
    tolerated = [_toleration(each) for each in standing]
    missing = [dict(each) for each in basis.settings.tolerations if _toleration(each) not in tolerated]
    if missing:
        spec["tolerations"] = [*standing, *missing]


def _toleration(toleration: Json) -> Sequence[object]:
    """What makes two tolerations the same, with the API's defaults written out."""
    key, value, effect = toleration.get("key"), toleration.get("value"), toleration.get("effect")
    return toleration.get("operator") or "Equal", key or "", value or "", effect or ""


def _choose_nodes(_: Findings, spec: Object, basis: _Basis) -> None:
    affinity = with_node_affinity(spec, basis.settings.across_nodes)
    if affinity is not None:
        spec["affinity"] = affinity
    if basis.settings.runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = basis.settings.runtime_class


def _keep_from_root(_: Findings, spec: Object, basis: _Basis) -> None:
    """Forbid root, or isolate containers that may run as root, as the operator chose."""
    if basis.settings.root_tenants == "refuse":
        if basis.view.security.get("runAsNonRoot") is None:
            spec["securityContext"] = {**basis.view.security, "runAsNonRoot": True}
    elif basis.settings.root_tenants == "isolate":
        sharing = {each.container for each in basis.plan.shares}
        if may_run_as_root(basis.view, sharing) and not hindrance(basis.view):
            spec["hostUsers"] = False
