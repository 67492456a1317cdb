"""Read the objects of NVIDIA's DRA driver: claims that it was allocated, and the devices that it publishes. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from enforcer.quota.from_claims import parse_bytes
from gpushare.raw_objects import Object, mapping, objects, text

DRIVER: Final = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as its slice describes it. ``capacity`` in bytes, ``None`` where the slice has none."""

    uuid: str
    kind: str
    parent: str
    capacity: int | None
    shareable: bool


def kept_claim(claim: Object, node: str) -> dict[str, Any] | None:
    """Keep of an allocated claim what is read; ``None`` where it is not allocated, or on another node.

    Of other drivers' claims only their names are kept: a claim that a pod names and that is not there gives no quota.
    """
    allocation = mapping(mapping(claim, "status"), "allocation")
    if not allocation or _elsewhere(mapping(allocation, "nodeSelector"), node):
        return None
    results, metadata = results_of(claim), mapping(claim, "metadata")
    return {
        "metadata": {key: metadata.get(key) for key in ("namespace", "name", "uid")},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": objects(mapping(claim, "status"), "reservedFor") if results else [],
        },
    }


def results_of(claim: Object) -> list[Object]:
    """Return what a claim was allocated by the driver."""
    devices = mapping(mapping(mapping(claim, "status"), "allocation"), "devices")
    return [each for each in objects(devices, "results") if each.get("driver") == DRIVER]


def devices_of_pools(node: str, slices: Iterable[Object]) -> Mapping[str, Mapping[str, Device | None]]:
    """Read the driver's devices of this node, by pool and name; ``None`` for a name that two devices have.

    Of a pool the newest generation counts, as for the scheduler, and only if all slices of that are there.
    """
    pools: dict[str, list[Object]] = defaultdict(list)
    for spec in (mapping(each, "spec") for each in slices):
        if spec.get("driver") == DRIVER and spec.get("nodeName") == node:
            pools[text(mapping(spec, "pool"), "name")].append(spec)
    return {name: _devices(newest) for name, specs in pools.items() if (newest := _newest(specs))}


def _newest(specs: Sequence[Object]) -> list[Object]:
    """Return the slices of the newest generation; none where some are missing."""
    newest = max(_number(each, "generation") for each in specs)
    found = [each for each in specs if _number(each, "generation") == newest]
    return found if all(_number(each, "resourceSliceCount") == len(found) for each in found) else []


def _devices(specs: Sequence[Object]) -> Mapping[str, Device | None]:
    found: dict[str, Device | None] = {}
    for raw in (each for spec in specs for each in objects(spec, "devices")):
        name = text(raw, "name")
        found[name] = None if name in found else _read_device(raw)
    return found


def _read_device(raw: Object) -> Device:
    return Device(
        uuid=_attribute(raw, "uuid"), kind=_attribute(raw, "type"), parent=_attribute(raw, "parentUUID"),
        capacity=parse_bytes(mapping(mapping(raw, "capacity"), "memory").get("value")),
        shareable=raw.get("allowMultipleAllocations") is True,
    )  # fmt: skip


def _attribute(raw: Object, name: str) -> str:
    attributes = mapping(raw, "attributes")
    return text(mapping(attributes, name) or mapping(attributes, f"{DRIVER}/{name}"), "string")


def _elsewhere(selector: Object, node: str) -> bool:
    """Tell whether an allocation is for other nodes: the scheduler writes their names where devices are of a node."""
    terms = objects(selector, "nodeSelectorTerms")
    return bool(terms) and not any(_may_be(term, node) for term in terms)


def _may_be(term: Object, node: str) -> bool:
    fields = objects(term, "matchFields")
    return all(
        each.get("key") != "metadata.name" or each.get("operator") != "In" or node in (each.get("values") or ())
        for each in fields
    )


def _number(spec: Object, name: str) -> int:
    found: Any = mapping(spec, "pool").get(name)
    return found if isinstance(found, int) else 0
