"""Why a pod that asks for a share has none, and what keeps one with a share from a node, or from running.

No share: by its namespace, the webhook, or its own annotations. No node: by each part of the scheduler's message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare import contract
from gpushare.claim_messages import claim_in_use_message
from gpushare.errors import PolicyDenied
from gpushare.patterns import Pattern
from gpushare.pod_claims import claim_names, containers
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare.shared_memory import ROOT, barred, brings_memory, user_of
from gpushare_cli.explain import pod_record
from gpushare_cli.explain.pod_record import (
    MAX_TEXT,
    Finding,
    FindingType,
    PodRecord,
    container_statuses,
    exact_requests,
    is_unseen,
    is_without_claim,
    shortened,
)
from gpushare_cli.inject import rewrite
from gpushare_cli.inject.rewrite import Admit, Change
from gpushare_cli.inject.workloads import PodPlace
from gpushare_cli.placement.placing import SELECT, TOLERATE, Cause, Placement, place
from gpushare_cli.words import scheduler_remedy, some

TOO_LATE: Final = (
    "namespace {} has opted in, but the webhook did not rewrite the pod when it was created: the namespace opted in "
    "later, the annotation was added later, or the webhook was off"
)
BY_SETTINGS: Final = "gpu-share explain computed this with its own settings; the webhook's settings may differ"


def asks(annotations: Object) -> list[str]:
    """Return the annotations that ask for a share, rightly or wrongly, as the webhook counts them."""
    return [f"{shortened(key)}: {shortened(value)}" for key, value in annotations.items() if contract.is_ours(key)]


def is_excluded(name: str, release: str) -> bool:
    """Tell whether the webhook never sees a namespace, whatever its labels; ``release`` is that of gpu-share."""
    return name in {"kube-system", release}


def closed(namespace: Object | None, name: str, release: str) -> Iterator[tuple[str, str]]:
    """Yield why pods of a namespace get no share, and what to do; nothing where they do, or that is not known."""
    if is_excluded(name, release):
        yield f"namespace {name} is excluded: nothing there is shared", "create the pod in another namespace"
        return
    if namespace is None:
        return
    metadata = mapping(namespace, "metadata")
    if metadata.get("deletionTimestamp"):
        yield f"namespace {name} is being deleted: no pod is created there any more", "use another namespace"
    label = mapping(metadata, "labels").get(contract.NAMESPACE_LABEL)
    if label != "true":
        value = "" if label is None else f" ({contract.NAMESPACE_LABEL} is {shortened(label)!a}, not 'true')"
        overwrite = "" if label is None else " --overwrite"
        command = f"kubectl label namespace {name} {contract.NAMESPACE_LABEL}=true{overwrite}"
        yield f"namespace {name} has not opted in{value}", f"an operator runs {command}; then create the pod again"


def why(record: PodRecord, place: PodPlace | None, admit: Admit | None) -> Iterator[Finding]:
    """Yield why a pod that asks for a share has none.

    Args:
        record: the pod.
        place: the same pod as ``gpushare_cli.inject`` finds it.
        admit: the webhook's decision on pods of its namespace; ``None``: it is not computed.
    """
    reasons = list(closed(record.namespace, record.namespace_name, record.release))
    if missing := record.missing_claims:
        reasons += [(f"the pod's ResourceClaims do not exist: {some(missing)}", "create them, or create the pod again")]
    if contract.MIRROR in record.annotations:
        message = "the pod mirrors a static pod, which the webhook does not rewrite"
        reasons = [(message, "create it through the API server")]
    elif not reasons and record.namespace is None:
        yield not_readable(record.namespace_name)
    elif not reasons:
        reasons = [(TOO_LATE.format(record.namespace_name), "create the pod again")]
    yield from (Finding(FindingType.NO_SHARE, message, hint) for message, hint in reasons)
    if place is not None and admit is not None and contract.MIRROR not in record.annotations:
        # Without what the scheduler wrote: the webhook refuses pods that choose a node themselves.
        spec = {key: value for key, value in mapping(place.pod, "spec").items() if key != "nodeName"}
        decision = decide(replace(place, pod={**place.pod, "spec": spec}), admit, record.namespace_name)
        yield from refusals(decision, place, "if created again, the pod would be refused: ")


def decide(place: PodPlace, admit: Admit, namespace: str) -> Change | PolicyDenied:
    """Return what the webhook would do with a pod or a pod template."""
    try:
        return rewrite.change_of(place, admit, namespace)
    except PolicyDenied as error:
        return error


def refusals(
    decision: Change | PolicyDenied,
    place: PodPlace,
    saying: str = "",
    kind: FindingType = FindingType.REFUSED,
    *,
    computed: bool = True,
) -> Iterator[Finding]:
    """Yield for what the webhook would refuse a pod; ``computed``: nothing but the computation says so."""
    problems = decision.problems if isinstance(decision, PolicyDenied) else ()
    for number, problem in enumerate(problems, 1):
        hint = BY_SETTINGS if computed and number == len(problems) else ""
        yield Finding(
            kind, reason=problem.reason, message=f"{saying}{replace(problem, field=place.field_of(problem))}", hint=hint
        )


def warnings(decision: Change | PolicyDenied, kind: FindingType) -> Iterator[Finding]:
    """Yield what the webhook, or ``gpu-share inject``, would warn of."""
    for message in () if isinstance(decision, PolicyDenied) else decision.warnings:
        yield Finding(kind, message)


def not_readable(namespace: str) -> Finding:
    """Say that a namespace's opt-in and maximums are not known."""
    message = f"you may not read namespace {namespace}, so whether it has opted in is unknown; ask for the ClusterRole"
    return Finding(FindingType.UNKNOWN, f"{message} view there")


def is_unknown(record: PodRecord) -> bool:
    """Tell whether claims that the reader may not read may give a pod its share."""
    return record.claims is None and bool(claim_names(record.pod))


def nothing_asked(record: PodRecord) -> str:
    """Say of a pod that asks for nothing what was looked for."""
    if missing := record.missing_claims:
        return f"no annotation requests one, and the pod's ResourceClaims do not exist (any more): {some(missing)}"
    if record.lacks_claims:
        return "no annotation requests one, and a ResourceClaim of the pod is not made yet"
    if is_unknown(record):
        return "no annotation requests one; you may not read the pod's ResourceClaims, which may request one"
    return "no annotation and no ResourceClaim of the pod requests one"


WAITING: Final = {
    "image will run as root": "set securityContext.runAsUser to another user",
    "unresolvable CDI devices": "the enforcer writes a missing file of its own again within a minute, and the kubelet "
    "tries again; if this stays, an operator runs gpu-share check",
}
"""What to do, by words of the kubelet about a container that waits."""
SIGKILLED: Final = 137
"""The exit code of a process that SIGKILL ended."""


def claims_in_use(record: PodRecord) -> Iterator[Finding]:
    """Yield claims that another pod has: this one may hold nothing of them, whatever its annotations say."""
    for claim in record.known_claims:
        if first := record.first_pod_of(claim):
            users = objects(mapping(claim, "status"), "reservedFor")
            gone = all(user.get("uid") != first.get("podUid") for user in users)
            who = "this pod has a quota of 0 MiB on that claim, so its containers are over quota with any GPU memory"
            name = text(mapping(claim, "metadata"), "name")
            stated = claim_in_use_message(name, text(first, "pod"), who, gone=gone)
            yield Finding(FindingType.OBSTACLE, stated, reason=Reason.CLAIM_IN_USE)


def obstacles(record: PodRecord) -> Iterator[Finding]:
    """Yield what keeps a pod from running, each in the words of the component that says it."""
    if record.waits_for_node:
        yield from _of_placement(record)
    elif record.phase == "Pending" and not record.status.get("startTime"):
        hint = f"if that stays so for a minute, it does not run: an operator runs kubectl describe node {record.node}"
        yield Finding(FindingType.OBSTACLE, f"the kubelet of {record.node} has not looked at the pod yet", hint)
    for each in container_statuses(record.pod):
        waiting = mapping(mapping(each, "state"), "waiting")
        if message := text(waiting, "message"):
            of_operator = "an operator runs gpu-share check" if text(each, "name") == contract.SIDECAR else ""
            hint = next((hint for words, hint in WAITING.items() if words in message), of_operator)
            yield Finding(FindingType.OBSTACLE, f"container {text(each, 'name')} waits: {message}", hint)
    if not record.has_ended:
        yield from _of_mps_file(record)
    # Where the status has no reason, a condition has that of an eviction, a preemption, or a node that is gone.
    ended = [each for each in objects(record.status, "conditions") if each.get("type") == "DisruptionTarget"][:1]
    parts = ([text(each, key) for key in ("reason", "message") if text(each, key)] for each in (record.status, *ended))
    reasons = next(filter(None, parts), [])
    if record.status.get("phase") == "Failed" and reasons:
        yield Finding(FindingType.OBSTACLE, f"failed: {': '.join(reasons)}")
    yield from pod_record.troubles(record)


def _of_placement(record: PodRecord) -> Iterator[Finding]:
    # Claims that people write are shared in each namespace with the label, also where the webhook is never called.
    excluded = is_excluded(record.namespace_name, record.release)
    shut = [] if excluded else closed(record.namespace, record.namespace_name, record.release)
    yield from (Finding(FindingType.OBSTACLE, message, hint) for message, hint in shut)
    found = list(unplaced(record))
    yield from found
    name, known = text(record.spec, "schedulerName"), ", ".join(record.schedulers)
    if name not in {"", *record.schedulers}:
        message = f"schedulerName is {shortened(name)}: only Kubernetes' own scheduler places shares ({known})"
        hint = f"write schedulerName: {record.schedulers[0]}, unless webhook.schedulerNames lists {shortened(name)}"
        hint += "; if your manifest has no schedulerName, an operator runs gpu-share check"
        yield Finding(FindingType.OBSTACLE, message, hint)
    elif is_unseen(record.pod) and not (is_without_claim(record.pod) and (found or pod_record.refused_claims(record))):
        yield _unseen(record.pod)


def _unseen(pod: Object) -> Finding:
    """Say whom a pod waits for that no scheduler has tried to place: it tries none before all claims are made."""
    message, program = "no scheduler has tried to place the pod yet", "kube-scheduler"
    if is_without_claim(pod):
        message, program = "the pod's claim is not made yet", "kube-controller-manager"
    why = f"{program} does not run or lacks a right"
    hint = f"if that stays so for a minute without an Event, {why}; an operator looks at its pod and log"
    return Finding(FindingType.OBSTACLE, message, hint)


def _of_mps_file(record: PodRecord) -> Iterator[Finding]:
    failed = {text(each, "name") for each in container_statuses(record.pod) if _has_failed(each)} - {contract.SIDECAR}
    for container in containers(record.pod):
        if text(container, "name") in failed:
            claims = [claim for claim, _ in record.used_claims(container)]
            for message in _barred(record.pod, container, claims):
                yield Finding(FindingType.OBSTACLE, message, container=text(container, "name"))


def _barred(pod: Object, container: Object, claims: Sequence[Object]) -> Iterator[str]:
    """Say why a container that failed opens none of the files that MPS servers had when its claims were prepared.

    Either it mounts a volume of its own there, or its user may open none. Drivers from 580 on keep no file in /dev/shm.
    """
    user, files = user_of(pod, container), [each for claim in claims for each in _mps_files(claim)]
    if files and brings_memory(container):
        yield (
            f"container {text(container, 'name')} mounts a volume of its own at {contract.SHARED_MEMORY_PATH}, where "
            "it needs the file of its MPS server, so CUDA probably fails with error 805: remove that volumeMount"
        )
        return
    if user is None or not barred(user, files):
        return
    modes = ", ".join(sorted({f"mode {mode:04o}, user {owner}" for owner, mode in files}))
    others = sorted({owner for owner, _ in files} - {ROOT})
    advice = f"set runAsUser to {others[0]}" if others else "only root may open it; ask the cluster's operators"
    yield (
        f"container {text(container, 'name')} runs as user {user}, which may not open the file of the MPS server in "
        f"{contract.SHARED_MEMORY_PATH} ({modes}), so CUDA probably fails with error 805: {advice}"
    )


def _mps_files(claim: Object) -> Iterator[tuple[int, int]]:
    """Owner and mode of each file, as the driver wrote them."""
    for entry in objects(mapping(claim, "status"), "devices"):
        for file in objects(mapping(entry, "data"), "mpsFiles"):
            owner, mode = file.get("user"), file.get("mode")
            if entry.get("driver") == contract.DRIVER and isinstance(owner, int) and isinstance(mode, int):
                yield owner, mode


def _has_failed(status: Object) -> bool:
    """Return whether the last run that ended did so by an error, also where the next one runs by now.

    A restart whose last run is not available counts as one: a container that fails at once runs whenever it is asked.
    """
    ends = [end for key in ("state", "lastState") if (end := mapping(mapping(status, key), "terminated"))]
    return bool(ends[0].get("exitCode") if ends else status.get("restartCount"))


def wide(record: PodRecord) -> Iterator[Finding]:
    """Yield what a container that asks for several GPUs waits for beside room."""
    several = [key for key, value in record.annotations.items() if value != "1"]
    found = [shortened(key) for key in several if key == contract.GPUS or key.startswith(contract.GPUS_OF)]
    if found and not record.node:
        where = f"time-slices its GPUs (node label {contract.NODE_MODE}: {contract.TIME_SLICING})"
        message = f"{found[0]}: the pod needs a node that {where} and has free capacity on that many GPUs"
        yield Finding(FindingType.OBSTACLE, message)


def endings(record: PodRecord) -> Iterator[Finding]:
    """Yield when and how containers ended; of a pod that has not ended, those that failed and do not run again yet."""
    for status in container_statuses(record.pod):
        end = mapping(mapping(status, "state"), "terminated")
        name = text(status, "name")
        if end and name != contract.SIDECAR and (record.has_ended or end.get("exitCode")):
            reason, code = text(end, "reason"), end.get("exitCode")
            message, when = f"container {name} ended with exit code {code}", text(end, "finishedAt")
            why = _why(record, name, reason, code)
            yield Finding(FindingType.ENDED, message, why, reason=reason, time=when, container=name)


def _why(record: PodRecord, container: str, reason: str, code: object) -> str:
    if any(pod_record.container_of(each) == container for each in pod_record.kills(record)):
        return "the container exceeded its quota, so the enforcer killed its processes; see last kill"
    if reason == "OOMKilled":
        return "the container exceeded its RAM limit (resources.limits.memory), which is not GPU memory"
    if code == SIGKILLED and record.events is not None:
        return "SIGKILL ended the container; no kill Event exists (the API server keeps Events for 1 h by default)"
    return ""


def ended_at(record: PodRecord) -> str:
    """Return when the last container of a pod that has ended did so; empty where that is not known."""
    ends = (mapping(mapping(each, "state"), "terminated") for each in container_statuses(record.pod))
    return max((text(end, "finishedAt") for end in ends), default="") if record.has_ended else ""


_REASONS: Final = Pattern(r"0/\d+ nodes are available: (.*?)\.( .*)?", MAX_TEXT)
"""Behind the parts stands whether preemption would help, which it never does for a share."""
GATED: Final = "SchedulingGated"
"""The reason of a condition that says less than the gates themselves."""
ON_GPUS: Final = frozenset({Cause.OTHER_GPU, Cause.TOO_LARGE, Cause.UNHEALTHY, Cause.FULL})
CHANGE: Final = "correct the pod, or wait until other pods end"


@dataclass(frozen=True, slots=True)
class Part:
    """Words of the scheduler, what they mean for a share, and the causes that are behind them where GPUs are."""

    words: str
    hint: str
    causes: frozenset[Cause] = frozenset()


ANY_GPU: Final = (
    "no GPU there fits: none is shared, all are unhealthy or of another model, or none has enough free memory, compute "
    "and MPS clients; which of these is unknown, because you may not list ResourceSlices; an operator may"
)
CLAIM_MISSING: Final = (
    "the webhook makes the claim's template, and kube-controller-manager the claim; the pod's Events name what is "
    "missing, and gpu-share check tries the webhook"
)
VOLUME: Final = "a volume of the pod keeps it away, and not a GPU: run kubectl describe persistentvolumeclaims"
PARTS: Final = (
    Part("cannot allocate all claims", ANY_GPU, ON_GPUS),
    Part("were unschedulable", "cordoned; an operator runs kubectl uncordon NODE", frozenset({Cause.CORDONED})),
    Part("untolerated taint", f"a taint excludes the pod: {TOLERATE}; node.kubernetes.io: the node is unhealthy",
         frozenset({Cause.TAINTED, Cause.NOT_READY})),
    Part("node affinity/selector", f"excluded by spec.nodeSelector or spec.affinity of the pod: {SELECT}",
         frozenset({Cause.NOT_SELECTED})),
    Part("Insufficient ", "the node lacks it, and not a GPU: lower resources.requests, or wait until other pods end"),
    Part("Too many pods", "the node runs as many pods as its kubelet takes; wait until other pods end"),
    Part("ResourceClaim not created yet", CLAIM_MISSING),
    Part("device class", "the DeviceClass is missing: run gpu-share check"),
    Part("affinity rules", f"excluded by spec.affinity of the pod, or of other pods there: {CHANGE}"),
    Part("topology spread", f"excluded by spec.topologySpreadConstraints of the pod: {CHANGE}"),
    Part("free ports", "another pod uses the hostPort there; write another one, or wait until that pod ends"),
    Part("volume", VOLUME),
    Part("PersistentVolumeClaim", VOLUME),
)  # fmt: skip
"""The first whose words are there counts. They are those of Kubernetes 1.36 and 1.37."""


def unplaced(record: PodRecord) -> Iterator[Finding]:
    """Yield what keeps a pod from every node, then what keeps it from some, and what to do."""
    placement = place(record.pod, record.known_claims, record.cluster)
    for each in placement.hindrances:
        if not each.nodes:
            yield Finding(FindingType.OBSTACLE, each.message, each.hint)
    for condition in objects(record.status, "conditions"):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            for part in parts(text(condition, "message")) if condition.get("reason") != GATED else ():
                yield Finding(FindingType.OBSTACLE, f"not placed: {part}", _hint(part, record, placement))


def parts(message: str) -> list[str]:
    """Split a message of the scheduler into its reasons, each with the number of nodes that have it."""
    match, found = _REASONS.fullmatch(message), list[str]()
    for piece in [message] if match is None else match.group(1).split(", "):
        if found and not piece[:1].isdigit():
            found[-1] += f", {piece}"
        else:
            found.append(piece)
    return found


def _hint(part: str, record: PodRecord, placement: Placement) -> str:
    known = next((each for each in PARTS if each.words in part), None)
    if known is None or placement.nodes is None:
        return known.hint if known else scheduler_remedy(part)
    room = f"by its GPUs {some(placement.nodes)} could take the pod" if placement.nodes else ""
    if not known.causes:
        return f"{known.hint}; {room}" if room else known.hint
    here = [each for each in placement.hindrances if each.cause in known.causes]
    if here:  # what holds for every node stands above
        return ". ".join("; ".join(filter(None, (each.message, each.hint))) for each in here if each.nodes)
    if not room or known.causes is not ON_GPUS:
        return "none of these nodes shares a GPU"
    chosen = any(exactly.get("selectors") for claim in record.known_claims for exactly in exact_requests(claim))
    check = ", unless the selectors of its claim match none: kubectl get resourceslices --output yaml" if chosen else ""
    return f"nodes without a GPU count here; {room}{check}, or a rule bars it: kubectl get devicetaintrules"
