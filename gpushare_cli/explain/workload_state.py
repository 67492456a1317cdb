"""Explain a workload: which pods it has, why there are not more, and what the webhook would do with its template."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.errors import PolicyDenied
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.explain import no_share, pod_events
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.explanation import WorkloadExplanation
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.kinds import CRON_JOB, DAEMON_SET, JOB
from gpushare_cli.explain.workload import WorkloadRecord, created
from gpushare_cli.inject.rewrite import Admit, Change
from gpushare_cli.inject.workloads import PodPlace
from gpushare_cli.words import counted

REPLICA_FAILURE: Final = "ReplicaFailure"
"""The condition of a workload whose pods are refused; it stays where the Events about them have expired."""
BAD: Final = frozenset({FindingType.NO_SHARE, FindingType.REFUSED})
FAILED: Final = "Failed"
"""The condition of a Job that makes no pod any more; its pods may be gone."""


def explain_workload(record: WorkloadRecord, admit: Admit) -> WorkloadExplanation:
    """Return all about a workload; ``admit`` is the webhook's decision on pods of its namespace."""
    metadata, place = mapping(record.workload, "metadata"), record.place
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    asks = place is not None and bool(no_share.asks(mapping(mapping(place.pod, "metadata"), "annotations")))
    wanted, short = wanted_pods(record), _is_short(record)
    shut = list(no_share.closed(record.namespace, namespace, record.release)) if asks else []
    refused, failed = list(_refused(record)) if short else [], list(_failed(record))
    evidence = [each.reason for each in refused if each.type is FindingType.REFUSED]
    findings = [Finding(type=FindingType.NO_SHARE, message=message, hint=hint) for message, hint in shut]
    if asks and not shut and record.namespace is None:
        findings.append(no_share.not_readable(namespace))
    decision = None if place is None else no_share.decide(place, admit, namespace)
    if place is not None and decision is not None:
        findings += _of_template(place, decision, shut=bool(shut), short=short, by_events=bool(evidence))
    findings += [*refused, *failed, *_stopped(record, short=short)]
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
        yield from no_share.refusals(decision, place, saying)
    elif short:
        yield from no_share.refusals(decision, place, computed=not by_events)
    else:  # the pods that are there are evidence against it
        yield from no_share.refusals(decision, place, "new pods would be refused: ", FindingType.WARNING)
    if isinstance(decision, Change) and decision.reason is Reason.NO_SHARE:
        yield from no_share.warnings(decision, FindingType.NO_SHARE)
    elif not shut:
        yield from no_share.warnings(decision, FindingType.WARNING)


def _refused(record: WorkloadRecord) -> Iterator[Finding]:
    """Yield the latest refusal of a pod, as the controller that wanted to create it reports it."""
    events = sorted(record.refused or (), key=pod_events.time_of)
    if events:
        yield pod_events.finding_of(events[-1], FindingType.REFUSED)
        return
    if (failure := next(_failures(record), None)) is not None:
        reason, message, time = (text(failure, key) for key in ("reason", "message", "lastTransitionTime"))
        yield Finding(type=FindingType.REFUSED, reason=reason, message=message, time=time)
    elif record.refused is None:
        message = "you may not read Events, so refusals of pods are unknown; ask for the ClusterRole view"
        yield Finding(type=FindingType.UNKNOWN, message=message)


def _failed(record: WorkloadRecord) -> Iterator[Finding]:
    """Yield how a Job, or the newest Job of a CronJob, failed; without it a Job whose pods are gone looks as new."""
    jobs = {JOB: [record.workload], CRON_JOB: sorted(record.owned, key=created)[-1:]}.get(record.kind, [])
    for job in jobs:
        for each in _conditions(job, FAILED):
            name = text(mapping(job, "metadata"), "name")
            yield Finding(
                type=FindingType.OBSTACLE, reason=text(each, "reason"), time=text(each, "lastTransitionTime"),
                message=f"Job {name} failed: {text(each, 'message')}",
            )  # fmt: skip


def _stopped(record: WorkloadRecord, *, short: bool) -> Iterator[Finding]:
    """Yield the field by which somebody stopped a workload that has too few pods."""
    spec = mapping(record.workload, "spec")
    if short and spec.get("suspend") is True:
        hint = "set spec.suspend to false, unless a queue such as Kueue controls it"
        yield Finding(type=FindingType.OBSTACLE, message="spec.suspend is true: no pod is created", hint=hint)
    if short and spec.get("paused") is True:
        metadata = mapping(record.workload, "metadata")
        hint = f"kubectl rollout resume deployment/{text(metadata, 'name')} -n {text(metadata, 'namespace')}"
        message = "spec.paused is true: no pod of the current pod template is created"
        yield Finding(type=FindingType.OBSTACLE, message=message, hint=hint)


def _failures(record: WorkloadRecord) -> Iterator[Object]:
    for each in (record.workload, *record.owned):
        yield from _conditions(each, REPLICA_FAILURE)


def _conditions(item: Object, kind: str) -> Iterator[Object]:
    for each in objects(mapping(item, "status"), "conditions"):
        if each.get("type") == kind and each.get("status") == "True":
            yield each
