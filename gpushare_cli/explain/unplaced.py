"""What keeps a pod from a node: each part of the scheduler's message, with what is known of the cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.patterns import Pattern
from gpushare.raw_objects import objects, text
from gpushare_cli.explain.findings import MAX_TEXT, Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord, exact_requests
from gpushare_cli.placement.placing import SELECT, TOLERATE, Cause, Placement, place
from gpushare_cli.words import some

_REASONS: Final = Pattern(r"0/\d+ nodes are available: (.*?)\.( .*)?", MAX_TEXT)
"""Behind the parts stands whether preemption would help, which it never does for a share."""
GATED: Final = "SchedulingGated"
"""The reason of a condition that says less than the gates themselves."""
ON_GPUS: Final = frozenset({Cause.OTHER_GPU, Cause.TOO_LARGE, Cause.UNHEALTHY, Cause.FULL})
VOLUME: Final = "a volume of the pod keeps it away, and not a GPU: run kubectl describe persistentvolumeclaims"
NOT_SHARED: Final = "none of these nodes shares a GPU"
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
)  # fmt: skip
"""The first whose words are there counts. They are those of Kubernetes 1.36 and 1.37."""


def unplaced(record: PodRecord) -> Iterator[Finding]:
    """Yield what keeps a pod from every node, then what keeps it from some, and what to do."""
    placement = place(record.pod, record.known_claims, record.cluster)
    for each in placement.hindrances:
        if not each.nodes:
            yield Finding(type=FindingType.OBSTACLE, message=each.message, hint=each.hint)
    for condition in objects(record.status, "conditions"):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            for part in parts(text(condition, "message")) if condition.get("reason") != GATED else ():
                hint = _hint(part, record, placement)
                yield Finding(type=FindingType.OBSTACLE, message=f"not placed: {part}", hint=hint)


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
        return known.hint if known else ""
    room = f"by its GPUs {some(placement.nodes)} could take the pod" if placement.nodes else ""
    if not known.causes:
        return f"{known.hint}; {room}" if room else known.hint
    here = [each for each in placement.hindrances if each.cause in known.causes]
    if here:  # what holds for every node stands above
        return ". ".join("; ".join(filter(None, (each.message, each.hint))) for each in here if each.nodes)
    if not room or known.causes is not ON_GPUS:
        return NOT_SHARED
    chosen = any(exactly.get("selectors") for claim in record.known_claims for exactly in exact_requests(claim))
    check = "; check that the selectors of its claim match a GPU: kubectl get resourceslices --output yaml"
    return f"nodes without a GPU count here; {room}{check if chosen else ''}"
