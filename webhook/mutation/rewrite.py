"""Rewrite a pod: a new dict that shares every unchanged part with the original. Pure.

Each step leaves what is already right as it is, so rewriting twice changes nothing, also after the API server's
defaults and other webhooks. Content decides what is right, never a marker.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gpushare import contract, mps_variables
from gpushare.checks import Check, attempt, guarded, independent, values_of
from gpushare.errors import Problem
from gpushare.fields import check_number, mapping, objects
from gpushare.host_access import normal, within
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import quoted, same_quantity
from gpushare.reasons import Reason
from webhook.mutation import sidecar_merge, sidecar_spec, sidecar_validation
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


def rewrite(
    view: PodView, plan: ShareRequest, claim: ClaimPlan, policy: NamespacePolicy, settings: Settings
) -> Check[Object]:
    """Make a sharing pod of a pod that asks. It must not use a name of ours for something else.

    A plan that is not complete gives problems only; it is not compared with amounts and names in the pod.
    """
    metadata = yield from guarded(_metadata(view.metadata, plan))
    spec = dict(view.spec)
    sidecar = sidecar_validation.ours(view, settings)
    change = _container if sidecar is None else _renewed
    for section in ("initContainers", "containers", "ephemeralContainers"):
        here = [one for one in view.containers if one.section == section]
        if here:
            changes = (hide_gpus(one) if one is sidecar else change(one, plan, claim, policy) for one in here)
            spec[section] = yield from values_of(map(guarded, changes))
    add_claim = _add_claim(spec, claim, plan, rewritten=sidecar is not None)
    yield from independent([_add_sidecar(view, spec, settings), _add_volume(spec), add_claim])
    yield from attempt(partial(_add_tolerations, spec, settings))
    affinity = yield from attempt(partial(with_node_affinity, spec, settings.across_nodes))
    if affinity is not None:
        spec["affinity"] = affinity
    if settings.runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = settings.runtime_class
    if settings.root_tenants == "refuse":
        yield from attempt(partial(_forbid_root, spec))
    elif settings.root_tenants == "isolate":
        yield from attempt(partial(_isolate_root, spec, view, plan))
    return {**view.pod, "metadata": metadata, "spec": spec}


def hide_gpus(container: Container) -> Check[Json]:
    """Return the container without any GPU; the same object where that is so already."""
    return (yield from _with_env(container, NO_GPU_ENV))


def environment(container: Container, share: Share, policy: NamespacePolicy) -> dict[str, str]:
    """Return the variables of a sharing container, in the order in which they are written."""
    if share.profile:
        return NO_GPU_ENV | _capabilities(container, policy) | {contract.MIG_PROFILE_VARIABLE: share.profile}
    wanted = NO_GPU_ENV | mps_variables.DAEMON | mps_variables.limits(share.memory_mib, share.compute, share.gpus)
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


def _container(container: Container, plan: ShareRequest, claim: ClaimPlan, policy: NamespacePolicy) -> Check[Json]:
    share = plan.of(container.name)
    if share is None:
        yield from guarded(_check_unclaimed(container))
        return (yield from hide_gpus(container))
    if not share.profile:
        yield from _check_own_daemon(container)
    yield from _check_other_kind(container, share)
    wanted = environment(container, share, policy)
    yield from _left_alone(container, wanted)
    raw = yield from _with_env(container, wanted)
    resources = yield from _with_claim(container, claim.request_of[container.name], plan)
    return raw if resources is raw.get("resources") else {**raw, "resources": resources}


def _with_env(container: Container, wanted: Mapping[str, str]) -> Check[Json]:
    """Give a container each variable once, with our literal value, before its own: those may refer to ours."""
    found = [(entry["name"], _literal(entry)) for entry in container.reserved if entry["name"] in wanted]
    if found == list(wanted.items()):
        return container.raw
    changed = {name for name, value in found if value != wanted[name]}
    yield from (
        f"gpu-share replaces variable {name} of container {container.name:.40}" for name in wanted if name in changed
    )
    kept = [entry for entry in container.env if entry["name"] not in wanted] if found else list(container.env)
    return {**container.raw, "env": [{"name": name, "value": value} for name, value in wanted.items()] + kept}


def _literal(entry: Json) -> object:
    """Return a variable's value, ``None`` where it is taken from elsewhere; no value is an empty one."""
    if entry.get("valueFrom") is not None:
        return None
    value = entry.get("value")
    return "" if value is None else value


def _check_own_daemon(container: Container) -> Iterator[Problem]:
    for entry in container.reserved:
        wanted = mps_variables.DAEMON.get(entry["name"])
        value = _literal(entry)
        if wanted is not None and not (isinstance(value, str) and within(normal(value), _OUR_FOLDER)):
            source = "a value from a ConfigMap, Secret or field" if value is None else quoted(str(value))
            message = (
                f"{source} names an MPS daemon of the pod, but a share uses the node's daemon; remove the variable"
            )
            yield Problem(f"{container.field}.env[{entry['name']}]", message)


def _check_other_kind(container: Container, share: Share) -> Iterator[Problem]:
    """Find variables that say of a share that it is an instance or of several GPUs, and the other way round."""
    others = _OF_SHARES if share.profile else (contract.MIG_PROFILE_VARIABLE,)
    others = others if share.gpus > 1 else (*others, contract.GPUS_VARIABLE)
    for name in dict.fromkeys(entry["name"] for entry in container.reserved if entry["name"] in others):
        what = "a share of one GPU" if name == contract.GPUS_VARIABLE else "a share"
        what = "a MIG instance" if share.profile else what
        yield _reserved(
            f"{container.field}.env[{name}]",
            (
                "gpu-share sets this variable only for other kinds of share, and this container requests "
                f"{what}; remove the variable"
            ),
        )


def _left_alone(container: Container, wanted: Mapping[str, str]) -> Iterator[str]:
    """Warn of a tenant's own thread percentage where gpu-share sets none: it can only lower what the container gets."""
    name = contract.MPS_THREAD_PERCENTAGE
    if name not in wanted and any(entry["name"] == name for entry in container.reserved):
        yield f"{name} of container {container.name:.30} stays: it can only lower what it gets"


def _with_claim(container: Container, request: str, plan: ShareRequest) -> Check[Json]:
    field = f"{container.field}.resources"
    resources = container.raw.get("resources")
    claims = objects(mapping(resources, field).get("claims"), f"{field}.claims")
    wanted = {"name": contract.CLAIM, "request": request}
    ours = [one for one in claims if one.get("name") == contract.CLAIM]
    if not ours:
        return {**mapping(resources, field), "claims": [*claims, wanted]}
    known = plan.complete or container.kind is not Kind.INIT  # which request an init container uses depends on amounts
    if ours != [wanted] if known else any(one.keys() != wanted.keys() for one in ours):
        message = f"the entry {contract.CLAIM!r} differs from the one that gpu-share writes; remove it"
        yield _reserved(f"{field}.claims[{contract.CLAIM}]", message)
    return mapping(resources, field)


def _renewed(container: Container, plan: ShareRequest, claim: ClaimPlan, policy: NamespacePolicy) -> Check[Json]:
    """Rewrite a container of a pod that was rewritten before; another release may have named its request otherwise."""
    request = claim.request_of.get(container.name)
    renewed = container if request is None else _with_request(container, request)
    return (yield from _container(renewed, plan, claim, policy))


def _with_request(container: Container, request: str) -> Container:
    field = f"{container.field}.resources"
    resources = mapping(container.raw.get("resources"), field)
    claims = objects(resources.get("claims"), f"{field}.claims")
    ours = [each for each in claims if each.get("name") == contract.CLAIM]
    if len(ours) != 1 or ours[0].get("request") == request:
        return container
    wanted = [{**each, "request": request} if each is ours[0] else each for each in claims]
    return replace(container, raw={**container.raw, "resources": {**resources, "claims": wanted}})


def _check_unclaimed(container: Container) -> Check[None]:
    """Find a container that asked for nothing and helps itself to another's request."""
    if container.kind is Kind.SIDECAR and container.name == contract.SIDECAR:
        return
    field = f"{container.field}.resources.claims"
    resources = mapping(container.raw.get("resources"), f"{container.field}.resources")
    if any(one.get("name") == contract.CLAIM for one in objects(resources.get("claims"), field)):
        hint = f"remove the entry; for a share of its own, write {contract.MEMORY_OF}{container.name:.63}"
        message = f"uses the claim {contract.CLAIM!r} but requests no share; {hint}"
        yield _reserved(f"{field}[{contract.CLAIM}]", message)


def _metadata(metadata: Json, plan: ShareRequest) -> Check[Object]:
    labelled = yield from _with_label(metadata)
    return _with_default_container(labelled, plan)


def _with_label(metadata: Json) -> Check[Object]:
    labels = mapping(metadata.get("labels"), "metadata.labels")
    check_number(labels, "metadata.labels")
    if labels.get(contract.MANAGED_LABEL) == "true":
        return dict(metadata)
    if contract.MANAGED_LABEL in labels:
        yield f"label {contract.MANAGED_LABEL} is replaced"
    return {**metadata, "labels": {**labels, contract.MANAGED_LABEL: "true"}}


def _with_default_container(metadata: Object, plan: ShareRequest) -> Object:
    """Name the main container where nobody did, for what inserts containers after us."""
    annotations = mapping(metadata.get("annotations"), "metadata.annotations")
    if not plan.main or contract.DEFAULT_CONTAINER in annotations:
        return metadata
    return {**metadata, "annotations": {**annotations, contract.DEFAULT_CONTAINER: plan.main}}


def _add_sidecar(view: PodView, spec: Object, settings: Settings) -> Check[None]:
    """Add the sidecar, or renew the one that is there; ``sidecar_validation`` finds what is wrong with that one."""
    wanted = sidecar_spec.container(
        settings, guaranteed=_is_guaranteed(view), budgeted=_has_budget(spec), unconfined=_is_unconfined(spec)
    )
    containers = [*(spec.get("initContainers") or [])]
    standing = view.named(contract.SIDECAR)
    if standing is None:
        spec["initContainers"] = [wanted, *containers]
        return
    for index, one in enumerate(containers):
        if one is not None and one.get("name") == contract.SIDECAR:  # None is a container with problems
            containers[index] = yield from attempt(partial(sidecar_merge.merged, one, wanted, standing.field))
            spec["initContainers"] = containers


def _is_unconfined(spec: Json) -> bool:
    """Tell a pod without AppArmor profile: its containers inherit that, and the sidecar is not to."""
    context = mapping(spec.get("securityContext"), "spec.securityContext")
    profile = mapping(context.get("appArmorProfile"), "spec.securityContext.appArmorProfile")
    return profile.get("type") == "Unconfined"


def _has_budget(spec: Json) -> bool:
    """Tell a pod with resources of its own: its containers must not ask for more than that together."""
    resources = mapping(spec.get("resources"), "spec.resources")
    return bool(resources.get("requests") or resources.get("limits"))


def _is_guaranteed(view: PodView) -> bool:
    """Tell a pod of QoS class Guaranteed: exclusive CPUs and the last place in evictions hang on it."""
    return all(_asks_for_its_limits(each) for each in view.containers if each.kind is not Kind.EPHEMERAL)


def _asks_for_its_limits(container: Container) -> bool:
    resources = mapping(container.raw.get("resources"), f"{container.field}.resources")
    limits = mapping(resources.get("limits"), f"{container.field}.resources.limits")
    requests = {**limits, **mapping(resources.get("requests"), f"{container.field}.resources.requests")}
    return all(limits.get(name) and same_quantity(requests[name], limits[name]) for name in ("cpu", "memory"))


def _add_volume(spec: Object) -> Check[None]:
    volumes = objects(spec.get("volumes"), "spec.volumes")
    wanted = sidecar_spec.volume()
    standing = [each for each in volumes if each.get("name") == contract.NO_TOKEN_VOLUME]
    if not standing:
        spec["volumes"] = [*volumes, wanted]
    elif any(each.keys() != wanted.keys() for each in standing):
        message = f"the name {contract.NO_TOKEN_VOLUME!r} is reserved; rename the volume and its mounts"
        yield _reserved(f"spec.volumes[{contract.NO_TOKEN_VOLUME}].name", message)
    else:
        spec["volumes"] = [
            _renewed_volume(each, wanted) if each.get("name") == contract.NO_TOKEN_VOLUME else each for each in volumes
        ]


def _renewed_volume(volume: Object, wanted: Json) -> Json:
    field = f"spec.volumes[{contract.NO_TOKEN_VOLUME}].emptyDir"
    return {**volume, "emptyDir": {**mapping(volume["emptyDir"], field), **wanted["emptyDir"]}}


def _add_claim(spec: Object, claim: ClaimPlan, plan: ShareRequest, *, rewritten: bool) -> Check[None]:
    """Name the template. The one of another release is renewed; an entry without our sidecar is not ours to change."""
    entries = objects(spec.get("resourceClaims"), "spec.resourceClaims")
    wanted = {"name": contract.CLAIM, "resourceClaimTemplateName": claim.template}
    standing = [each for each in entries if each.get("name") == contract.CLAIM]
    if not standing:
        spec["resourceClaims"] = [*entries, wanted]
    elif rewritten and len(standing) == 1 and is_our_claim(standing[0]) and not standing[0].get("resourceClaimName"):
        spec["resourceClaims"] = [{**each, **wanted} if each is standing[0] else each for each in entries]
    elif standing != [wanted] if plan.complete else not all(map(is_our_claim, standing)):
        named = standing[0].get("resourceClaimTemplateName")
        written = f"the template {quoted(str(named))}" if named else "a ResourceClaim"
        message = f"{contract.CLAIM!r} refers to {written}, but the annotations need another template; remove the entry"
        yield Problem(f"spec.resourceClaims[{contract.CLAIM}]", message)


def is_our_claim(entry: Json) -> bool:
    """Tell an entry of ``resourceClaims`` that has the form of ours."""
    template = entry.get("resourceClaimTemplateName")
    named = isinstance(template, str) and template.startswith(contract.TEMPLATE_PREFIX)
    return entry.get("name") == contract.CLAIM and named


def _add_tolerations(spec: Object, settings: Settings) -> None:
    standing = objects(spec.get("tolerations"), "spec.tolerations")
    tolerated = [_toleration(each) for each in standing]
    missing = [dict(each) for each in settings.tolerations if _toleration(each) not in tolerated]
    if missing:
        spec["tolerations"] = [*standing, *missing]


def _toleration(toleration: Json) -> Sequence[object]:
    """What makes two tolerations the same, with the API's defaults written out."""
    fields = (toleration.get(each) or "" for each in ("key", "value", "effect"))
    return (toleration.get("operator") or "Equal", *fields)


def _forbid_root(spec: Object) -> None:
    context = mapping(spec.get("securityContext"), "spec.securityContext")
    if context.get("runAsNonRoot") is None:
        spec["securityContext"] = {**context, "runAsNonRoot": True}


def _isolate_root(spec: Object, view: PodView, plan: ShareRequest) -> None:
    if may_run_as_root(view, {each.container for each in plan.shares}) and not hindrance(view):
        spec["hostUsers"] = False


def _reserved(field: str, message: str) -> Problem:
    return Problem(field, message, Reason.RESERVED_NAME)
