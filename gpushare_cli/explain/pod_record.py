"""What the cluster has on record about one pod, and which of its claims give its containers shares.

A ``Finding`` is one fact about it, as data; its line for people and its JSON come from it. So are Events.

Raw objects in, as the API server gives them. What is missing or of another shape is not available; nothing is guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from enforcer.status.messages import used_amounts
from gpushare import contract, defaults
from gpushare.claim_messages import ENDED
from gpushare.pod_claims import claim_names, uses
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.placement.placing import NOT_READ, Cluster
from gpushare_cli.prepared import allocated
from gpushare_cli.words import is_over_quota, refusal_remedy
from sidecar.pod_status import Status, Use
from webhook.mutation.rewrite import is_our_claim

MAX_TEXT: Final = 2048
"""Characters of one line: conditions and Events of others may hold any text."""


class FindingType(StrEnum):
    """What a finding is about. The values are part of the JSON output."""

    NO_SHARE = "noShare"
    ENDED = "ended"
    USE = "use"
    LIMIT = "limit"
    OBSTACLE = "obstacle"
    REFUSED = "refused"
    WARNING = "warning"
    KILL = "lastKill"
    ADVICE = "advice"
    EVENT = "event"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. ``reason`` is a Reason of ours or a word of Kubernetes', ``time`` RFC 3339; both may be empty.

    ``hint`` says what the message means or what to do, ``command`` what to run, or which annotation to write.
    """

    type: FindingType
    message: str
    hint: str = ""
    reason: str = ""
    time: str = ""
    container: str = ""
    command: str = ""

    @property
    def line(self) -> str:
        """Return the fact for people, without the hint."""
        fact = f"{self.reason}: {self.message}" if self.reason else self.message
        if self.type is FindingType.LIMIT:
            return f"limit {fact}" + (f" (since {self.time})" if self.time else "")
        if self.type is FindingType.WARNING:
            return f"warning: {fact}"
        dated = f"{self.time} {fact}" if self.time else fact
        return f"last kill: {dated}" if self.type is FindingType.KILL else dated

    def json(self) -> dict[str, str]:
        """Return the fact for programs: each key is always there, empty where there is nothing to say."""
        keys = ("type", "reason", "message", "time", "hint", "container", "command")
        return {key: str(getattr(self, key))[:MAX_TEXT] for key in keys}


STALE_SECONDS: Final = 60.0
"""The enforcer writes a pod's status every few seconds; a restart of it takes less than this."""
MAX_VALUE: Final = 60
"""Characters that are shown of a value that a tenant wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The pod's status file as its sidecar has it, and its age in seconds when it was read (``None``: it has no time).

    Without ``status`` it could not be read, and ``problem`` says why; both are empty where no sidecar runs.
    """

    status: Status | None = None
    age: float | None = None
    problem: str = ""

    @property
    def uses(self) -> tuple[Use, ...]:
        """What its containers hold, as far as that is known."""
        return () if self.status is None else self.status.uses

    @property
    def old(self) -> bool:
        """Whether it is not known to be current."""
        return self.age is None or self.age > STALE_SECONDS


NO_USAGE: Final = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod, its claims by name, its Events and its Namespace; ``None``: the reader may not read them.

    ``schedulers`` are the profiles of Kubernetes' own scheduler. ``cluster`` is read for a pod that waits for a node.
    ``release`` is gpu-share's namespace.
    """

    pod: Object
    claims: Mapping[str, Object] | None
    events: Sequence[Object] | None
    namespace: Object | None = None
    cluster: Cluster = NOT_READ
    usage: Usage = NO_USAGE
    schedulers: Sequence[str] = defaults.SCHEDULER_NAMES
    release: str = defaults.SYSTEM_NAMESPACE

    @property
    def metadata(self) -> Object:
        """The pod's metadata."""
        return mapping(self.pod, "metadata")

    @property
    def annotations(self) -> Object:
        """The pod's annotations."""
        return mapping(self.metadata, "annotations")

    @property
    def spec(self) -> Object:
        """The pod's spec."""
        return mapping(self.pod, "spec")

    @property
    def status(self) -> Object:
        """The pod's status; empty before a kubelet or the scheduler wrote one."""
        return mapping(self.pod, "status")

    @property
    def namespace_name(self) -> str:
        """The name of its namespace."""
        return text(self.metadata, "namespace")

    @property
    def name(self) -> str:
        """Namespace and name."""
        return f"{self.namespace_name}/{text(self.metadata, 'name')}"

    @property
    def node(self) -> str:
        """The node it was placed on; empty before that."""
        return text(self.spec, "nodeName")

    @property
    def phase(self) -> str:
        """Its phase; ``Unknown`` where it has none."""
        return text(self.status, "phase") or "Unknown"

    @property
    def has_ended(self) -> bool:
        """Whether none of its containers runs again."""
        return self.phase in ENDED

    @property
    def is_unready(self) -> bool:
        """Whether it runs, and not all of its containers are ready. For a readiness gate a probe is not to blame."""
        wanted = {"type": "ContainersReady", "status": "False"}
        found = (wanted.items() <= each.items() for each in objects(self.status, "conditions"))
        return self.phase == "Running" and any(found)

    @property
    def waits_for_node(self) -> bool:
        """Whether the scheduler still has to place it."""
        return not self.node and not self.has_ended

    @property
    def known_claims(self) -> list[Object]:
        """The claims that are there and may be read, in the order of its spec."""
        claims = self.claims or {}
        return [claims[name] for name in claim_names(self.pod) if name in claims]

    @property
    def missing_claims(self) -> list[str]:
        """The names of its claims that do not exist, as far as that is known."""
        claims = self.claims
        return [] if claims is None else [name for name in claim_names(self.pod) if name not in claims]

    @property
    def lacks_claims(self) -> bool:
        """Whether a claim was not made yet, or is gone; a name stands in the pod only once it was made."""
        named = len(objects(self.spec, "resourceClaims"))
        return self.claims is not None and (len(self.claims) < named or bool(self.missing_claims))

    @property
    def has_share(self) -> bool:
        """Whether it has a share of a GPU, or is to have one; also by a claim that its owner wrote."""
        return any(map(is_our_claim, objects(self.spec, "resourceClaims"))) or any(map(is_ours, self.known_claims))

    def used_claims(self, container: Object) -> Iterator[tuple[Object, str]]:
        """Yield the claims that a container uses, with the request (empty: all of them)."""
        claims = self.claims or {}
        for each in uses(self.pod):
            if each.container == text(container, "name") and each.claim in claims:
                yield claims[each.claim], each.request

    def first_pod_of(self, claim: Object) -> Object:
        """Return what the driver wrote of the pod that a claim was prepared for, where it is another; else nothing."""
        uid = self.metadata.get("uid")
        entries = (mapping(each, "data") for each in objects(mapping(claim, "status"), "devices"))
        return next((each for each in entries if each.get("podUid") not in (None, uid)), {})


def container_statuses(pod: Object) -> list[Object]:
    """Return what the kubelet says of each container, those of init containers first."""
    status = mapping(pod, "status")
    return [*objects(status, "initContainerStatuses"), *objects(status, "containerStatuses")]


def has_run(status: Object) -> bool:
    """Tell from its entry in the pod's status whether a container was ever started."""
    states = [mapping(status, "state"), mapping(status, "lastState")]
    return bool(text(status, "containerID")) or any("running" in each or "terminated" in each for each in states)


def is_unseen(pod: Object) -> bool:
    """Tell whether no scheduler has tried to place a pod: it writes a condition, and gates have one from the start."""
    seen = any(each.get("type") == "PodScheduled" for each in objects(mapping(pod, "status"), "conditions"))
    return not seen and not mapping(pod, "spec").get("nodeName")


def is_without_claim(pod: Object) -> bool:
    """Tell whether a claim of a template is not made yet: kube-controller-manager writes its name to the status."""
    made = {text(each, "name") for each in objects(mapping(pod, "status"), "resourceClaimStatuses")}
    entries = objects(mapping(pod, "spec"), "resourceClaims")
    return any(each.get("resourceClaimTemplateName") and text(each, "name") not in made for each in entries)


def requested(claim: Object, name: str = "") -> Iterator[tuple[str, Object]]:
    """Yield name and amounts of the requests of a claim for shares; an empty name is every request."""
    for request in objects(mapping(mapping(claim, "spec"), "devices"), "requests"):
        exactly = mapping(request, "exactly")
        if exactly.get("deviceClassName") == contract.DEVICE_CLASS and name in {"", request.get("name")}:
            yield text(request, "name"), mapping(mapping(exactly, "capacity"), "requests")


def shortened(value: object) -> str:
    """Return the beginning of a value that may be of any length."""
    whole = str(value)
    return whole if len(whole) <= MAX_VALUE else whole[: MAX_VALUE - 3] + "..."


def is_ours(claim: Object) -> bool:
    """Tell whether a claim holds devices of ours, or asks for a GPU of ours; the scheduler's say no amount."""
    if any(allocated(claim)):
        return True
    classes = (text(each, "deviceClassName") for each in exact_requests(claim))
    return not set(classes).isdisjoint(contract.SHARING_CLASSES)


def exact_requests(claim: Object) -> list[Object]:
    """Return what each request of a claim asks for exactly."""
    requests = objects(mapping(mapping(claim, "spec"), "devices"), "requests")
    return [mapping(each, "exactly") for each in requests]


SHOWN: Final = 5
"""So many Events are shown, the latest."""
KILLS: Final = f"reason={Reason.KILLED},reportingComponent={contract.ENFORCER_REPORTER}"
"""Selects the Events about containers that were killed."""
KILL: Final = "Kill"
"""The action of an Event about a kill."""
TROUBLE: Final = frozenset(
    {"FailedPrepareDynamicResources", "FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume"}
)
PROBE: Final = "Unhealthy"
"""A probe failed; it holds while a container is not ready."""
NO_CLAIM: Final = "FailedResourceClaimCreation"
"""Ordinary in the moment before the template is there."""
TRIED_AGAIN: Final = (
    "then delete the pod and create it again: this one is tried again after pauses that grow to a quarter of an hour"
)
HINTS: Final = {
    "FailedPrepareDynamicResources": "the kubelet tries again every 60 to 90 s; if that fails too, an operator runs "
    "gpu-share check",
    PROBE: "a probe of the pod's own fails: see kubectl logs, and the probes in its spec",
    "FailedMount": "the kubelet tries again every two minutes at the latest; what the message names has to be there",
    "FailedCreatePodSandBox": "the node's container runtime or network failed: an operator reads the runtime's log "
    "there; a runtime that the message misses comes from the chart's runtimeClassName",
}
"""By the Reason of an Event of Kubernetes."""
UNREGISTERED: Final = (
    "the enforcer of that node does not run, or the kubelet does not know it yet and tries again every 60 to 90 s; an "
    "operator runs gpu-share check, and kubectl describe pods -A -l app.kubernetes.io/name=gpu-share-enforcer"
)
TEMPLATE: Final = "claim template"
"""In an Event about a template that is not there, or was not at first."""
NO_TEMPLATE: Final = "the webhook makes the template; an operator runs gpu-share check, and reads the webhook's log"

OWN_TEMPLATE: Final = (
    "the pod itself names that template: create it in the pod's namespace, or correct its name in a new pod"
)


def of_enforcer(record: PodRecord) -> list[Object]:
    """Return the enforcer's Events about a pod, oldest first."""
    return [each for each in _about(record) if each.get("reportingComponent") == contract.ENFORCER_REPORTER]


def kills(record: PodRecord) -> list[Object]:
    """Return the Events about kills in a pod, oldest first."""
    return [each for each in of_enforcer(record) if each.get("action") == KILL]


def peaks(record: PodRecord) -> dict[str, tuple[int, int]]:
    """Return what the enforcer's Events say that each container used at most, and its quota then, in MiB."""
    found: dict[str, tuple[int, int]] = {}
    for event in of_enforcer(record):
        if amounts := used_amounts(text(event, "message")):
            container, used, quota = amounts
            found[container] = max((used, quota), found.get(container, (0, 0)))
    return found


def container_of(event: Object) -> str:
    """Name the container that an Event of the enforcer is about; empty where it is about none."""
    field = text(mapping(event, "involvedObject"), "fieldPath")
    return field.removeprefix("spec.containers{").removesuffix("}") if field.startswith("spec.containers{") else ""


def latest(record: PodRecord) -> Iterator[Finding]:
    """Yield the enforcer's latest Events about a pod, but for the last kill."""
    last = kills(record)[-1:]
    yield from (finding_of(each, FindingType.EVENT) for each in of_enforcer(record)[-SHOWN:] if each not in last)


def refused_claims(record: PodRecord) -> list[Object]:
    """Return the Events about claims of a pod that the API server refused to make."""
    found = [each for each in _about(record) if record.lacks_claims and text(each, "reason") == NO_CLAIM]
    return [each for each in found if TEMPLATE not in text(each, "message")]


def troubles(record: PodRecord) -> Iterator[Finding]:
    """Yield what Kubernetes says of a pod that has not started or is not Ready; of each Reason the latest."""
    # What still holds, and stands nowhere in the pod.
    wanted = frozenset({PROBE} if record.is_unready else ())
    if record.status.get("phase") == "Pending":  # it lacks claims also in the moment before they are made
        wanted = TROUBLE | {NO_CLAIM} if record.lacks_claims else TROUBLE
    found = {reason: each for each in _about(record) if (reason := text(each, "reason")) in wanted}
    yield from (finding_of(each, FindingType.OBSTACLE) for each in found.values())


def remedy(reason: str, message: str) -> str:
    """Return what to do about an Event of Kubernetes; empty where nothing is known."""
    if reason == NO_CLAIM:
        if TEMPLATE not in message:
            return f"{_unmade(message)}; {TRIED_AGAIN}"
        return NO_TEMPLATE if f'"{contract.TEMPLATE_PREFIX}' in message else OWN_TEMPLATE
    if f"DRA driver {contract.DRIVER} is not registered" in message:
        return UNREGISTERED
    return HINTS.get(reason) or refusal_remedy(message)


def _unmade(refusal: str) -> str:
    """Say what to do about a claim that the API server refuses to make."""
    if is_over_quota(refusal):
        return "end other pods, or have the quota raised"
    return refusal_remedy(refusal) or "an operator looks who refuses the claim"


def finding_of(event: Object, kind: FindingType) -> Finding:
    """Return an Event as a finding."""
    found, reason, container = text(event, "message"), text(event, "reason"), container_of(event)
    return Finding(kind, found, remedy(reason, found), reason=reason, time=time_of(event), container=container)


def of_condition(condition: Object, kind: FindingType, lead: str = "") -> Finding:
    """Return a condition as a finding; ``lead`` stands before its message."""
    message, since = lead + text(condition, "message"), text(condition, "lastTransitionTime")
    return Finding(kind, message, reason=text(condition, "reason"), time=since, hint=refusal_remedy(message))


def time_of(event: Object) -> str:
    """Return when an Event happened last; empty where it does not say."""
    return text(event, "eventTime") or text(event, "lastTimestamp")


def _about(record: PodRecord) -> list[Object]:
    """The Events about this very pod, and not one of its name before it; oldest first."""
    uid = record.metadata.get("uid")
    mine = (each for each in record.events or () if mapping(each, "involvedObject").get("uid") == uid)
    return sorted(mine, key=time_of)
