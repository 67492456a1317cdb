"""Read what GPUs are published and have left, and what claims ask of one. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from enforcer.quota.from_claims import parse_int, parse_mib
from gpushare import contract
from gpushare.annotation_values import parse_models
from gpushare.errors import QuantityError
from gpushare.patterns import Pattern, Search
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.prepared import allocated
from webhook.mutation.resourceclaims import ATTRIBUTES, model_expression

KINDS: Final = {contract.KIND_GPU: contract.DEVICE_CLASS, contract.KIND_MIG: contract.MIG_DEVICE_CLASS}
"""The DeviceClass of each kind of device that pods share."""
COUNTS: Final = (contract.MEMORY_COUNT_CLASS, contract.COMPUTE_COUNT_CLASS)
UNLIMITED: Final = 2**62
_IS: Final = Pattern(r'(?:"mode" in \S{1,64} && )?(\S{1,64})\.(mode|profile) == "([a-z0-9.+-]{1,64})"', 256)


class Amounts(NamedTuple):
    """MiB of memory, percent of compute, and users: what a GPU has left, or what is asked of it."""

    mib: int = 0
    compute: int = 0
    users: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A published GPU or MIG instance. ``taint`` is why it gets no new shares, empty where it does.

    ``device`` is its name in the pool, which is that of the node.
    """

    node: str
    attributes: Mapping[str, str]
    mib: int
    free: Amounts
    taint: str
    device: str = ""

    @property
    def device_class(self) -> str:
        """The DeviceClass by which claims ask for it; empty for what is no GPU."""
        return KINDS.get(self.attributes.get("kind", ""), "")

    @property
    def model(self) -> str:
        """Its model."""
        return self.attributes.get(contract.ATTRIBUTE_MODEL, "")


@dataclass(frozen=True, slots=True)
class Demand:
    """What the requests ``names`` of a claim ask of one GPU together, or of each of ``number`` GPUs.

    ``selectors`` are CEL expressions.
    """

    names: tuple[str, ...]
    device_class: str
    asked: Amounts
    number: int
    selectors: tuple[str, ...]


def gpus(slices: Iterable[Object], claims: Iterable[Object]) -> list[Gpu]:
    """Read the GPUs of gpu-share's ResourceSlices; ``claims`` are those of all namespaces."""
    used = defaultdict[tuple[str, str], list[Amounts]](list)
    for claim in claims:
        for result, _ in allocated(claim):
            used[text(result, "pool"), text(result, "device")].append(_asked(mapping(result, "consumedCapacity")))
    found = (
        _gpu(text(spec, "nodeName"), device, _sum(used[text(mapping(spec, "pool"), "name"), text(device, "name")]))
        for spec in (mapping(each, "spec") for each in slices)
        for device in objects(spec, "devices")
    )
    return [each for each in found if each.mib and each.device_class]


def _asked(amounts: Object) -> Amounts:
    mib, compute = (amounts.get(key) for key in (contract.CAPACITY_MEMORY, contract.CAPACITY_COMPUTE))
    return Amounts(parse_mib(mib) or 0, parse_int(compute) or 0, 1)


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    return Amounts(*map(sum, zip(Amounts(), *amounts, strict=True)))


def _gpu(node: str, device: Object, used: Amounts) -> Gpu:
    raw, capacity = mapping(device, "attributes"), mapping(device, "capacity")
    mib = parse_mib(mapping(capacity, contract.CAPACITY_MEMORY).get("value")) or 0
    # A MIG instance has one user, and no percentages. A time-sliced GPU has no MPS server to limit clients.
    most = UNLIMITED if device.get("allowMultipleAllocations") else 1
    whole = (mib, *(
        parse_int(mapping(capacity, key).get("value")) or most
        for key in (contract.CAPACITY_COMPUTE, contract.CAPACITY_CLIENTS)
    ))  # fmt: skip
    taints = [text(each, "value") or text(each, "key") for each in objects(device, "taints")]
    attributes = {key: _written(mapping(raw, key)) for key in raw}
    free = Amounts(*(has - taken for has, taken in zip(whole, used, strict=True)))
    return Gpu(node, attributes, mib, free, next(iter(taints), ""), text(device, "name"))


def _written(value: Object) -> str:
    number = value.get("int")
    return text(value, "string") or text(value, "version") or ("" if number is None else str(number))


def demands(claim: Object) -> Iterator[Demand]:
    """Yield what a claim asks of GPUs: its requests that have to be on one GPU together, and the others one by one."""
    devices = mapping(mapping(claim, "spec"), "devices")
    asked = {text(each, "name"): mapping(each, "exactly") for each in objects(devices, "requests")}
    alone = {name: each for name, each in asked.items() if each.get("deviceClassName") in KINDS.values()}
    for each in objects(devices, "constraints"):
        if each.get("matchAttribute") == contract.ATTRIBUTE_UUID:
            named = each.get("requests")
            chosen = [name for name in alone if not isinstance(named, list) or not named or name in named]
            if chosen:
                yield _demand({name: alone.pop(name) for name in chosen})
    yield from (_demand({name: each}) for name, each in alone.items())


def counts(claim: Object) -> Iterator[tuple[str, int]]:
    """Yield the amounts that a claim states for ResourceQuotas: DeviceClass, and number of devices that nobody gets."""
    for request in objects(mapping(mapping(claim, "spec"), "devices"), "requests"):
        for each in objects(request, "firstAvailable"):
            count = each.get("count", 1)
            if text(each, "deviceClassName") in COUNTS and isinstance(count, int):
                yield text(each, "deviceClassName"), count


def _demand(requests: Mapping[str, Object]) -> Demand:
    first = next(iter(requests.values()))
    count = first.get("count", 1)
    cel = (mapping(each, "cel") for one in requests.values() for each in objects(one, "selectors"))
    return Demand(
        names=tuple(requests), device_class=text(first, "deviceClassName"),
        asked=_sum(_asked(mapping(mapping(each, "capacity"), "requests")) for each in requests.values()),
        number=count if isinstance(count, int) else 1,
        selectors=tuple(dict.fromkeys(text(each, "expression") for each in cel)),
    )  # fmt: skip


def selects(expression: str, gpu: Gpu) -> bool | None:
    """Tell whether a CEL expression that the webhook writes selects a GPU; ``None`` for expressions of others."""
    if models_of(expression):
        pattern = expression.partition('matches("')[2].removesuffix('")')
        return Search(pattern, 64).search(gpu.model.lower()) is not None
    if (found := _IS.fullmatch(expression)) and found.group(1) == ATTRIBUTES:
        return gpu.attributes.get(found.group(2)) == found.group(3)
    return None


def models_of(expression: str) -> Sequence[str]:
    """Return the models that an expression of the webhook selects; none for any other expression."""
    words = expression.partition("[^0-9a-z])(")[2].partition(")(")[0].replace("[.]", ".").replace("|", ",")
    try:
        models = parse_models(words)
    except QuantityError:
        return ()
    return models if model_expression(models) == expression else ()
