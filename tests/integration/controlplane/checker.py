"""An auditor of placement that shares no code with the product: slices and claims in, broken promises out.

It believes neither the annotations nor the webhook: what a device offers stands in the ResourceSlices, what is taken
from it in the allocations of all ResourceClaims, and each allocation has to consume at least what its request asked.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

Object = dict[str, Any]
Device = tuple[str, str, str]
"""Driver, pool and name."""
BINARY: Final = {name: Fraction(2) ** power for name, power in (("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40))}
DECIMAL: Final = {name: Fraction(10) ** power for name, power in (("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found: ``problems`` is empty when every promise can be kept; ``per_device`` counts GPU shares."""

    problems: list[str]
    claims: int
    shares: int
    per_device: dict[Device, int]


def quantity(text: str) -> Fraction:
    """Read a Kubernetes quantity exactly."""
    for suffix, factor in (*BINARY.items(), *DECIMAL.items()):
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)


def audit(slices: Iterable[Object], claims: Iterable[Object], driver: str) -> Audit:
    """Add up what all claims took from each device of ``driver`` and compare it with what the device has."""
    offered = offers(slices, driver)
    taken: dict[Device, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    per_device: Counter[Device] = Counter()
    problems: list[str] = []
    count = 0
    for claim in claims:
        results = allocated(claim, driver)
        count += bool(results)
        problems += _same_device_problems(claim, results)
        for result in results:
            device = (result["driver"], result["pool"], result["device"])
            problems += _result_problems(claim, result, offered)
            consumed = result.get("consumedCapacity") or {}
            if consumed:
                per_device[device] += 1
            for name, amount in consumed.items():
                taken[device][name] += quantity(amount)
    problems += _over_committed(offered, taken)
    return Audit(problems=problems, claims=count, shares=sum(per_device.values()), per_device=dict(per_device))


def offers(slices: Iterable[Object], driver: str) -> dict[Device, dict[str, Fraction]]:
    """Capacity by device; of a pool only its newest generation counts."""
    mine = [each["spec"] for each in slices if each["spec"]["driver"] == driver]
    newest: dict[str, int] = {}
    for spec in mine:
        pool = spec["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
    return {
        (driver, spec["pool"]["name"], device["name"]): {
            name: quantity(each["value"]) for name, each in (device.get("capacity") or {}).items()
        }
        for spec in mine
        if spec["pool"]["generation"] == newest[spec["pool"]["name"]]
        for device in spec["devices"]
    }


def allocated(claim: Object, driver: str) -> list[Object]:
    """What a claim was given of a driver's devices; empty while it has no allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return [result for result in results if result["driver"] == driver]


def _result_problems(claim: Object, result: Object, offered: dict[Device, dict[str, Fraction]]) -> list[str]:
    device = (result["driver"], result["pool"], result["device"])
    who = f"{claim['metadata']['namespace']}/{claim['metadata']['name']} request {result['request']}"
    if device not in offered:
        return [f"{who}: {'/'.join(device)} is in no ResourceSlice"]
    consumed = {name: quantity(text) for name, text in (result.get("consumedCapacity") or {}).items()}
    asked = _asked(claim, result["request"])
    short = [
        f"{who}: asked for {float(amount):g} {name}, got {float(consumed.get(name, Fraction(0))):g}"
        for name, amount in asked.items()
        if consumed.get(name, Fraction(0)) < amount
    ]
    if offered[device] and not consumed:
        short.append(f"{who}: took all of {'/'.join(device)} and consumed nothing of it")
    return short


def _asked(claim: Object, request: str) -> dict[str, Fraction]:
    for each in claim["spec"]["devices"]["requests"]:
        if each["name"] == request:
            capacity = (each.get("exactly") or {}).get("capacity") or {}
            return {name: quantity(text) for name, text in (capacity.get("requests") or {}).items()}
    return {}


def _same_device_problems(claim: Object, results: list[Object]) -> list[str]:
    """A ``matchAttribute`` over UUIDs means one device."""
    problems = []
    for constraint in claim["spec"]["devices"].get("constraints") or []:
        bound = constraint.get("requests") or [each["name"] for each in claim["spec"]["devices"]["requests"]]
        devices = {(each["pool"], each["device"]) for each in results if each["request"] in bound}
        if "matchAttribute" in constraint and len(devices) > 1:
            problems.append(
                f"{claim['metadata']['name']}: {sorted(bound)} were to be on one GPU, got {sorted(devices)}"
            )
    return problems


def _over_committed(offered: dict[Device, dict[str, Fraction]], taken: dict[Device, dict[str, Fraction]]) -> list[str]:
    return [
        f"{'/'.join(device)}: {float(amount):g} {name} promised of {float(offered[device].get(name, Fraction(0))):g}"
        for device, amounts in taken.items()
        if device in offered
        for name, amount in amounts.items()
        if amount > offered[device].get(name, Fraction(0))
    ]
