"""Say whether a share could start, and where; if not, what keeps it from which node. Pure.

Raw objects in, as the API server gives them: what is missing or of another shape counts as absent. Only nodes with a
published GPU count. What nodes have left of CPU and memory is not looked at; of that the scheduler tells.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from gpushare import contract
from gpushare.quantity import GIB, exact_value, format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.placement.gpus import Demand, Gpu, counts, demands, gpus, models_of, selects
from gpushare_cli.words import some

CORDON: Final[Object] = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def is_cordoned(node: Object, pod: Object) -> bool:
    """Tell whether a node takes no new pods, and this one makes no exception."""
    return mapping(node, "spec").get("unschedulable") is True and not _tolerates(pod, CORDON)


def untolerated(node: Object, pod: Object) -> str:
    """Return the first taint of a node that keeps a pod away, as ``key=value:effect``; empty where none does."""
    for taint in objects(mapping(node, "spec"), "taints"):
        if text(taint, "effect") in {"NoSchedule", "NoExecute"} and not _tolerates(pod, taint):
            value = f"={text(taint, 'value')}" if text(taint, "value") else ""
            return f"{text(taint, 'key')}{value}:{text(taint, 'effect')}"
    return ""


def is_selected(node: Object, pod: Object) -> bool:
    """Tell whether the node selector and the required node affinity of a pod allow a node."""
    spec, labels = mapping(pod, "spec"), mapping(mapping(node, "metadata"), "labels")
    if any(labels.get(key) != value for key, value in mapping(spec, "nodeSelector").items()):
        return False
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    required = mapping(mapping(mapping(spec, "affinity"), "nodeAffinity"), rule)
    terms = objects(required, "nodeSelectorTerms")
    return not terms or any(
        _matches(term, labels, {"metadata.name": mapping(node, "metadata").get("name")}) for term in terms
    )


def _tolerates(pod: Object, taint: Object) -> bool:
    return any(_covers(each, taint) for each in objects(mapping(pod, "spec"), "tolerations"))


def _covers(toleration: Object, taint: Object) -> bool:
    exists, key = toleration.get("operator") == "Exists", text(toleration, "key")
    same = key == text(taint, "key") or (exists and not key)
    of_value = exists or text(toleration, "value") == text(taint, "value")
    return same and of_value and text(toleration, "effect") in {"", text(taint, "effect")}


def _matches(term: Object, labels: Object, fields: Object) -> bool:
    wanted = [(each, labels) for each in objects(term, "matchExpressions")]
    wanted += [(each, fields) for each in objects(term, "matchFields")]
    return bool(wanted) and all(_holds(each, values) for each, values in wanted)


def _holds(expression: Object, labels: Object) -> bool:
    found, values = labels.get(text(expression, "key")), expression.get("values")
    among = found in values if isinstance(values, list) else False
    holds = {"In": among, "NotIn": not among, "Exists": found is not None, "DoesNotExist": found is None}
    # Gt and Lt are rare, and count as true: then the node is not called excluded.
    return holds.get(text(expression, "operator"), True)


CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
"""The key by which a ResourceQuota counts claims."""
TEMPLATES: Final = "count/resourceclaimtemplates.resource.k8s.io"
OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Before the names of taints that Kubernetes gives a node that is not well."""


class Cause(StrEnum):
    """What keeps a share from a node, or from every node."""

    GATED = "gated"
    QUOTA = "quota"
    NO_GPU = "noGpu"
    TOO_LARGE = "tooLarge"
    CORDONED = "cordoned"
    NOT_READY = "notReady"
    TAINTED = "tainted"
    NOT_SELECTED = "notSelected"
    OTHER_GPU = "otherGpu"
    UNHEALTHY = "unhealthy"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is known of a cluster; ``None``: the reader may not read it, or it was not needed.

    ``slices`` are gpu-share's, ``claims`` those of all namespaces, ``quotas`` the ResourceQuotas of the pod's.
    """

    nodes: Sequence[Object] | None = None
    slices: Sequence[Object] | None = None
    claims: Sequence[Object] | None = None
    quotas: Sequence[Object] | None = None


NOT_READ: Final = Cluster()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """What keeps a share from ``nodes`` (none is named: from every node), and what to do."""

    cause: Cause
    message: str
    hint: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The nodes whose GPUs could take a share (``None``: not known), and what keeps it from the others."""

    nodes: tuple[str, ...] | None
    hindrances: tuple[Hindrance, ...]


class _Obstacle(NamedTuple):
    """What keeps a share from one node: a taint, or a demand and the GPUs that meet it but for the cause."""

    cause: Cause
    taint: str = ""
    demand: Demand | None = None


def place(pod: Object, claims: Sequence[Object], cluster: Cluster) -> Placement:
    """Say where a pod with these claims could start, and what keeps it from elsewhere.

    Args:
        pod: as the webhook rewrote it; it may not exist yet.
        claims: those of its share; without their amounts nothing is known to be too large.
        cluster: what is known of it.
    """
    everywhere = [*_gates(pod), *_quotas(claims, cluster.quotas or ())]
    if cluster.slices is None:
        return Placement(nodes=None, hindrances=tuple(everywhere))
    wanted = [each for claim in claims for each in demands(claim)]
    nodes = {text(mapping(each, "metadata"), "name"): each for each in cluster.nodes or ()}
    # The slices of a removed node stay for a while.
    there = [each for each in gpus(cluster.slices, cluster.claims or ()) if cluster.nodes is None or each.node in nodes]
    by_node = defaultdict[str, list[Gpu]](list)
    for gpu in there:
        by_node[gpu.node].append(gpu)
    found = defaultdict[_Obstacle | None, list[str]](list)
    never = list(_never(wanted, there))
    for name, devices in by_node.items():
        found[_on_node(nodes.get(name, {}), pod) or _on_gpus(wanted, devices)].append(name)
    here = [
        _hindrance(each, names, [gpu for name in names for gpu in by_node[name]], pod)
        for each, names in found.items()
        if each is not None and not (never and each.cause is Cause.TOO_LARGE)
    ]
    return Placement(nodes=tuple(found[None]), hindrances=(*everywhere, *never, *here))


def _gates(pod: Object) -> Iterator[Hindrance]:
    if gates := [text(each, "name") for each in objects(mapping(pod, "spec"), "schedulingGates")]:
        hint = "the controller that set spec.schedulingGates has to remove it; the scheduler waits for that"
        if any(each.startswith("kueue.x-k8s.io/") for each in gates):
            namespace = text(mapping(pod, "metadata"), "namespace")
            hint = f"Kueue removes it once its queue has room: kubectl describe workloads.kueue.x-k8s.io -n {namespace}"
        yield Hindrance(cause=Cause.GATED, message=f"the pod has a scheduling gate: {some(gates)}", hint=hint)


def _quotas(claims: Sequence[Object], quotas: Sequence[Object]) -> Iterator[Hindrance]:
    """Yield the quotas that leave no room for one claim more, or for its devices."""
    wanted = Counter({CLAIMS: 1, TEMPLATES: 1})
    for need in (each for claim in claims for each in demands(claim)):
        wanted[f"{need.device_class}{contract.DEVICE_QUOTA}"] += need.number * need.asked.users
    for name, number in (each for claim in claims for each in counts(claim)):
        wanted[f"{name}{contract.DEVICE_QUOTA}"] += number
    for quota in quotas:
        hard, used = mapping(mapping(quota, "status"), "hard"), mapping(mapping(quota, "status"), "used")
        for key, number in wanted.items():
            most, taken = exact_value(hard.get(key)), exact_value(used.get(key)) or 0
            if most is not None and taken + number > most:
                name = text(mapping(quota, "metadata"), "name")
                there = f"ResourceQuota {name} allows {most} of {key}, and {taken} are used"
                message = f"{there}: no claim can be made that needs {number}"
                hint = f"end another pod with a share, or an operator raises {key} of ResourceQuota {name}"
                yield Hindrance(cause=Cause.QUOTA, message=message, hint=hint)


def _never(wanted: Sequence[Demand], there: Sequence[Gpu]) -> Iterator[Hindrance]:
    """Yield what no GPU of the cluster can hold, also when it is empty."""
    if not there:
        message = "no node publishes a GPU for sharing now"
        yield Hindrance(cause=Cause.NO_GPU, message=message, hint="gpu-share check shows an operator why")
    for need in wanted:
        largest = max((gpu.mib for gpu in there if _is_of(need, gpu)), default=need.asked.mib)
        if need.asked.mib > largest:
            fits = f"the largest GPU has {in_gib(largest)}, so the pod never fits; ask for {in_gib(largest)} or less"
            apart = f'{contract.SAME_GPU}: "false" lets containers of a new pod use several GPUs'
            hint = apart if len(need.names) > 1 else ""
            yield Hindrance(cause=Cause.TOO_LARGE, message=f"{_asks(need)}, and {fits}", hint=hint)


def _on_node(node: Object, pod: Object) -> _Obstacle | None:
    """Return the first thing in the scheduler's order that keeps a pod from a node."""
    if is_cordoned(node, pod):
        return _Obstacle(Cause.CORDONED)
    if taint := untolerated(node, pod):
        return _Obstacle(Cause.NOT_READY if taint.startswith(OF_KUBERNETES) else Cause.TAINTED, taint)
    return None if not node or is_selected(node, pod) else _Obstacle(Cause.NOT_SELECTED)


def _on_gpus(wanted: Sequence[Demand], devices: Sequence[Gpu]) -> _Obstacle | None:
    """Return the first demand that the GPUs of a node do not meet; each is looked at as if it were the only one."""
    for need in wanted:
        left = list(devices)
        for cause, fits in STAGES.items():
            left = [gpu for gpu in left if fits(need, gpu)]
            if len(left) < need.number:
                return _Obstacle(cause, demand=need)
    return None


def _is_of(need: Demand, gpu: Gpu) -> bool:
    return gpu.device_class == need.device_class and all(selects(each, gpu) is not False for each in need.selectors)


def _has_room(need: Demand, gpu: Gpu) -> bool:
    return all(free >= asked for free, asked in zip(gpu.free, need.asked, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many pods more a node's GPUs take, and how many each of them takes alone."""

    node: str
    pods: int
    gpus: tuple[tuple[Gpu, int], ...]


def rooms(claim: Object, cluster: Cluster, nodes: Collection[str]) -> list[Room]:
    """Count how many pods with this claim, which makes one demand, fit onto the GPUs of these nodes at once."""
    need = next(demands(claim))
    found = defaultdict[str, list[tuple[Gpu, int]]](list)
    for gpu in gpus(cluster.slices or (), cluster.claims or ()):
        if gpu.node in nodes and _is_of(need, gpu) and not gpu.taint and _has_room(need, gpu):
            number = min(free // asked for free, asked in zip(gpu.free, need.asked, strict=True) if asked)
            found[gpu.node].append((gpu, number))
    return [
        Room(node=node, pods=_together(need.number, [number for _, number in each]), gpus=tuple(each))
        for node, each in sorted(found.items())
    ]


def _together(width: int, numbers: Sequence[int]) -> int:
    """Return how many pods of ``width`` different GPUs each fit onto GPUs that take so many of them."""
    if width == 1:
        return sum(numbers)
    return max(
        (each for each in range(max(numbers) + 1) if sum(min(each, n) for n in numbers) >= each * width), default=0
    )


STAGES: Final = {
    Cause.OTHER_GPU: _is_of,
    Cause.TOO_LARGE: lambda need, gpu: gpu.mib >= need.asked.mib,
    Cause.UNHEALTHY: lambda _, gpu: not gpu.taint,
    Cause.FULL: _has_room,
}
"""What a GPU has to be, in this order: a cause is named only for GPUs that are as wanted otherwise."""


def _hindrance(obstacle: _Obstacle, names: Sequence[str], devices: Sequence[Gpu], pod: Object) -> Hindrance:
    if obstacle.demand is None:
        message, hint = _of_node(obstacle, names, pod)
    else:
        message, hint = _of_gpus(obstacle.cause, obstacle.demand, devices)
    return Hindrance(cause=obstacle.cause, message=f"{some(names)}: {message}", hint=hint, nodes=tuple(names))


def _of_node(obstacle: _Obstacle, names: Sequence[str], pod: Object) -> tuple[str, str]:
    match obstacle.cause:
        case Cause.CORDONED:
            return "cordoned, so it takes no new pods", f"an operator runs kubectl uncordon {names[0]}"
        case Cause.NOT_READY:
            return f"unhealthy (taint {obstacle.taint})", f"an operator runs kubectl describe node {names[0]}"
        case Cause.TAINTED:
            return f"the pod does not tolerate the taint {obstacle.taint}", TOLERATE
    labels = [f"{key}={value}" for key, value in mapping(mapping(pod, "spec"), "nodeSelector").items()]
    field = f"spec.nodeSelector ({some(labels)})" if labels else "spec.affinity"
    return f"excluded by {field} of the pod", SELECT


def _of_gpus(cause: Cause, need: Demand, devices: Sequence[Gpu]) -> tuple[str, str]:
    for earlier, fits in STAGES.items():
        if earlier is cause:
            break
        devices = [gpu for gpu in devices if fits(need, gpu)]
    match cause:
        case Cause.OTHER_GPU:
            return _other_gpu(need, devices)
        case Cause.TOO_LARGE:
            return f"{_asks(need)}, and the largest GPU there has {in_gib(max(gpu.mib for gpu in devices))}", ""
        case Cause.UNHEALTHY:
            reasons = some(sorted({gpu.taint for gpu in devices if gpu.taint}))
            return f"its GPUs get no new shares ({reasons})", UNHEALTHY
    return f"{_asks(need)}, and {_most_free(need, devices)}", WAIT


def _other_gpu(need: Demand, devices: Sequence[Gpu]) -> tuple[str, str]:
    models = [model for each in need.selectors for model in models_of(each)]
    there = some(sorted({gpu.model for gpu in devices}))
    if models and any(gpu.device_class == need.device_class for gpu in devices):
        change = f"write a model that is there into {contract.GPU_MODEL}, or remove the annotation"
        return f"no GPU is of model {some(models)}; there is {there}", change
    return f"no device is what the claim selects; there is {there}", "kubectl get resourceslices --output yaml"


def _most_free(need: Demand, devices: Sequence[Gpu]) -> str:
    """Say which amount no GPU has, or that none has all at once."""
    mib, compute = max(gpu.free.mib for gpu in devices), max(gpu.free.compute for gpu in devices)
    if mib < need.asked.mib:
        return f"no GPU has more than {in_gib(max(0, mib))} free"
    if compute < need.asked.compute:
        return f"no GPU has more than {max(0, compute)}% of compute free, of {need.asked.compute}%"
    few = f"fewer than {need.number} GPUs have" if need.number > 1 else "no GPU has"
    return f"{few} enough memory, compute and MPS clients free"


def in_gib(mib: int) -> str:
    """Write an amount in GiB where that takes one decimal, such as ``15.5Gi``, else in MiB."""
    whole, rest = divmod(mib * 10, GIB)
    return format_mib(mib) if rest or not whole % 10 else f"{whole / 10:g}Gi"


def _asks(need: Demand) -> str:
    several = len(need.names) > 1
    who = f"containers {some(need.names)} together ask" if several else f"container {need.names[0]} asks"
    return f"{who} for {in_gib(need.asked.mib)}"


TOLERATE: Final = "add it to spec.tolerations, or an operator adds it for all shares to webhook.shareTolerations"
SELECT: Final = (
    "correct the pod, or an operator adds the label to a node with GPUs; if your manifest does not ask for it, an "
    "operator runs gpu-share check"
)
UNHEALTHY: Final = "an operator looks up the reason; a GPU that is healthy again gets new shares again"
WAIT: Final = "wait until another share ends, or ask for less; no pod is preempted for a share"
"""What to do, as hints say it."""
