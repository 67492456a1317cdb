"""Read and explain a workload: its pods, why there are not more, what the webhook would do with its template."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpushare import defaults
from gpushare.errors import PolicyDenied
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.explain import obstacles, pod_record
from gpushare_cli.explain.cluster_state import WorkloadExplanation, explain
from gpushare_cli.explain.pod import CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, REPLICA_SET, Kind, Reader, named
from gpushare_cli.explain.pod_record import Finding, FindingType, PodRecord
from gpushare_cli.inject.rewrite import Admit, Change
from gpushare_cli.inject.workloads import PodPlace, pods
from gpushare_cli.lookups import optional
from gpushare_cli.placement.placing import NOT_READ, Cause, Cluster, place
from gpushare_cli.words import counted
from webhook.mutation.resourceclaims import stored

MAX_PODS: Final = 20
"""So many pods of a workload are read whole."""
MAX_JOBS: Final = 20
"""So many jobs of a CronJob, the newest, are looked through for pods."""
JOB_UID: Final = "batch.kubernetes.io/controller-uid"
"""The label by which a Job finds its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """A workload, its first pods (``found`` is how many there are), and the Events about pods that were refused.

    ``place`` is its pod template, ``owned`` are the ReplicaSets or Jobs it made. ``claims`` are the claims and claim
    templates that the pod template names. ``release`` is gpu-share's namespace. ``None``: the user may not read it.
    """

    kind: Kind
    workload: Object
    place: PodPlace | None
    namespace: Object | None
    pods: Sequence[PodRecord]
    found: int
    refused: Sequence[Object] | None
    owned: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    release: str = defaults.SYSTEM_NAMESPACE
    cluster: Cluster = NOT_READ
    """Read for a Job that failed and whose pods are gone."""


def recorded(api: KubeClient, kind: Kind, namespace: str, name: str) -> WorkloadRecord:
    """Read a workload with what belongs to it: what the ``view`` role lets a tenant read.

    Raises:
        GpuShareError: there is no such workload, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    workload = named(api, kind, name, namespace)
    reader = Reader(api, namespace)
    uid = text(mapping(workload, "metadata"), "uid")
    owned = list(_owned(api, kind, workload, namespace))
    owners = {uid, *(text(mapping(each, "metadata"), "uid") for each in owned)}
    first, found = _pods(api, namespace, _selector(kind, workload, owned), owners)
    events = optional(lambda: reader.events("reason=FailedCreate"))
    place = next(iter(pods(workload)), None)
    gone = not found and any(_conditions(each, FAILED) for each in (workload, *owned))
    return WorkloadRecord(
        kind=kind, workload=workload, place=place, namespace=reader.namespace,
        pods=[reader.record(each) for each in first], found=found,
        refused=None if events is None else [each for each in events if _about(each) in owners], owned=owned,
        claims=list(_claims(api, namespace, place)), release=reader.release,
        cluster=reader.cluster if gone else NOT_READ,
    )  # fmt: skip


def _owned(api: KubeClient, kind: Kind, workload: Object, namespace: str) -> Iterator[Object]:
    """Yield what the workload made that makes its pods: ReplicaSets of a Deployment, Jobs of a CronJob."""
    below = {DEPLOYMENT: REPLICA_SET, CRON_JOB: JOB}.get(kind)
    if below is None:
        return
    labels = labels_of(mapping(workload, "spec").get("selector")) if kind is DEPLOYMENT else ""
    query = {"labelSelector": labels} if labels else {}
    uid = text(mapping(workload, "metadata"), "uid")
    for each in api.listing(path(below.base, below.plural, namespace=namespace), **query):
        if _is_owned(each, {uid}):
            yield {key: each.get(key) for key in ("metadata", "status")}


def _pods(api: KubeClient, namespace: str, selector: str, owners: set[str]) -> tuple[list[dict[str, Any]], int]:
    """Read the first pods of these owners, and count them all; each of the others is dropped as it comes."""
    first, found = list[dict[str, Any]](), 0
    if selector:
        for each in api.listing(path(CORE_V1, "pods", namespace=namespace), labelSelector=selector):
            if _is_owned(each, owners):
                found += 1
                first += [each] if len(first) < MAX_PODS else []
    return first, found


def _selector(kind: Kind, workload: Object, owned: Sequence[Object]) -> str:
    if kind is CRON_JOB:
        newest = sorted(owned, key=created)[-MAX_JOBS:]
        uids = ",".join(text(mapping(each, "metadata"), "uid") for each in newest)
        return f"{JOB_UID} in ({uids})" if uids else ""
    return labels_of(mapping(workload, "spec").get("selector"))


def labels_of(selector: object) -> str:
    """Write a selector as a query; empty for none. That of a ReplicationController is its labels themselves."""
    if not isinstance(selector, dict):
        return ""
    plain = "matchLabels" not in selector and "matchExpressions" not in selector
    labels = selector if plain else mapping(selector, "matchLabels")
    found = [f"{key}={value}" for key, value in labels.items()]
    for each in objects(selector, "matchExpressions"):
        key, operator = text(each, "key"), text(each, "operator")
        values = ",".join(str(value) for value in each.get("values") or ())
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key,
                 "DoesNotExist": f"!{key}"}  # fmt: skip
        found += [forms[operator]] if operator in forms else []
    return ",".join(found)


def _is_owned(item: Object, owners: set[str]) -> bool:
    references = objects(mapping(item, "metadata"), "ownerReferences")
    return any(each.get("uid") in owners for each in references if each.get("controller"))


def _claims(api: KubeClient, namespace: str, place: PodPlace | None) -> Iterator[Object]:
    """Read the claims and claim templates that a pod template names: with claims of its own a pod gets no other."""
    for entry in objects(mapping({} if place is None else place.pod, "spec"), "resourceClaims"):
        for key, plural in KEYS.items():
            if name := text(entry, key):
                found = optional(partial(api.get, path(RESOURCE_V1, plural, name, namespace)))
                yield from filter(None, [found])


KEYS: Final = {"resourceClaimName": "resourceclaims", "resourceClaimTemplateName": "resourceclaimtemplates"}


def _about(event: Object) -> str:
    return text(mapping(event, "involvedObject"), "uid")


def created(item: Object) -> str:
    """Return when an object was created."""
    return text(mapping(item, "metadata"), "creationTimestamp")


REPLICA_FAILURE: Final = "ReplicaFailure"
"""The condition of a workload whose pods are refused; it stays where the Events about them have expired."""
BAD: Final = frozenset({FindingType.NO_SHARE, FindingType.REFUSED})
FAILED: Final = "Failed"
"""The condition of a Job that makes no pod any more; its pods may be gone."""


def explain_workload(record: WorkloadRecord, admit: Admit) -> WorkloadExplanation:
    """Return all about a workload; ``admit`` is the webhook's decision on pods of its namespace."""
    metadata, place = mapping(record.workload, "metadata"), record.place
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    asks = place is not None and bool(obstacles.asks(mapping(mapping(place.pod, "metadata"), "annotations")))
    wanted, short = wanted_pods(record), _is_short(record)
    shut = list(obstacles.closed(record.namespace, namespace, record.release)) if asks else []
    refused, failed = list(_refused(record)) if short else [], list(_failed(record))
    evidence = [each.reason for each in refused if each.type is FindingType.REFUSED]
    findings = [Finding(FindingType.NO_SHARE, message, hint) for message, hint in shut]
    if asks and not shut and record.namespace is None:
        findings.append(obstacles.not_readable(namespace))
    decision = None if place is None else obstacles.decide(place, admit, namespace)
    if place is not None and decision is not None:
        findings += _of_template(place, decision, shut=bool(shut), short=short, by_events=bool(evidence))
    findings += [*refused, *failed, *_never(record, decision), *_stopped(record, short=short)]
    pods = tuple(explain(each, admit) for each in record.pods)
    outcome = _outcome(decision if short else None, evidence, asks=asks, shut=bool(shut))
    count = counted(record.found, "pod") if wanted is None else f"{record.found} of {counted(wanted, 'pod')}"
    good = not failed and all(each.fine for each in pods) and not any(each.type in BAD for each in findings)
    return WorkloadExplanation(
        kind=record.kind.name, namespace=namespace, name=name, wanted=wanted, found=record.found, asks=asks,
        fine=good and record.found >= (wanted or 0), findings=tuple(findings), pods=pods,
        summary=f"{namespace}/{name} ({record.kind.name}): {count}{outcome}",
    )  # fmt: skip


def wanted_pods(record: WorkloadRecord) -> int | None:
    """Return how many pods a workload wants; ``None`` for one that has pods for a while only."""
    if record.kind in (JOB, CRON_JOB):
        return None
    if record.kind is DAEMON_SET:
        found = mapping(record.workload, "status").get("desiredNumberScheduled")
    else:
        found = mapping(record.workload, "spec").get("replicas", 1)
    return found if isinstance(found, int) else None


def _is_short(record: WorkloadRecord) -> bool:
    """Whether there are fewer pods than are wanted, or, where no number is, none; or new ones cannot be created."""
    wanted = wanted_pods(record)
    if next(_failures(record), None) is not None:
        return True
    return record.found < wanted if wanted is not None else not record.found


def _outcome(decision: Change | PolicyDenied | None, evidence: Sequence[str], *, asks: bool, shut: bool) -> str:
    if not asks:
        return "; its pod template requests no share"
    if shut:
        return ", WITHOUT shares, although its pod template requests them"
    if isinstance(decision, PolicyDenied):
        return f": {'refused' if evidence else 'would be refused'}, {decision.reason}"
    return f": refused, {evidence[0]}" if evidence else ""


def _of_template(
    place: PodPlace, decision: Change | PolicyDenied, *, shut: bool, short: bool, by_events: bool
) -> Iterator[Finding]:
    """Yield what the webhook would refuse in the pod template, or warn of."""
    if shut:
        saying = "if the webhook checked the workload's pods, it would refuse them: "
        yield from obstacles.refusals(decision, place, saying)
    elif short:
        yield from obstacles.refusals(decision, place, computed=not by_events)
    else:  # the pods that are there are evidence against it
        yield from obstacles.refusals(decision, place, "new pods would be refused: ", FindingType.WARNING)
    if isinstance(decision, Change) and decision.reason is Reason.NO_SHARE:
        yield from obstacles.warnings(decision, FindingType.NO_SHARE)
    elif not shut:
        yield from obstacles.warnings(decision, FindingType.WARNING)


def _refused(record: WorkloadRecord) -> Iterator[Finding]:
    """Yield the latest refusal of a pod, as the controller that wanted to create it reports it."""
    events = sorted(record.refused or (), key=pod_record.time_of)
    if events:
        yield pod_record.finding_of(events[-1], FindingType.REFUSED)
        return
    if (failure := next(_failures(record), None)) is not None:
        yield pod_record.of_condition(failure, FindingType.REFUSED)
    elif record.refused is None:
        message = "you may not read Events, so refusals of pods are unknown; ask for the ClusterRole view"
        yield Finding(FindingType.UNKNOWN, message)


def _failed(record: WorkloadRecord) -> Iterator[Finding]:
    """Yield how a Job, or the newest Job of a CronJob, failed; without it a Job whose pods are gone looks as new."""
    jobs = {JOB: [record.workload], CRON_JOB: sorted(record.owned, key=created)[-1:]}.get(record.kind, [])
    for job in jobs:
        for each in _conditions(job, FAILED):
            failed = f"Job {text(mapping(job, 'metadata'), 'name')} failed: "
            yield pod_record.of_condition(each, FindingType.OBSTACLE, failed)


def _never(record: WorkloadRecord, decision: Change | PolicyDenied | None) -> Iterator[Finding]:
    """Yield why no GPU could take a pod of the template, where no pod is left that says so."""
    found = stored(decision.pod) if isinstance(decision, Change) else None
    if found is not None:
        claim = {"spec": mapping(mapping(found.template, "spec"), "spec")}
        for each in place({}, [claim], record.cluster).hindrances:
            if each.cause is Cause.TOO_LARGE:
                yield Finding(FindingType.OBSTACLE, each.message, each.hint)


def _stopped(record: WorkloadRecord, *, short: bool) -> Iterator[Finding]:
    """Yield the field by which somebody stopped a workload that has too few pods."""
    spec = mapping(record.workload, "spec")
    if short and spec.get("suspend") is True:
        hint = "set spec.suspend to false, unless a queue such as Kueue controls it"
        yield Finding(FindingType.OBSTACLE, "spec.suspend is true: no pod is created", hint)
    if short and spec.get("paused") is True:
        metadata = mapping(record.workload, "metadata")
        hint = f"kubectl rollout resume deployment/{text(metadata, 'name')} -n {text(metadata, 'namespace')}"
        message = "spec.paused is true: no pod of the current pod template is created"
        yield Finding(FindingType.OBSTACLE, message, hint)


def _failures(record: WorkloadRecord) -> Iterator[Object]:
    for each in (record.workload, *record.owned):
        yield from _conditions(each, REPLICA_FAILURE)


def _conditions(item: Object, kind: str) -> list[Object]:
    found = objects(mapping(item, "status"), "conditions")
    return [each for each in found if each.get("type") == kind and each.get("status") == "True"]
