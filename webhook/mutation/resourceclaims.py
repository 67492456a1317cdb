"""Build the claim for a pod's shares: the requests that the stock scheduler fits to a GPU. Pure.

The template is named by the hash of its content, so naming it needs no API server, and anybody can rebuild it from
the rewritten pod alone and compare.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from typing import Any, Final

from gpushare import contract
from gpushare.contract import ATTRIBUTE_MODE, ATTRIBUTE_MODEL, ATTRIBUTE_PROFILE, DRIVER, TIME_SLICING
from gpushare.errors import PolicyDenied, QuantityError
from gpushare.fields import objects
from gpushare.findings import Findings
from gpushare.patterns import Pattern
from gpushare.peak_usage import peak_usage
from gpushare.quantity import MAX_GPUS, WHOLE_GPU_PERCENT, format_mib, parse_profile
from gpushare.reasons import Reason
from webhook.mutation.annotation_keys import MAX_NAME, field_of
from webhook.mutation.podview import Container, Json, Kind, PodView, read_pod
from webhook.mutation.share_request import Share, ShareRequest, read_models
from webhook.mutation.template_content import content

HASH_DIGITS: Final = 16
_INTEGER: Final = Pattern(r"[0-9]{1,15}", 15)
ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'
_BY_TURNS: Final = f'"{ATTRIBUTE_MODE}" in {ATTRIBUTES} && {ATTRIBUTES}.{ATTRIBUTE_MODE} == "{TIME_SLICING}"'
_FIRST: Final = "status"
"""Name of the alternative that the scheduler takes."""
_STATUS: Final = {"name": contract.SIDECAR, "exactly": {"deviceClassName": contract.STATUS_DEVICE_CLASS}}
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the claim: MiB of memory, and percent of compute (0 is none); or a MIG instance's ``profile``.

    It is for as much of each of so many ``gpus``.
    """

    name: str
    memory_mib: int
    compute: int
    profile: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Shares of as many GPUs each, with their requests. ``together`` and ``alone`` are the most that one GPU serves.

    ``alone`` is it where each request has a GPU of its own.
    """

    plan: ShareRequest
    requests: tuple[Request, ...]
    together: Request
    alone: Request


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What the claim reserves, and which request each sharing container uses."""

    requests: tuple[Request, ...]
    request_of: Mapping[str, str]
    template: str
    """Name of the ResourceClaimTemplate."""
    content: int
    """What the template asks for, as a number of ``template_content``."""
    devices: int
    groups: tuple[Group, ...]
    """MIG instances are in none."""


def claim_plan(plan: ShareRequest) -> ClaimPlan:
    """Work out the requests, so that their sum is exactly what the pod can hold at once.

    Kept for the next pod that asks for the same, as those of one workload do. A tenant writes the names: longer ones
    than the API server takes are not kept.
    """
    short = max(len(each.container) for each in plan.shares) <= MAX_NAME
    return _kept_plan(plan) if short else _claim_plan(plan)


def _claim_plan(plan: ShareRequest) -> ClaimPlan:
    apart, cut = _apart(plan)
    groups = tuple(map(_group, apart))
    requests = (*(request for group in groups for request in group.requests), *_instances(cut))
    request_of = {each.container: _request_of(each, group) for group in apart for each in group.shares}
    request_of |= {each.container: _instance_of(each, cut) for each in cut}
    spec = template_spec(requests, plan.models, same_gpu=plan.same_gpu, counted=plan.counted)
    devices = sum(each.gpus for each in requests)
    return ClaimPlan(requests, request_of, template_name(spec), content({"spec": spec}), devices, groups)


_kept_plan: Final = lru_cache(maxsize=1024)(_claim_plan)


def _group(plan: ShareRequest) -> Group:
    requests = _requests(plan)
    alone = _most(requests, same_gpu=False)
    return Group(plan, requests, _most(requests, same_gpu=True) if plan.same_gpu else alone, alone)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a rewritten pod asks for, read back from the pod alone."""

    view: PodView
    plan: ShareRequest
    template: Object
    """The ResourceClaimTemplate; its name differs from the one in the pod where somebody changed either since."""


def template_for(pod: Json) -> Object | None:
    """Rebuild, from a rewritten pod alone, the ResourceClaimTemplate it names; ``None`` without a share of ours."""
    found = stored(pod)
    return None if found is None else found.template


def stored(pod: Json) -> Stored | None:
    """Read back what a rewritten pod asks for; ``None`` where it holds no share of ours."""
    try:
        view = read_pod(pod)
        named = _named_template(view)
        tried = filter(None, (_rebuilt(view, *how) for how in product((False, True), repeat=2)))
        first = next(tried, None)
        found = chain(filter(None, [first]), tried)
        return next((each for each in found if each.template["metadata"]["name"] == named), first)
    except PolicyDenied:
        return None


def template_name(spec: Object) -> str:
    """Name a template after its content."""
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()
    return contract.TEMPLATE_PREFIX + hashlib.sha256(canonical).hexdigest()[:HASH_DIGITS]


def template_spec(
    requests: Sequence[Request], models: Sequence[str], *, same_gpu: bool, counted: bool = False
) -> Object:
    """Build the ``spec`` of a ResourceClaimTemplate of ``resource.k8s.io/v1``."""
    status = _counting_status(requests) if counted else _STATUS
    devices: Object = {"requests": [*(_request(each, models) for each in requests), status]}
    names = [each.name for each in requests if not each.profile and each.gpus == 1]
    together: list[Object] = [{"requests": names, "matchAttribute": contract.ATTRIBUTE_UUID}]
    # Without this the scheduler may take two shares of one GPU.
    apart = [{"requests": [each.name], "distinctAttribute": contract.ATTRIBUTE_UUID} for each in requests
             if each.gpus > 1]  # fmt: skip
    if constraints := (together if same_gpu and len(names) > 1 else []) + apart:
        devices["constraints"] = constraints
    return {"spec": {"devices": devices}}


def _counting_status(requests: Sequence[Request]) -> Object:
    """Request the status device, with alternatives that no node has.

    ResourceQuotas count of each class the most that any alternative asks for (Kubernetes KEP-4816), before a node is
    chosen; the scheduler takes the first that there is.
    """
    sums = {
        contract.MEMORY_COUNT_CLASS: sum(each.memory_mib * each.gpus for each in requests),
        contract.COMPUTE_COUNT_CLASS: sum(each.compute * each.gpus for each in requests),
    }
    counts = [
        {"name": name.partition(".")[0], "deviceClassName": name, "count": number}
        for name, number in sums.items()
        if number
    ]
    status = {"name": _FIRST, "deviceClassName": contract.STATUS_DEVICE_CLASS}
    return {"name": contract.SIDECAR, "firstAvailable": [status, *counts]}


def _apart(plan: ShareRequest) -> tuple[tuple[ShareRequest, ...], tuple[Share, ...]]:
    """Tell shares from MIG instances, which have nothing to do with them, and shares by the number of their GPUs.

    What has several GPUs has them for itself, whatever else is on one: no constraint can say "one of those".
    """
    numbers = sorted({each.gpus for each in plan.shares if not each.profile})
    if numbers == [1] and not any(each.profile for each in plan.shares):
        return (plan,), ()
    groups = tuple(
        replace(
            plan,
            shares=tuple(each for each in plan.shares if not each.profile and each.gpus == gpus),
            same_gpu=plan.same_gpu and gpus == 1,
        )
        for gpus in numbers
    )
    return groups, tuple(each for each in plan.shares if each.profile)


def _request_of(share: Share, group: ShareRequest) -> str:
    return _shared_request(group.shares) if share.kind is Kind.INIT else share.container


def check_claim(findings: Findings, claim: ClaimPlan, most_compute: int, most_mib: int | None) -> None:
    """Find whether a claim asks for more than can be had.

    Args:
        findings: get the problems.
        claim: what is asked for.
        most_compute: percent of one GPU that all containers on it may ask for together.
        most_mib: memory of the largest GPU, ``None`` where that is unknown.
    """
    if claim.devices > contract.MAX_SHARING_CONTAINERS:
        alone = claim.devices == len(claim.requests)
        counted = f"{claim.devices} containers share a GPU" if alone else f"the pod requests {claim.devices} GPUs"
        limit = f"one ResourceClaim allows at most {contract.MAX_SHARING_CONTAINERS}"
        message = f"{counted}; {limit}: split the pod, or request fewer"
        findings.problem("spec.containers", message, Reason.TOO_MANY_CONTAINERS)
    for group in claim.groups:
        _check_compute(findings, group, most_compute)
        if len(group.plan.shares) > 1:  # a single amount has been compared by itself
            _check_memory(findings, group, most_mib)


def _instance_of(share: Share, cut: Sequence[Share]) -> str:
    """Name the request a container uses: a plain init container that of an app of its profile, which starts later."""
    apps = [each.container for each in cut if (each.kind, each.profile) == (Kind.APP, share.profile)]
    return apps[0] if share.kind is Kind.INIT and apps else share.container


def _instances(cut: Sequence[Share]) -> tuple[Request, ...]:
    own = [each for each in cut if _instance_of(each, cut) == each.container]
    return tuple(Request(each.container, 0, 0, each.profile) for each in own)


def _request(request: Request, models: Sequence[str]) -> Object:
    if request.profile:
        expressions = [f'{ATTRIBUTES}.{ATTRIBUTE_PROFILE} == "{request.profile}"'] + [model_expression(models)] * bool(
            models
        )
        selectors = [{"cel": {"expression": each}} for each in expressions]
        return {"name": request.name, "exactly": {"deviceClassName": contract.MIG_DEVICE_CLASS, "selectors": selectors}}
    amounts = {contract.CAPACITY_MEMORY: f"{request.memory_mib}Mi"}
    if request.compute:
        amounts[contract.CAPACITY_COMPUTE] = str(request.compute)
    exactly: Object = {"deviceClassName": contract.DEVICE_CLASS, "capacity": {"requests": amounts}}
    expressions = [model_expression(models)] * bool(models) + [_BY_TURNS] * (request.gpus > 1)
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    if request.gpus > 1:
        exactly["count"] = request.gpus
    return {"name": request.name, "exactly": exactly}


def model_expression(models: Sequence[str]) -> str:
    """Write the CEL that picks GPUs by a whole word of their model, for an L40 is no L4.

    The names hold neither quotes nor backslashes, and of what a pattern gives a meaning, only dots: ``read_models``.
    """
    pattern = f"(^|[^0-9a-z])({'|'.join(models).replace('.', '[.]')})([^0-9a-z]|$)"
    return f'"{ATTRIBUTE_MODEL}" in {ATTRIBUTES} && {ATTRIBUTES}.{ATTRIBUTE_MODEL}.lowerAscii().matches("{pattern}")'


def _shared_request(shares: Sequence[Share]) -> str:
    """Choose the request that plain init containers use: the largest app's, else sidecar's, else init's own."""
    for kind in (Kind.APP, Kind.SIDECAR, Kind.INIT):
        if candidates := [share for share in shares if share.kind is kind]:
            return max(candidates, key=lambda share: share.memory_mib).container
    raise AssertionError("a share request has at least one share")


def _requests(group: ShareRequest) -> tuple[Request, ...]:
    """One request per container but the plain init ones, which use one of those; all have as many GPUs."""
    chosen = _shared_request(group.shares)
    own = [share for share in group.shares if share.kind is not Kind.INIT]
    amounts = {share.container: (share.memory_mib, share.compute or 0) for share in own}
    amounts[chosen] = _raised(group, own, chosen)
    return tuple(Request(name, *amount, gpus=group.shares[0].gpus) for name, amount in amounts.items())


def _raised(plan: ShareRequest, own: Sequence[Share], chosen: str) -> tuple[int, int]:
    """Raise the shared request until the claim covers the init containers as well: (MiB, percent)."""
    beside = own if plan.same_gpu else [share for share in own if share.container == chosen]
    memory, compute = _peak(plan.shares, beside)
    others = [share for share in beside if share.container != chosen]
    return memory - sum(each.memory_mib for each in others), compute - sum(each.compute or 0 for each in others)


def _peak(shares: Sequence[Share], beside: Sequence[Share]) -> tuple[int, int]:
    """Return the peak of one GPU, of the containers in ``beside`` and plain init containers: (MiB, percent)."""
    counted = [each for each in shares if each.kind is Kind.INIT or each in beside]
    return peak_usage([(each.kind, each.memory_mib, each.compute or 0) for each in counted])


def _check_compute(findings: Findings, group: Group, most: int) -> None:
    together, alone = group.together.compute, group.alone.compute
    if together > most or alone > WHOLE_GPU_PERCENT:
        asked, bound = (together, most) if together > most else (alone, WHOLE_GPU_PERCENT)
        message = f"the containers of this pod together request {asked}% of one GPU; request at most {bound}%"
        hint = _way_out(group.plan, None)
        findings.problem(field_of(contract.COMPUTE), message + hint, Reason.ABOVE_MAXIMUM)


def _check_memory(findings: Findings, group: Group, most_mib: int | None) -> None:
    needed = group.together.memory_mib
    if most_mib is not None and needed > most_mib:
        message = (
            f"the containers of this pod together request {format_mib(needed)} on one GPU, above the maximum "
            f"of {format_mib(most_mib)} (webhook.maxMemory): request less{_way_out(group.plan, most_mib)}"
        )
        findings.problem(field_of(contract.MEMORY), message, Reason.ABOVE_MAXIMUM)


def _most(requests: Sequence[Request], *, same_gpu: bool) -> Request:
    """Most that one GPU has to serve: everything, or the largest amounts where each request may have its own."""
    together = sum if same_gpu else max
    return Request("", together(each.memory_mib for each in requests), together(each.compute for each in requests))


def _way_out(group: ShareRequest, most_mib: int | None) -> str:
    """What to do beside asking for less: several GPUs where that helps, else why it does not."""
    apart = _most(_requests(replace(group, same_gpu=False)), same_gpu=False)
    if apart.compute > WHOLE_GPU_PERCENT or (most_mib is not None and apart.memory_mib > most_mib):
        where = f"init containers without restartPolicy: Always use the GPU of {_shared_request(group.shares)}"
        return f'; {contract.SAME_GPU}: "false" does not help: {where}'
    return f', or let them use several GPUs with {contract.SAME_GPU}: "false"'


def _named_template(view: PodView) -> str | None:
    entries = objects(view.spec.get("resourceClaims"), "spec.resourceClaims")
    return next((each.get("resourceClaimTemplateName") for each in entries if each.get("name") == contract.CLAIM), None)


def _rebuilt(view: PodView, counted: bool, anywhere: bool) -> Stored | None:  # noqa: FBT001 - by turns, of product
    shares = [share for each in view.containers if (share := _share(each, anywhere=anywhere)) is not None]
    if not shares:
        return None
    models = read_models(view.annotations)
    same_gpu = view.annotations.get(contract.SAME_GPU) != "false"
    plan = ShareRequest(shares=tuple(shares), models=models, same_gpu=same_gpu, counted=counted)
    claim = claim_plan(plan)
    if claim.devices > contract.MAX_SHARING_CONTAINERS:
        return None
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": claim.template, "labels": {contract.MANAGED_LABEL: "true"}},
        "spec": template_spec(claim.requests, models, same_gpu=same_gpu, counted=counted),
    }
    return Stored(view, plan, template)


def _share(container: Container, *, anywhere: bool) -> Share | None:
    """Read back what was written into a container: literal variables, and that it uses our claim."""
    uses = any(each.get("name") == contract.CLAIM for each in container.claims)
    amounts = [_integer(each) for each in container.reserved if each["name"] == contract.MEMORY_MIB]
    if uses and not amounts and container.name != contract.SIDECAR and (profile := _profile(container.reserved)):
        return Share(container.name, container.kind, 0, None, profile)
    if not uses or not amounts or amounts[-1] is None or container.name == contract.SIDECAR:
        return None
    percent = _percentage(container.reserved, anywhere=anywhere)
    return Share(container.name, container.kind, amounts[-1], percent, gpus=_gpus(container.reserved))


def _percentage(reserved: Sequence[Json], *, anywhere: bool) -> int | None:
    """Read the thread percentage that is ours: it follows our limit; a tenant's own stands elsewhere."""
    previous = ""
    for entry in reserved:
        if entry["name"] == contract.MPS_THREAD_PERCENTAGE and (anywhere or previous == contract.MPS_MEMORY_LIMIT):
            return _integer(entry)
        previous = entry["name"]
    return None


def _gpus(reserved: Sequence[Json]) -> int:
    """Read how many GPUs a container has a share of; one where nothing else is written."""
    written = [_integer(each) for each in reserved if each["name"] == contract.GPUS_VARIABLE]
    return min(written[-1] or 1, MAX_GPUS) if written else 1


def _profile(reserved: Sequence[Json]) -> str:
    """Read the profile of a container's MIG instance; empty where it has none."""
    written = [each.get("value") for each in reserved if each["name"] == contract.MIG_PROFILE_VARIABLE]
    try:
        return parse_profile(written[-1]) if written else ""
    except QuantityError:
        return ""


def _integer(entry: Json) -> int | None:
    value = entry.get("value")
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else None
