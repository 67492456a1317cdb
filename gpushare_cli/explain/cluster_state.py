"""Explain one pod from its objects in the cluster: its share request, its allocation, its node, its state.

Raw objects in, as the API server gives them to a reader with the ``view`` role of the namespace: the pod, its claims,
its Events, its Namespace. What is missing or of another shape is not available; nothing is guessed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.explain import no_share, obstacles, pod_events, sizes
from gpushare_cli.explain.explanation import ContainerFacts, PodExplanation
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord, container_statuses, shortened
from gpushare_cli.explain.shares import asked_by, given_to, sharing_containers
from gpushare_cli.inject.rewrite import Admit
from gpushare_cli.inject.workloads import pods
from gpushare_cli.words import some

BROKEN: Final = frozenset({Reason.NOT_APPLIED, Reason.LIMIT_ESCAPED})
"""Reasons of the condition ``LimitInForce`` that need somebody, also once the Event about them is gone."""
WATCHED: Final = "(watch-only)"
"""In the message of a container for which no limit is meant to be in force."""


def explain(record: PodRecord, admit: Admit | None = None) -> PodExplanation:
    """Return all about a pod.

    Args:
        record: what the cluster has about it.
        admit: the webhook's decision on pods of its namespace; ``None``: it is not computed.
    """
    asked = no_share.asks(record.annotations)
    found = PodExplanation(
        namespace=record.namespace_name, name=text(record.metadata, "name"), phase=record.phase, node=record.node,
        asks=bool(asked), summary=f"{record.name}: {_where(record)}", usage=record.usage,
    )  # fmt: skip
    if record.has_share:
        return _with_share(record, found)
    if asked and no_share.is_unknown(record):
        summary = f"{found.summary}; whether it has the requested share is unknown"
        return replace(found, summary=summary, findings=tuple(_unknown(record)))
    place = next(iter(pods({"apiVersion": "v1", "kind": "Pod", **record.pod})), None)
    if asked:
        summary = f"{found.summary}, WITHOUT a share, although it requests one ({some(asked)})"
        why = tuple(no_share.why(record, place, admit))
        return replace(found, summary=summary, findings=why, containers=tuple(_facts(record)))
    summary, wrong = f"{record.name} has no share of a GPU: {no_share.nothing_asked(record)}", tuple[Finding, ...]()
    if place is not None and admit is not None:  # labels that should be annotations
        decision = no_share.decide(place, admit, record.namespace_name)
        wrong = tuple(no_share.warnings(decision, FindingType.NO_SHARE))
    return replace(found, summary=summary, findings=wrong, fine=not wrong)


def _with_share(record: PodRecord, found: PodExplanation) -> PodExplanation:
    hindered = [*obstacles.claims_in_use(record), *obstacles.obstacles(record)]
    kills, events, limits = pod_events.kills(record), pod_events.of_enforcer(record), list(_limits(record))
    findings = (
        *obstacles.endings(record),
        *_uses(record),
        *limits,
        *hindered,
        *obstacles.wide(record),
        *(pod_events.finding_of(each, FindingType.KILL) for each in kills[-1:]),
        *sizes.advice(record),
        *pod_events.latest(record),
        *_unknown(record),
    )
    warned = bool(events) and events[-1].get("type") == "Warning"
    broken = any(each.reason in BROKEN and WATCHED not in each.message for each in limits)
    fine = not hindered and not warned and not broken and record.phase != "Failed"
    return replace(found, findings=findings, fine=fine, share=True, containers=tuple(_facts(record)))


def _where(record: PodRecord) -> str:
    placed = f"{record.phase} on node {record.node}" if record.node else f"{record.phase}, on no node"
    placed += "" if record.node or record.has_ended else " yet"
    ended, leaving = obstacles.ended_at(record), text(record.metadata, "deletionTimestamp")
    return placed + (f", ended at {ended}" if ended else "") + (f", being deleted since {leaving}" if leaving else "")


def _facts(record: PodRecord) -> Iterator[ContainerFacts]:
    states = {text(each, "name"): each for each in container_statuses(record.pod)}
    for container in sharing_containers(record.pod):
        name = text(container, "name")
        given, gpu = given_to(record, container)
        yield ContainerFacts(
            container=name,
            asked=asked_by(record, container),
            given=given,
            gpu=gpu,
            state=state_of(states.get(name, {})),
        )


def state_of(status: Object) -> str:
    """Say how a container is, from its entry in the pod's status."""
    state = mapping(status, "state")
    waiting, ended = mapping(state, "waiting"), mapping(state, "terminated")
    shown = "not started"
    if "running" in state:
        shown = "running"
    elif waiting:
        shown = f"waiting: {shortened(waiting.get('reason'))}"
    elif ended:
        shown = f"ended: {shortened(ended.get('reason'))} (exit code {ended.get('exitCode')})"
    count = status.get("restartCount")
    return f"{shown}, restarts: {count}" if isinstance(count, int) and count else shown


def _uses(record: PodRecord) -> Iterator[Finding]:
    """What each container holds beside its quota, and how old that is."""
    age = record.usage.age
    when = "at an unknown time" if age is None else f"{max(0, age):.0f} s ago"
    old = "the enforcer of this node has stopped updating the pod status, so this use may be out of date"
    for each in record.usage.uses:
        now = "an unknown amount" if each.used_mib is None else f"{each.used_mib} MiB"
        peak = "" if each.peak_mib is None else f", peak {each.peak_mib} MiB"
        quota = f"its quota of {each.quota_mib} MiB"
        use = f"{now}: {quota} and {each.borrowed_mib} MiB borrowed" if each.borrowed_mib else f"{now} of {quota}"
        message = f"container {each.container} uses {use}{peak} (measured {when})"
        hint = old if record.usage.old else ""
        yield Finding(type=FindingType.USE, message=message, hint=hint, container=each.container)
    if record.usage.problem:
        yield Finding(type=FindingType.UNKNOWN, message=record.usage.problem)


def _limits(record: PodRecord) -> Iterator[Finding]:
    """Whether its limits are in force, as the enforcer writes it in the claims' status."""
    mine = [claim for claim in record.known_claims if not record.first_pod_of(claim)]
    for entry in (each for claim in mine for each in objects(mapping(claim, "status"), "devices")):
        for condition in objects(entry, "conditions"):
            if entry.get("driver") == contract.DRIVER and condition.get("type") == contract.LIMIT_IN_FORCE:
                message, reason = text(condition, "message"), text(condition, "reason")
                since = text(condition, "lastTransitionTime")
                yield Finding(type=FindingType.LIMIT, message=message, reason=reason, time=since)


def _unknown(record: PodRecord) -> Iterator[Finding]:
    """What the reader may not read, and who can change that."""
    if record.claims is None:
        message = (
            "you may not read the pod's ResourceClaims, so its share is unknown; ask for the ClusterRole gpu-share-view"
        )
        yield Finding(type=FindingType.UNKNOWN, message=message)
    if record.events is None:
        message = "you may not read the pod's Events, so kills are unknown; ask for the ClusterRole view"
        yield Finding(type=FindingType.UNKNOWN, message=message)
