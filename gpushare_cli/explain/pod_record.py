"""What the cluster has on record about one pod, and which of its claims give its containers shares.

Raw objects in, as the API server gives them. What is missing or of another shape is not available; nothing is guessed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import contract, defaults
from gpushare.claim_messages import ENDED
from gpushare.pod_claims import claim_names, uses
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.placement.placing import NOT_READ, Cluster
from gpushare_cli.prepared import allocated
from sidecar.pod_status import Status, Use
from webhook.mutation.rewrite import is_our_claim

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


def is_unseen(pod: Object) -> bool:
    """Tell whether no scheduler has tried to place a pod: it writes a condition, and gates have one from the start."""
    seen = any(each.get("type") == "PodScheduled" for each in objects(mapping(pod, "status"), "conditions"))
    return not seen and not mapping(pod, "spec").get("nodeName")


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
