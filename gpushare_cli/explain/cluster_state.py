"""Explain one pod from its objects in the cluster: its share request, its allocation, its node, its state.

Raw objects in, as the API server gives them to whoever has the ``view`` role of the namespace: the pod, its claims, its
Events. What is missing or of another shape is not available; nothing is guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import contract, defaults
from gpushare.claim_messages import claim_in_use_message
from gpushare.main_container import main_container
from gpushare.pod_claims import claim_names, containers, uses
from gpushare.quantity import format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.explain import mps_file
from gpushare_cli.terminal import NOT_AVAILABLE, clean, table

COLUMNS: Final = ("CONTAINER", "ASKED", "GIVEN", "GPU", "STATE")
ENFORCER: Final = f"{contract.DRIVER}/enforcer"
"""Who reports our Events."""
TOLD: Final = 5
"""So many Events are shown, the latest."""
KILL: Final = "Kill"
"""The action of an Event that tells of a kill."""
TROUBLE: Final = frozenset({"FailedPrepareDynamicResources", "FailedCreatePodSandBox"})
NO_CLAIM: Final = "FailedResourceClaimCreation"
"""Ordinary in the moment before the template is there."""
NOT_READY: Final = "the share of the GPU is not ready"
"""The sidecar's start-up probe."""
NONE_OF_IT: Final = f"0Mi ({Reason.CLAIM_IN_USE})"
HINTS: Final[Mapping[str, str]] = {
    "image will run as root": "sharing pods may not run as root here: set securityContext.runAsUser to another user",
    "cannot allocate all claims": "no GPU has that much memory, compute or clients left; it is placed once one has",
    "ResourceClaim not created yet": "its claim is made from a template that the webhook writes; see gpu-share check",
    "Preemption is not helpful": "there is no preemption for shares: whatever its priority, it waits for room",
}
"""Words of Kubernetes, and what they mean for a share; the first that are there count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod, its claims by name (``None``: they may not be read), and its Events (``None``: likewise).

    ``schedulers`` are the profiles of Kubernetes' own scheduler.
    """

    pod: Object
    claims: Mapping[str, Object] | None
    events: Sequence[Object] | None
    schedulers: Sequence[str] = defaults.SCHEDULER_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedShare:
    """What one request of a claim was given; ``limits`` are the driver's entries of the containers that use it.

    ``requested`` is the MiB of this request as the driver has it, ``reserved`` those of all of its pod on that GPU.
    """

    memory: str
    compute: str
    where: str
    limits: tuple[Object, ...] = ()
    priority: str = ""
    requested: object = None
    reserved: int = 0


def has_share(found: PodRecord) -> bool:
    """Tell whether a pod has a share of a GPU, or is to have one; also by a claim of its owner's."""
    labels = mapping(mapping(found.pod, "metadata"), "labels")
    asked = any(each.get("name") == contract.CLAIM for each in objects(_spec(found.pod), "resourceClaims"))
    return contract.MANAGED_LABEL in labels or asked or any(map(_is_ours, _claims(found)))


def _is_ours(claim: Object) -> bool:
    """Tell whether a claim holds devices of ours, or asks for a GPU of ours; the scheduler's say no amount."""
    allocation = mapping(mapping(claim, "status"), "allocation")
    results = objects(mapping(allocation, "devices"), "results")
    return any(each.get("driver") == contract.DRIVER for each in results) or next(_wanted(claim, ""), None) is not None


def explain(found: PodRecord) -> tuple[bool, list[str]]:
    """Return whether the pod is fine, and the lines about it."""
    metadata = mapping(found.pod, "metadata")
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    if not has_share(found):
        return True, [f"{name} has no share of a GPU: no annotation and no claim of it asks for one"]
    hindrances, events = [*_taken(found), *_hindrances(found)], _own_events(found)
    lines = [
        f"{name}: {_where(found.pod)}",
        *table(COLUMNS, list(_rows(found))),
        *_limits(found),
        *_with_hints(hindrances),
        *_wide(found),
        *_events(events),
        *_unknown(found),
    ]
    fine = not hindrances and not (events and events[-1].get("type") == "Warning")
    return fine, [clean(lines[0]), *(f"  {clean(line)}" for line in lines[1:])]


def _limits(found: PodRecord) -> Iterator[str]:
    """Whether its limits are in force, as the node's enforcer says in the claims' status."""
    mine = [claim for claim in _claims(found) if not _holder(found, claim)]
    for entry in (each for claim in mine for each in objects(mapping(claim, "status"), "devices")):
        for condition in objects(entry, "conditions"):
            if entry.get("driver") == contract.DRIVER and condition.get("type") == contract.LIMIT_IN_FORCE:
                yield f"limit {text(condition, 'reason')}: {text(condition, 'message')}"


def _claims(found: PodRecord) -> list[Object]:
    claims = found.claims or {}
    return [claims[name] for name in claim_names(found.pod) if name in claims]


def _holder(found: PodRecord, claim: Object) -> Object:
    """What the driver wrote of the pod that a claim was prepared for, where that is another one; else nothing."""
    uid = mapping(found.pod, "metadata").get("uid")
    entries = (mapping(each, "data") for each in objects(mapping(claim, "status"), "devices"))
    return next((each for each in entries if each.get("podUid") not in {None, uid}), {})


def _taken(found: PodRecord) -> Iterator[str]:
    """Claims that another pod has: this one may hold nothing of them, whatever stands in its annotations."""
    for claim in _claims(found):
        if holder := _holder(found, claim):
            users = objects(mapping(claim, "status"), "reservedFor")
            gone = all(user.get("uid") != holder.get("podUid") for user in users)
            who = "this pod may hold 0 MiB of it and is ended when it holds any"
            name = text(mapping(claim, "metadata"), "name")
            yield f"{Reason.CLAIM_IN_USE}: {claim_in_use_message(name, text(holder, 'pod'), who, gone=gone)}"


def _where(pod: Object) -> str:
    phase = text(_status(pod), "phase") or "Unknown"
    node = text(_spec(pod), "nodeName")
    return f"{phase} on node {node}" if node else f"{phase}, on no node yet"


def _rows(found: PodRecord) -> Iterator[tuple[object, ...]]:
    states = {each.get("name"): each for each in _statuses(found.pod)}
    for container in containers(found.pod):
        name = text(container, "name")
        if name == contract.SIDECAR:
            continue
        given = [each for claim, request in _used(found, container) for each in given_of(claim, request)]
        taken = any(_holder(found, claim) for claim, _ in _used(found, container))
        amounts = _amounts(container, given) if given else _nothing(found, container)
        yield (
            name,
            _asked(found, container),
            NONE_OF_IT if taken else amounts,
            "; ".join(each.where for each in given),
            state_of(states.get(name, {})),
        )


def _nothing(found: PodRecord, container: Object) -> str:
    """Why there is nothing to show as given."""
    ours = {contract.CLAIM, *(text(each, "name") for each in objects(_spec(found.pod), "resourceClaims"))}
    if not any(text(used, "name") in ours for used in objects(mapping(container, "resources"), "claims")):
        return "no GPU"
    return "not known" if found.claims is None else "nothing yet"


def _asked(found: PodRecord, container: Object) -> str:
    """What its annotations say as they stand now; where they say nothing, its request of the claim."""
    annotations = mapping(mapping(found.pod, "metadata"), "annotations")
    name, apps = text(container, "name"), objects(_spec(found.pod), "containers")
    main = main_container(annotations, apps) if apps else ""

    def written(wide: str, prefix: str) -> object:
        return annotations.get(prefix + name) or (annotations.get(wide) if name == main else None)

    if profile := written(contract.MIG_PROFILE, contract.MIG_PROFILE_OF):
        return f"MIG {profile}"
    amounts = (written(contract.MEMORY, contract.MEMORY_OF), written(contract.COMPUTE, contract.COMPUTE_OF))
    if any(amounts):
        gpus = written(contract.GPUS, contract.GPUS_OF)
        several = f" of {gpus} GPUs" if gpus not in {None, "1"} else ""
        return ", ".join(str(each) for each in amounts if each) + several
    return ", ".join(request for claim, names in _used(found, container) for request in _wanted(claim, names))


def _wanted(claim: Object, name: str) -> Iterator[str]:
    for request in objects(mapping(mapping(claim, "spec"), "devices"), "requests"):
        exactly = mapping(request, "exactly")
        if exactly.get("deviceClassName") == contract.DEVICE_CLASS and name in {"", request.get("name")}:
            capacity = mapping(mapping(exactly, "capacity"), "requests")
            memory, compute = capacity.get(contract.CAPACITY_MEMORY), capacity.get(contract.CAPACITY_COMPUTE)
            yield ", ".join([*([str(memory)] if memory else []), *([f"{compute}%"] if compute else [])])


def _amounts(container: Object, given: Sequence[AllocatedShare]) -> str:
    """What it may use: as the driver froze it, else as the webhook wrote it, else all that the claim holds for it."""
    name = text(container, "name")
    frozen = [(each, one) for one in given for each in one.limits if each.get("container") == name]
    low = ", low priority" if any(each.priority == "low" for each in given) else ""
    if frozen:
        return "; ".join(_frozen(each, one) for each, one in frozen) + low
    variables = {each.get("name"): each.get("value") for each in objects(container, "env")}
    memory, compute = variables.get(contract.MEMORY_MIB), variables.get(contract.MPS_THREAD_PERCENTAGE)
    if isinstance(memory, str) and memory.isascii() and memory.isdigit():
        return _amount(int(memory), compute)
    return "; ".join(f"{each.memory}, {each.compute}" for each in given)


def _frozen(limit: Object, given: AllocatedShare) -> str:
    """One limit; with what its pod reserved of that GPU where its own request is of another amount."""
    mib = limit.get("memoryMiB")
    reserved = 0 if given.requested in {None, mib} else given.reserved
    beside = f" ({format_mib(reserved)} reserved)" if reserved else ""
    return _amount(mib, limit.get("computePercent")) + beside


def _amount(mib: object, compute: object) -> str:
    memory = format_mib(mib) if isinstance(mib, int) else NOT_AVAILABLE
    return f"{memory}, {compute}%" if compute else f"{memory}, no cap"


def given_of(claim: Object, request: str) -> Iterator[AllocatedShare]:
    """Yield what a request of a claim was allocated on our GPUs; an empty name is every request."""
    status = mapping(claim, "status")
    about = {_share(each): mapping(each, "data") for each in objects(status, "devices")}
    for result in objects(mapping(mapping(status, "allocation"), "devices"), "results"):
        consumed = mapping(result, "consumedCapacity")
        name = text(result, "request").partition("/")[0]
        data = about.get(_share(result), {})
        # A MIG instance is not consumed in parts: it is known by what the driver wrote.
        if result.get("driver") != contract.DRIVER or not (consumed or data.get("uuid")) or request not in {"", name}:
            continue
        compute = consumed.get(contract.CAPACITY_COMPUTE)
        mode = data.get("mode")
        yield AllocatedShare(
            memory=str(consumed.get(contract.CAPACITY_MEMORY) or _instance(data)),
            compute=f"{compute}%" if compute not in {None, "0"} else "no cap",
            where=f"{data.get('uuid') or result.get('device')}" + (f" ({mode})" if mode not in {None, "mps"} else ""),
            limits=tuple(objects(data, "limits")),
            priority=text(data, "priority"),
            requested=data.get("memoryMiB"),
            reserved=sum(_whole(each) for each in about.values() if each.get("uuid") == data.get("uuid")),
        )


def _instance(data: Object) -> str:
    return format_mib(_whole(data)) if _whole(data) else NOT_AVAILABLE


def _whole(data: Object) -> int:
    found = data.get("memoryMiB")
    return found if isinstance(found, int) else 0


def _share(entry: Object) -> tuple[object, ...]:
    """What tells the shares of a claim apart: two requests may have got the same device."""
    return entry.get("pool"), entry.get("device"), entry.get("shareID")


def _used(found: PodRecord, container: Object) -> Iterator[tuple[Object, str]]:
    """The claims a container uses, with the request (empty: all of them)."""
    claims = found.claims or {}
    for each in uses(found.pod):
        if each.container == text(container, "name") and each.claim in claims:
            yield claims[each.claim], each.request


def state_of(status: Object) -> str:
    """Say how a container stands, from its entry in the pod's status."""
    state = mapping(status, "state")
    waiting, ended = mapping(state, "waiting"), mapping(state, "terminated")
    said = "not started"
    if "running" in state:
        said = "running"
    elif waiting:
        said = f"waiting: {waiting.get('reason')}"
    elif ended:
        said = f"ended: {ended.get('reason')} (exit code {ended.get('exitCode')})"
    count = status.get("restartCount")
    return f"{said}, restarts: {count}" if isinstance(count, int) and count else said


def _hindrances(found: PodRecord) -> Iterator[str]:
    """What keeps the pod from running, in the words of those who say it."""
    status = _status(found.pod)
    for condition in objects(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"not placed: {text(condition, 'message')}"
    name, known = text(_spec(found.pod), "schedulerName"), ", ".join(found.schedulers)
    waits = status.get("phase") == "Pending" and not _spec(found.pod).get("nodeName")
    if waits and name not in {"", *found.schedulers}:
        yield f"schedulerName is {name}: only Kubernetes' own scheduler places shares ({known})"
    for each in _statuses(found.pod):
        waiting = mapping(mapping(each, "state"), "waiting")
        if text(waiting, "message"):
            yield f"container {each.get('name')} waits: {text(waiting, 'message')}"
    failed = {each.get("name") for each in _statuses(found.pod) if _has_failed(each)} - {contract.SIDECAR}
    for container in containers(found.pod):
        if container.get("name") in failed:
            yield from mps_file.hindrances(found.pod, container, [claim for claim, _ in _used(found, container)])
    reasons = list(filter(None, (text(status, "reason"), text(status, "message"))))
    if status.get("phase") == "Failed" and reasons:
        yield f"failed: {': '.join(reasons)}"
    if status.get("phase") == "Pending":
        latest = {each.get("reason"): each for each in _about(found) if _is_trouble(each, found)}
        yield from map(_event, latest.values())


def _has_failed(status: Object) -> bool:
    """Whether a container does not run, and its last run ended by an error."""
    ends = (mapping(mapping(status, key), "terminated") for key in ("state", "lastState"))
    return "running" not in mapping(status, "state") and any(end.get("exitCode") for end in ends)


def _is_trouble(event: Object, found: PodRecord) -> bool:
    """Whether an Event of Kubernetes' own is about a share, still holds, and says what stands nowhere in the pod."""
    reason = event.get("reason")
    if reason == NO_CLAIM:
        return found.claims is not None and len(found.claims) < len(objects(_spec(found.pod), "resourceClaims"))
    return reason in TROUBLE or (reason == "Unhealthy" and NOT_READY in text(event, "message"))


def _with_hints(hindrances: Sequence[str]) -> Iterator[str]:
    for said in hindrances:
        yield said
        yield from [f"  {hint}" for words, hint in HINTS.items() if words in said][:1]


def _wide(found: PodRecord) -> Iterator[str]:
    """What a container that asks for several GPUs waits for beside room."""
    annotations = mapping(mapping(found.pod, "metadata"), "annotations")
    wide = [key for key, value in annotations.items() if key == contract.GPUS or key.startswith(contract.GPUS_OF)
            if value != "1"]  # fmt: skip
    if wide and not text(_spec(found.pod), "nodeName"):
        where = f"shares them by turns (node label {contract.NODE_MODE}: {contract.TIME_SLICING})"
        yield f"  {wide[0]}: only a node that {where} and has room on so many of them can take it"


def _about(found: PodRecord) -> list[Object]:
    """The Events about this very pod, and not one of its name before it; oldest first."""
    uid = mapping(found.pod, "metadata").get("uid")
    return sorted((each for each in found.events or () if mapping(each, "involvedObject").get("uid") == uid), key=_time)


def _own_events(found: PodRecord) -> list[Object]:
    return [each for each in _about(found) if each.get("reportingComponent") == ENFORCER]


def _events(events: Sequence[Object]) -> Iterator[str]:
    kills = [each for each in events if each.get("action") == KILL]
    yield from (f"last kill: {_event(each)}" for each in kills[-1:])
    yield from (_event(each) for each in events[-TOLD:] if each not in kills[-1:])


def _unknown(found: PodRecord) -> Iterator[str]:
    """What the reader may not read, and who can change that."""
    if found.claims is None:
        yield "you may not read its claims, so what was given is not known; ask for the ClusterRole gpu-share-view"
    if found.events is None:
        yield "you may not read its Events, so whether it was ended is not known; ask for the ClusterRole view"


def _event(event: Object) -> str:
    return f"{_time(event)} {text(event, 'reason')}: {text(event, 'message')}"


def _time(event: Object) -> str:
    return str(event.get("eventTime") or event.get("lastTimestamp") or "")


def _statuses(pod: Object) -> list[Object]:
    status = _status(pod)
    return [*objects(status, "initContainerStatuses"), *objects(status, "containerStatuses")]


def _spec(pod: Object) -> Object:
    return mapping(pod, "spec")


def _status(pod: Object) -> Object:
    return mapping(pod, "status")
