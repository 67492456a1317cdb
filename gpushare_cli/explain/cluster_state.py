"""Explain one pod from its objects in the cluster: its share request, its allocation, its node, its state.

Raw objects in, as the API server gives them to a reader with the ``view`` role of the namespace: the pod, its claims,
its Events, its Namespace. What is missing or of another shape is not available; nothing is guessed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Final

from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.explain import obstacles, pod_record, sizes
from gpushare_cli.explain.pod_record import (
    MAX_TEXT,
    NO_USAGE,
    Finding,
    FindingType,
    PodRecord,
    Usage,
    container_statuses,
    has_run,
    is_ours,
    shortened,
)
from gpushare_cli.explain.sizes import NO_GPU, asked_by, given_to, sharing_containers
from gpushare_cli.inject.rewrite import Admit
from gpushare_cli.inject.workloads import pods
from gpushare_cli.terminal import table
from gpushare_cli.words import clean, some

COLUMNS: Final = ("CONTAINER", "ASKED", "GIVEN", "GPU", "STATE")
PODS: Final = ("POD", "STATE", "ASKED", "GIVEN")
TROUBLES: Final = frozenset({
    FindingType.NO_SHARE, FindingType.OBSTACLE, FindingType.KILL, FindingType.ENDED, FindingType.EVENT
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """What a container asked for and was given, where, and how it is; in words, empty where there is nothing."""

    container: str
    asked: str
    given: str
    gpu: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """All about one pod. ``share`` tells whether it has a share or is to have one, ``asks`` whether it asks for one."""

    namespace: str
    name: str
    fine: bool = False
    phase: str
    node: str
    share: bool = False
    asks: bool
    summary: str
    containers: tuple[ContainerFacts, ...] = ()
    findings: tuple[Finding, ...] = ()
    usage: Usage = NO_USAGE

    @property
    def lines(self) -> list[str]:
        """Return the text for people."""
        body = table(COLUMNS, map(astuple, self.containers)) if self.containers else []
        return [_line(self.summary), *(f"  {_line(each)}" for each in (*body, *_with_hints(self.findings)))]

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the pod's row in the table of its workload."""
        asked, given = ("; ".join(filter(None, texts)) for texts in (
            [each.asked for each in self.containers], [each.given for each in self.containers if each.given != NO_GPU]
        ))  # fmt: skip
        return self.name, f"{self.phase} on {self.node}" if self.node else self.phase, asked, given

    def json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "kind": "Pod", "namespace": self.namespace, "name": self.name, "fine": self.fine, "summary": self.summary,
            "phase": self.phase, "node": self.node, "share": self.share, "asks": self.asks,
            "containers": [asdict(each) for each in self.containers],
            "use": _use(self.usage),
            "findings": [each.json() for each in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadExplanation:
    """All about one workload. ``wanted`` is its number of pods, ``None`` where it has none of its own.

    ``pods`` are the first of the ``found`` ones.
    """

    kind: str
    namespace: str
    name: str
    fine: bool
    wanted: int | None
    found: int
    asks: bool
    summary: str
    findings: tuple[Finding, ...] = ()
    pods: tuple[PodExplanation, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Return the text for people."""
        rows = table(PODS, [each.row for each in self.pods]) if self.pods else []
        more = [f"and {self.found - len(self.pods)} more"] if self.found > len(self.pods) else []
        body = (*_with_hints(self.findings), *rows, *more, *self._troubles())
        return [_line(self.summary), *(f"  {_line(each)}" for each in body)]

    def _troubles(self) -> Iterator[str]:
        """The worst fact about each pod that is not fine, and what to do; ``explain`` on that pod shows the others."""
        for pod in self.pods:
            worst = [each for each in pod.findings if each.type in TROUBLES]
            yield from (f"{pod.name}: {each.line}" for each in worst[:1] if not pod.fine)
            advice = [each for each in pod.findings if each.type is FindingType.ADVICE]
            yield from (f"{pod.name}: {each.line}; {each.hint}" for each in advice[:1])

    def json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "kind": self.kind, "namespace": self.namespace, "name": self.name, "fine": self.fine,
            "summary": self.summary, "asks": self.asks, "podsWanted": self.wanted, "podsFound": self.found,
            "findings": [each.json() for each in self.findings],
            "pods": [each.json() for each in self.pods],
        }  # fmt: skip


def _use(usage: Usage) -> dict[str, Any] | None:
    """What the containers hold, as the enforcer wrote it; ``None`` where that is not known."""
    if usage.status is None:
        return None
    keys = ("container", "gpu", "used_mib", "peak_mib", "quota_mib", "state")
    containers = [{key.replace("_mib", "MiB"): getattr(use, key) for key in keys} for use in usage.status.uses]
    return {"time": usage.status.time, "ageSeconds": usage.age, "containers": containers}


def _with_hints(findings: Sequence[Finding]) -> Iterator[str]:
    for each in findings:
        yield each.line
        if each.hint:
            yield f"  {each.hint}"


def _line(whole: str) -> str:
    return clean(whole[:MAX_TEXT])


BROKEN: Final = frozenset({Reason.NOT_APPLIED, Reason.LIMIT_ESCAPED})
"""Reasons of the condition ``LimitInForce`` that need somebody, also once the Event about them is gone."""
WATCHED: Final = "(watch-only)"
"""In the message of a container for which no limit is meant to be in force."""
LOST: Final = (
    "the enforcer still enforces the quota of a share, and keeps its memory from new shares; delete the pod, so that "
    "it is created again with a claim"
)


def explain(record: PodRecord, admit: Admit | None = None) -> PodExplanation:
    """Return all about a pod.

    Args:
        record: what the cluster has about it.
        admit: the webhook's decision on pods of its namespace; ``None``: it is not computed.
    """
    asked = obstacles.asks(record.annotations)
    found = PodExplanation(
        namespace=record.namespace_name, name=text(record.metadata, "name"), phase=record.phase, node=record.node,
        asks=bool(asked), summary=f"{record.name}: {_where(record)}", usage=record.usage,
    )  # fmt: skip
    if record.has_share:
        return _with_share(record, found)
    if asked and obstacles.is_unknown(record):
        summary = f"{found.summary}; whether it has the requested share is unknown"
        return replace(found, summary=summary, findings=tuple(_unknown(record)))
    place = next(iter(pods({"apiVersion": "v1", "kind": "Pod", **record.pod})), None)
    if asked:
        summary = f"{found.summary}, WITHOUT a share, although it requests one ({some(asked)})"
        why = tuple(obstacles.why(record, place, admit))
        return replace(found, summary=summary, findings=why, containers=tuple(_facts(record)))
    summary, wrong = (
        f"{record.name} has no share of a GPU: {obstacles.nothing_asked(record)}",
        (*_lost_claims(record), *(pod_record.troubles(record) if record.lacks_claims else ())),
    )
    if place is not None and admit is not None:  # labels that should be annotations
        decision = obstacles.decide(place, admit, record.namespace_name)
        wrong += tuple(obstacles.warnings(decision, FindingType.NO_SHARE))
    return replace(found, summary=summary, findings=wrong, fine=not wrong)


def _with_share(record: PodRecord, found: PodExplanation) -> PodExplanation:
    hindered = [*_lost_claims(record), *obstacles.claims_in_use(record), *obstacles.obstacles(record)]
    kills, events, limits = pod_record.kills(record), pod_record.of_enforcer(record), list(_limits(record))
    ended = list(obstacles.endings(record))
    findings = (
        *ended,
        *_uses(record),
        *limits,
        *hindered,
        *obstacles.wide(record),
        *(pod_record.finding_of(each, FindingType.KILL) for each in kills[-1:]),
        *sizes.advice(record),
        *pod_record.latest(record),
        *_unknown(record),
    )
    warned = bool(events) and events[-1].get("type") == "Warning"
    broken = any(each.reason in BROKEN and WATCHED not in each.message for each in limits)
    failing = bool(ended) and not record.has_ended
    fine = not hindered and not warned and not broken and not failing and record.phase != "Failed"
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
        yield Finding(FindingType.USE, message, old if record.usage.old else "", container=each.container)
    if record.usage.problem:
        yield Finding(FindingType.UNKNOWN, record.usage.problem)


def _limits(record: PodRecord) -> Iterator[Finding]:
    """Whether its limits are in force, as the enforcer writes it in the claims' status."""
    mine = [claim for claim in record.known_claims if not record.first_pod_of(claim)]
    for entry in (each for claim in mine for each in objects(mapping(claim, "status"), "devices")):
        for condition in objects(entry, "conditions"):
            if entry.get("driver") == contract.DRIVER and condition.get("type") == contract.LIMIT_IN_FORCE:
                yield pod_record.of_condition(condition, FindingType.LIMIT)


def _lost_claims(record: PodRecord) -> Iterator[Finding]:
    """Yield the claims that were deleted under a pod that runs.

    Kubernetes makes a claim of a template again, and gives it no GPU. The enforcer keeps to the claim that it prepared.
    """
    runs = record.node and not record.has_ended and any(map(has_run, container_statuses(record.pod)))
    if not runs or record.claims is None or "deletionTimestamp" in record.metadata:
        return
    remade = [each for each in record.known_claims if is_ours(each) and not mapping(each, "status").get("allocation")]
    lost = [f"ResourceClaim {name} was deleted" for name in record.missing_claims]
    lost += [f"its ResourceClaim was deleted; {each['metadata']['name']} in its place has no GPU" for each in remade]
    yield from (Finding(FindingType.OBSTACLE, f"the pod runs on, but {each}", LOST) for each in lost)


def _unknown(record: PodRecord) -> Iterator[Finding]:
    """What the reader may not read, and who can change that."""
    if record.claims is None:
        message = (
            "you may not read the pod's ResourceClaims, so its share is unknown; ask for the ClusterRole gpu-share-view"
        )
        yield Finding(FindingType.UNKNOWN, message)
    if record.events is None:
        message = "you may not read the pod's Events, so kills are unknown; ask for the ClusterRole view"
        yield Finding(FindingType.UNKNOWN, message)
