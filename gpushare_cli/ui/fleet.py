"""The fleet as pages show it: nodes, their GPUs, the shares on them. One typed view of what was read.

``placement.gpus`` reads what is published and reserved, ``node_status`` what enforcers measure; both are put together
here and nothing is read a second time. What is not known is ``None``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enforcer.quota.from_claims import parse_int, parse_mib
from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.node_status import GpuUse, Use
from gpushare_cli.placement.gpus import Gpu, gpus
from gpushare_cli.prepared import allocated
from gpushare_cli.top.all_nodes import NodeAnswer, state_of
from gpushare_cli.words import clean

UNREAD: Final = "use not read"
"""The state of a GPU whose enforcer was not asked, or did not answer."""
UUID: Final = contract.ATTRIBUTE_UUID.partition("/")[2]
DRIVER_VERSION: Final = "driverVersion"


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
        return next((each.gpu.attributes.get(DRIVER_VERSION, "") for each in self.gpus), "")


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

    def fits(gpu: GpuView) -> bool:
        named = model.lower() in gpu.gpu.model.lower()
        return named and (not namespace or any(each.namespace == namespace for each in gpu.shares))

    kept = []
    for each in whole.nodes:
        mine = tuple(gpu for gpu in each.gpus if fits(gpu))
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
    found = defaultdict[tuple[str, str], list[Share]](list)
    for claim in claims:
        namespace, pod = text(mapping(claim, "metadata"), "namespace"), _user(claim)
        for result, _ in allocated(claim):
            place, consumed = (text(result, "pool"), text(result, "device")), mapping(result, "consumedCapacity")
            mib = parse_mib(consumed.get(contract.CAPACITY_MEMORY))
            if mib:
                compute = parse_int(consumed.get(contract.CAPACITY_COMPUTE)) or 0
                mine = tuple(uses.get((namespace, pod, devices.get(place, "")), ()))
                share = Share(namespace=namespace, pod=pod, reserved_mib=mib, compute=compute, uses=mine)
                found[place].append(share)
    return {place: _merged(each) for place, each in found.items()}


def _user(claim: Object) -> str:
    """Name the first pod that uses a claim; the claim itself where none does."""
    users = (text(each, "name") for each in objects(mapping(claim, "status"), "reservedFor"))
    return next(users, text(mapping(claim, "metadata"), "name"))


def _merged(shares: Sequence[Share]) -> list[Share]:
    """Put the requests of one pod on one GPU together: what its containers use is known of the pod alone."""
    found: dict[tuple[str, str], Share] = {}
    for each in shares:
        before = found.get(place := (each.namespace, each.pod), replace(each, reserved_mib=0, compute=0))
        mib, compute = before.reserved_mib + each.reserved_mib, before.compute + each.compute
        found[place] = replace(each, reserved_mib=mib, compute=compute)
    return sorted(found.values(), key=lambda each: (-each.reserved_mib, each.namespace, each.pod))
