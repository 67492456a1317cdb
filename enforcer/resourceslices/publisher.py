"""Writes a node's ResourceSlices, and only when they say something new: every write wakes every scheduler.

A pool's slices share a generation. Whenever one has to change all are written with the next generation, so that a
reader never mixes old with new; the stale ones go last.
"""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from gpushare.contract import ATTRIBUTE_UUID, DRIVER, EXCLUDED_GPUS, UNHEALTHY
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.quantity import same_quantity
from gpushare.reasons import Reason

Object = dict[str, Any]

UUID: Final = ATTRIBUTE_UUID.rpartition("/")[2]
ATTEMPTS: Final = 3
"""Another writer of our name (the kubelet removes slices, an old enforcer still runs) is met by reading again."""
VAIN: Final = 3
"""So often the same slices are written that are never found as written, before a missing feature gate is blamed."""
GATES: Final = {"allowMultipleAllocations": "DRAConsumableCapacity", "taints": "DRADeviceTaints"}
"""Fields of a device that an API server drops without a word where their gate is off."""
DROPS: Final = "the API server drops fields of the ResourceSlices: enable {}, then run gpu-share check"
OPEN: Final = ("attributes", "capacity")
"""Maps of ours in which an entry we did not write is a difference; elsewhere the server may add defaults."""


class SlicePublisher:
    """Keeps what the API server says about one node's GPUs equal to what the enforcer says."""

    def __init__(self, cluster: KubeClient, node: str) -> None:
        self._cluster, self._node = cluster, node
        self._last: Sequence[Object] = ()
        self._vain = 0

    def publish(self, wanted: Sequence[Object]) -> bool:
        """Make these the node's slices. Returns whether anything was written.

        Args:
            wanted: of ``enforcer.resourceslices.devices.resource_slices``; their generation is chosen here.

        Raises:
            ClusterError: the API server refused, did not answer, others kept writing the same slices, or it keeps
                dropping what they say, and then they are written more and more rarely.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._publish(wanted)
            except ClusterError as error:
                if error.status not in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND} or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def unhealthy(self) -> dict[str, Reason]:
        """Read back, by UUID, which GPUs were tainted and why. Raises ``ClusterError``."""
        devices = [
            device
            for item in slices_of(self._cluster, self._node).values()
            for device in item["spec"].get("devices") or []
        ]
        found = {}
        for device in devices:
            values = [taint.get("value") for taint in device.get("taints") or [] if taint["key"] == UNHEALTHY]
            uuid = (device.get("attributes") or {}).get(UUID, {}).get("string")
            if uuid and values and values[0] in set(Reason):
                found[uuid] = Reason(values[0])
        return found

    def device_order(self) -> tuple[str, ...]:
        """Read back the names of the devices, in the order in which they are offered. Raises ``ClusterError``."""
        slices = (item for _, item in sorted(slices_of(self._cluster, self._node).items()))
        return tuple(device["name"] for item in slices for device in item["spec"].get("devices") or [])

    def _publish(self, wanted: Sequence[Object]) -> bool:
        existing = slices_of(self._cluster, self._node)
        if not needs_write(existing, wanted):
            self._last = ()
            return False
        self._vain = 1 + (self._vain if self._last == wanted else 0)
        gates = fields_dropped_by_server(existing, wanted) if self._vain > VAIN else ""
        # More and more rarely: a gate may be switched on one day, and every write wakes every scheduler.
        if gates and self._vain.bit_count() > 1:
            raise ClusterError(DROPS.format(gates))
        generation = 1 + max((item["spec"]["pool"]["generation"] for item in existing.values()), default=0)
        for body in wanted:
            self._write(with_generation(body, generation), existing.pop(body["metadata"]["name"], None))
        for item in existing.values():
            self._delete(item)
        self._last = wanted
        return True

    def _write(self, body: Object, old: Object | None) -> None:
        if old is None:
            self._cluster.create(path(RESOURCE_V1, "resourceslices"), body)
            return
        # What others noted in the metadata (the head of the audit log is one) stays.
        metadata = old["metadata"] | body["metadata"] | {"annotations": _annotations(body, old)}
        merged = body | {"apiVersion": body["apiVersion"], "metadata": metadata}
        self._cluster.replace(path(RESOURCE_V1, "resourceslices", body["metadata"]["name"]), merged)

    def _delete(self, item: Object) -> None:
        try:
            self._cluster.delete(path(RESOURCE_V1, "resourceslices", item["metadata"]["name"]))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def slices_of(cluster: KubeClient, node: str) -> dict[str, Object]:
    """Read our slices of a node, by name. Raises ``ClusterError``."""
    selector = f"spec.driver={DRIVER},spec.nodeName={node}"
    items, _ = cluster.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=selector)
    return {item["metadata"]["name"]: item for item in items}


def needs_write(existing: Mapping[str, Object], wanted: Sequence[Object]) -> bool:
    """Say whether the pool has to be written again: another set of slices, mixed generations, or other content."""
    if set(existing) != {body["metadata"]["name"] for body in wanted}:
        return True
    if len({item["spec"]["pool"]["generation"] for item in existing.values()}) > 1:
        return True
    return not all(_same_slice(body, existing[body["metadata"]["name"]]) for body in wanted)


def fields_dropped_by_server(existing: Mapping[str, Object], wanted: Sequence[Object]) -> str:
    """Name the feature gates whose fields we want on some device and find on none; empty where there is no such."""
    mine, theirs = (
        [each for body in bodies for each in body["spec"].get("devices") or []]
        for bodies in (wanted, existing.values())
    )
    gone = [field for field in GATES if any(map(_has(field), mine)) and not any(map(_has(field), theirs))]
    return " and ".join(f"the feature gate {GATES[field]}" for field in gone)


def _has(field: str) -> Callable[[Object], bool]:
    return lambda device: bool(device.get(field))


def with_generation(body: Object, generation: int) -> Object:
    """Return the slice as of that generation of its pool."""
    spec = body["spec"]
    return body | {"spec": spec | {"pool": spec["pool"] | {"generation": generation}}}


def _same_slice(mine: Object, theirs: Object) -> bool:
    owners = mine["metadata"].get("ownerReferences", [])
    aligned = with_generation(mine, theirs["spec"]["pool"]["generation"])
    if _annotations(mine, theirs) != (theirs["metadata"].get("annotations") or {}):
        return False
    return equivalent(aligned["spec"], theirs["spec"]) and owners == theirs["metadata"].get("ownerReferences", owners)


def _annotations(mine: Object, theirs: Object) -> Object:
    """What the slice's annotations have to be: others' stay, ours are as we want them."""
    kept = {key: value for key, value in (theirs["metadata"].get("annotations") or {}).items() if key != EXCLUDED_GPUS}
    return {**kept, **mine["metadata"].get("annotations", {})}


def equivalent(mine: object, theirs: object, *, closed: bool = False) -> bool:
    """Say whether the server's value is ours, however it writes quantities and whatever defaults it adds."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        # The server leaves out empty lists; what we want empty has to be empty there too.
        theirs = {key: [] for key, value in mine.items() if value == []} | theirs
        if not set(mine) <= set(theirs) or (closed and set(mine) != set(theirs)):
            return False
        return all(equivalent(value, theirs[key], closed=key in OPEN) for key, value in mine.items())
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(equivalent, mine, theirs))
    if isinstance(mine, str) and isinstance(theirs, str) and mine != theirs:
        return same_quantity(mine, theirs)
    return mine == theirs
