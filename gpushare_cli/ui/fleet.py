"""The fleet as pages show it: nodes, their GPUs, the shares on them. One typed view of what was read.

``placement.gpus`` reads what is published and reserved, ``node_status`` what enforcers measure; both are put together
here and nothing is read a second time. What is not known is ``None``. Also whether a share would fit: a pod as the form
describes it, rewritten by the webhook's code and placed by ``placement``.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from enforcer.quota.from_claims import parse_int, parse_mib
from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.inject import command, rewrite
from gpushare_cli.inject.workloads import pods
from gpushare_cli.node_status import GpuUse, Use
from gpushare_cli.placement.gpus import Gpu, gpus
from gpushare_cli.placement.placing import Cluster, Hindrance, Room, place, rooms
from gpushare_cli.prepared import allocated
from gpushare_cli.top.all_nodes import NodeAnswer, state_of
from gpushare_cli.words import clean
from webhook.mutation.resourceclaims import template_for

UNREAD: Final = "use not read"
"""The state of a GPU whose enforcer was not asked, or did not answer."""
UUID: Final = contract.ATTRIBUTE_UUID.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one pod reserved on one GPU, and what its containers use there."""

    namespace: str
    pod: str
    reserved_mib: int
    compute: int
    uses: tuple[Use, ...] = ()

    @property
    def used_mib(self) -> int | None:
        """MiB that its containers use; ``None`` where that is not known of one."""
        amounts = [each.used_mib for each in self.uses]
        return None if None in amounts or not amounts else sum(each or 0 for each in amounts)

    @property
    def state(self) -> str:
        """The worst state of its containers, in the words of ``gpu-share top``."""
        shown = [each.shown for each in self.uses]
        return next((each for each in ("killing", "over", "blind", "killed", "near") if each in shown), "ok") \
            if shown else UNREAD  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One published GPU. ``use`` is what its enforcer measured."""

    gpu: Gpu
    use: GpuUse | None
    state: str
    shares: tuple[Share, ...] = ()

    @property
    def reserved_mib(self) -> int:
        """MiB that claims hold of it."""
        return self.gpu.mib - self.gpu.free.mib

    @property
    def used_mib(self) -> int | None:
        """MiB in use, by whomever."""
        return self.use.used_mib if self.use else None

    @property
    def unaccounted_mib(self) -> int:
        """MiB in use that are counted for nobody."""
        return (self.use.unaccounted_mib or 0) if self.use else 0

    @property
    def uuid(self) -> str:
        """Its UUID; its device's name where the node does not publish it."""
        return self.gpu.attributes.get(UUID) or self.gpu.device

    @property
    def label(self) -> str:
        """How people call it: by its index where the node publishes one."""
        index = self.gpu.attributes.get("index")
        return f"GPU {index}" if index else self.gpu.device


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node with published GPUs, or with an enforcer. ``problem`` is why its use is not known or not current."""

    name: str
    gpus: tuple[GpuView, ...] = ()
    problem: str = ""
    cordoned: bool = False

    @property
    def driver(self) -> str:
        """Version of its NVIDIA driver; empty where it does not publish it."""
        return next((each.gpu.attributes.get("driverVersion", "") for each in self.gpus), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All nodes, by name."""

    nodes: tuple[NodeView, ...]

    def gpu(self, node: str, device: str) -> GpuView | None:
        """Find a GPU by its device's name."""
        mine = (gpu for each in self.nodes if each.name == node for gpu in each.gpus)
        return next((each for each in mine if each.gpu.device == device), None)

    def reserved(self) -> dict[str, int]:
        """Return the MiB that each namespace reserved, the largest first."""
        found = Counter[str]()
        for share in (share for node in self.nodes for gpu in node.gpus for share in gpu.shares):
            found[share.namespace] += share.reserved_mib
        return dict(found.most_common())


def fleet(
    slices: Iterable[Object], claims: Sequence[Object], nodes: Iterable[Object], answers: Sequence[NodeAnswer]
) -> Fleet:
    """Put together what the API server has, and what the enforcers answered so far."""
    by_node = defaultdict[str, list[Gpu]](list)
    for each in gpus(slices, claims):
        by_node[each.node].append(each)
    known = {each.node: each for each in answers}
    devices = {(each.node, each.device): each.attributes.get(UUID, "") for mine in by_node.values() for each in mine}
    shares = _shares(claims, answers, devices)
    cordoned = {text(each["metadata"], "name") for each in nodes if mapping(each, "spec").get("unschedulable") is True}
    names = sorted({*by_node, *known})
    found = (_node(each, by_node[each], known.get(each), shares, cordoned=each in cordoned) for each in names)
    return Fleet(nodes=tuple(found))


def matching(whole: Fleet, node: str, model: str, namespace: str) -> Fleet:
    """Keep the GPUs whose node and model have these texts in their names, and on which that namespace has a share."""
    kept = []
    for each in whole.nodes:
        named = [gpu for gpu in each.gpus if model.lower() in gpu.gpu.model.lower()]
        mine = tuple(gpu for gpu in named if not namespace or namespace in {share.namespace for share in gpu.shares})
        if node in each.name and (mine or not (model or namespace)):
            kept.append(replace(each, gpus=mine))
    return Fleet(nodes=tuple(kept))


def _node(
    name: str,
    devices: Sequence[Gpu],
    answer: NodeAnswer | None,
    shares: Mapping[tuple[str, str], Sequence[Share]],
    *,
    cordoned: bool,
) -> NodeView:
    uses = {each.uuid: each for each in answer.status.gpus} if answer and answer.status else {}
    views = []
    for device in devices:
        use, state = uses.get(device.attributes.get(UUID, "")), UNREAD
        if device.taint:
            state = f"unhealthy: {clean(device.taint)}"
        elif use is not None and answer is not None:
            state = state_of(use, answer)
        views.append(GpuView(gpu=device, use=use, state=state, shares=tuple(shares.get((name, device.device), ()))))
    views.sort(key=lambda each: (parse_int(each.gpu.attributes.get("index")) or 0, each.gpu.device))
    return NodeView(name=name, gpus=tuple(views), problem=answer.problem if answer else "", cordoned=cordoned)


def _shares(
    claims: Iterable[Object], answers: Iterable[NodeAnswer], devices: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], list[Share]]:
    """Return the shares by node and device; ``devices`` has the UUID of each."""
    uses = defaultdict[tuple[str, str, str], list[Use]](list)
    for status in (each.status for each in answers if each.status):
        for use in (use for gpu in status.gpus for use in gpu.uses):
            uses[use.namespace, use.pod, use.gpu].append(use)
    found = defaultdict[tuple[str, str], dict[tuple[str, str], Share]](dict)
    for claim in claims:
        user = text(mapping(claim, "metadata"), "namespace"), _user(claim)
        for result, _ in allocated(claim):
            place, consumed = (text(result, "pool"), text(result, "device")), mapping(result, "consumedCapacity")
            if mib := parse_mib(consumed.get(contract.CAPACITY_MEMORY)):
                compute = parse_int(consumed.get(contract.CAPACITY_COMPUTE)) or 0
                # What a pod's containers use is known of the pod alone, so its requests on one GPU are put together.
                if before := found[place].get(user):
                    mib, compute = mib + before.reserved_mib, compute + before.compute
                mine = tuple(uses.get((*user, devices.get(place, "")), ()))
                found[place][user] = Share(
                    namespace=user[0], pod=user[1], reserved_mib=mib, compute=compute, uses=mine
                )  # fmt: skip
    return {place: sorted(each.values(), key=_by_size) for place, each in found.items()}


def _by_size(share: Share) -> tuple[int, str, str]:
    return -share.reserved_mib, share.namespace, share.pod


def _user(claim: Object) -> str:
    """Name the first pod that uses a claim; the claim itself where none does."""
    users = (text(each, "name") for each in objects(mapping(claim, "status"), "reservedFor"))
    return next(users, text(mapping(claim, "metadata"), "name"))


FIELDS: Final[Mapping[str, str]] = {
    "memory": contract.MEMORY, "compute": contract.COMPUTE, "gpus": contract.GPUS, "model": contract.GPU_MODEL,
}  # fmt: skip
"""Fields of the form and the annotations that they become."""
MAIN: Final = "main"
NO_OPTIONS: Final = argparse.Namespace(namespace=None, namespaces=[])
"""Those of ``explain`` and ``inject``, with nothing given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where a share could start now, how many of them, and what keeps it from elsewhere; or why it would be denied."""

    rooms: tuple[Room, ...] = ()
    hindrances: tuple[Hindrance, ...] = ()
    denied: tuple[str, ...] = ()
    known: bool = True

    @property
    def pods(self) -> int:
        """So many pods of this size fit now."""
        return sum(each.pods for each in self.rooms)


def fit(form: Mapping[str, str], namespace: str, cluster: Cluster) -> Fit:
    """Say where a pod with this form's annotations and node selector could start now."""
    (there,) = pods(_pod(form))
    try:
        change = rewrite.change_of(there, command.admit_for([], NO_OPTIONS), namespace)
    except PolicyDenied as error:
        return Fit(denied=tuple(clean(str(each)) for each in error.problems))
    template = template_for(change.pod)
    if template is None:
        return Fit(denied=(f"{contract.MEMORY} is empty: write for example 4Gi",))
    found = place(change.pod, [template["spec"]], cluster)
    here = rooms(template["spec"], cluster, found.nodes or ())
    return Fit(rooms=tuple(here), hindrances=found.hindrances, known=found.nodes is not None)


def _pod(form: Mapping[str, str]) -> dict[str, Any]:
    annotations = {key: form[name].strip() for name, key in FIELDS.items() if form.get(name, "").strip()}
    chosen = (each.partition("=") for each in form.get("selector", "").split(",") if each.strip())
    selector = {key.strip(): value.strip() for key, _, value in chosen}
    spec = {"containers": [{"name": MAIN, "image": MAIN}], **({"nodeSelector": selector} if selector else {})}
    metadata = {"name": "pod", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
