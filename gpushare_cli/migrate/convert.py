"""Turn what a pod asks of another system into annotations of gpu-share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from gpushare import contract
from gpushare.findings import Findings, collect
from gpushare.quantity import GIB, MAX_GPUS, MIB, WHOLE_GPU_PERCENT, exact_value, format_mib
from gpushare.raw_objects import mapping
from gpushare_cli.migrate import dialects
from gpushare_cli.migrate.dialects import ASKS, PARTS, Dialect, Field, Means, Pod, asks

_MOST_MIB: Final = 1024 * GIB
"""No GPU has more memory: such a number was written in another unit."""
_MEMORY: Final = frozenset({Means.MEMORY, Means.PART, Means.SLICES, Means.REPLICA})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What no manifest says: MiB of a card, MiB of one of a resource, replicas of a GPU, and whether by MPS."""

    card: int | None = None
    units: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was read in a pod and what is written in its place, both as people write it, and the JSON patch.

    ``removed`` goes besides, ``stays`` was read and has no effect any more, ``lost`` has no equivalent.
    """

    dialect: str
    read: tuple[str, ...]
    written: Mapping[str, str]
    removed: tuple[str, ...]
    stays: tuple[str, ...]
    lost: tuple[str, ...]
    patch: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Share:
    mib: int
    percent: int | None
    gpus: int


def convert(pod: Pod, known: Known) -> Conversion | None:
    """Convert one pod; ``None`` where it asks no other system for a share. Whole GPUs are left as they are.

    Raises:
        PolicyDenied: something cannot be converted without guessing; each problem names field, value and fix.
    """
    return collect(_convert, pod, known)


def _convert(findings: Findings, pod: Pod, known: Known) -> Conversion | None:
    for key, where in _asked_elsewhere(pod):
        findings.problem(where, f"{key} cannot be converted: {dialects.UNKNOWN[key]}; write {contract.MEMORY} by hand")
    found = dialects.asking(pod, known.replicas)
    if not found:
        return None
    (dialect, fields), *others = found
    _check_alone(findings, pod, fields, [each for _, more in others for each in more])
    for each in fields:
        if each.row.means is Means.REFUSED and str(each.value) not in ("", *each.row.fine):
            findings.problem(each.path, f"{each.value!s:.80} has no equivalent; {each.row.fix}")
    shares, lost = dict[str, _Share](), list[str]()
    for name, mine in _by_container(pod, dialect, fields).items():
        if (share := findings.attempt(_share, dialect, mine, known)) is not None:
            shares[name] = share
            lost += _lost(dialect, mine, share, known)
    meant = [each for each in fields if each.row.means is not Means.NOTHING]
    lost += [each.text for each in fields if each.row.means is Means.NOTHING]
    written = _annotations(pod, dialect, shares) | _models(fields)
    removed = _removed(pod, dialect)
    gone = (*_paths(pod, fields), *(f"/spec/{key}" for key in removed))
    # Labels and variables stay: without their system they have no effect, and a selector or a program may need them.
    return Conversion(
        dialect=dialect.name,
        read=tuple(each.text for each in meant),
        written=written,
        removed=tuple(f"{key}: {'true' if value is True else value}" for key, value in removed.items()),
        stays=tuple(each.text for each in meant if each.path.startswith("metadata.labels") or ".env[" in each.path),
        lost=tuple(dict.fromkeys(lost)),
        patch=(*({"op": "remove", "path": path} for path in gone), *_additions(pod, written)),
    )


def _asked_elsewhere(pod: Pod) -> Iterator[tuple[str, str]]:
    for key in mapping(mapping(pod, "metadata"), "annotations").keys() & dialects.UNKNOWN.keys():
        yield key, f"metadata.annotations[{key}]"
    for section, _, container in dialects.containers(pod):
        for part in PARTS:
            for key in mapping(mapping(container, "resources"), part).keys() & dialects.UNKNOWN.keys():
                yield key, f"spec.{section}[{container.get('name')}].resources.{part}[{key}]"


def _check_alone(findings: Findings, pod: Pod, fields: Sequence[Field], others: Iterable[Field]) -> None:
    """Find what asks for GPUs beside the fields of one dialect: which of them counts is not ours to say."""
    read = {each.path for each in fields}
    for each in (*others, *dialects.whole_gpus(pod)):
        if each.path not in read and each.row.means in ASKS:
            read.add(each.path)
            findings.problem(each.path, f"{each.value} asks for GPUs beside {fields[0].key}; remove one of the two")
    for key in mapping(mapping(pod, "metadata"), "annotations"):
        if contract.is_ours(key):
            findings.problem(f"metadata.annotations[{key}]", f"is there beside {fields[0].key}; remove one of the two")


def _by_container(pod: Pod, dialect: Dialect, fields: Sequence[Field]) -> dict[str, list[Field]]:
    """Return the fields of each container with a share, those for the pod among them."""
    names = [str(each.get("name")) for _, _, each in dialects.containers(pod)]
    for_pod = [each for each in fields if not each.container]
    found = {name: [each for each in fields if each.container == name] for name in names}
    if any(each.row.means in ASKS for each in for_pod):
        found[_target(pod, dialect, for_pod, names)] += for_pod
    else:
        found = {name: mine + for_pod for name, mine in found.items() if mine}
    for each in fields:
        if each.container and each.container not in names:
            raise each.refusal(f"is for a container that the pod does not have; it has {', '.join(names)}")
    return {name: mine for name, mine in found.items() if any(asks(each) or each.row.means in ASKS for each in mine)}


def _target(pod: Pod, dialect: Dialect, for_pod: Sequence[Field], names: Sequence[str]) -> str:
    for each in for_pod:
        if each.row.means is Means.CONTAINER:
            if each.value not in names:
                raise each.refusal(f"is not a container of the pod; it has {', '.join(names)}")
            return str(each.value)
    apps = [str(each.get("name")) for section, _, each in dialects.containers(pod) if section == dialects.SECTIONS[-1]]
    if not apps or (len(apps) > 1 and not dialect.first):
        fix = f"write {contract.MEMORY_OF}<container> by hand, and remove it"
        raise for_pod[0].refusal(f"does not say which container of {', '.join(names)} it is for; {fix}")
    return apps[0]


def _share(dialect: Dialect, mine: Sequence[Field], known: Known) -> _Share:
    counts = [_number(each) for each in mine if each.row.means is Means.COUNT]
    gpus = counts[0] if counts else 1
    compute = _compute(dialect, mine, known)
    size = _size(mine)
    part = _part(size, known) if size else {"card": Fraction(1), "compute": compute}.get(dialect.rest)
    field = size or mine[0]
    all_compute = compute is not None and compute >= 1
    if (all_compute and dialect.exclusive) or (part == 1 and (compute is None or all_compute)):
        raise field.refusal(
            f"asks for whole GPUs, which is not a share; write {dialects.GPU}: {ceil((compute or 1) * gpus)} instead"
        )
    if gpus.denominator != 1 or gpus > MAX_GPUS:
        raise field.refusal(f"is for {gpus} GPUs; a container may have shares of 1 to {MAX_GPUS}: write as many")
    mib = _mib(field, part, known) if part is not None or size else 0
    if not mib:
        raise field.refusal(
            f"asks for no memory; add the field of {dialect.name} that does, or write {contract.MEMORY} by hand"
        )
    _check_limits(mine, size, compute)
    return _Share(mib, None if compute is None else _percent(field, compute), int(gpus))


def _number(each: Field) -> Fraction:
    number = exact_value(each.value)
    if number is None or number <= 0:
        raise each.refusal("is not a number above zero; write one")
    return number


def _size(mine: Sequence[Field]) -> Field | None:
    """Return the field that says how much memory."""
    sizes = [each for each in mine if each.row.means in _MEMORY]
    sizes = sizes or [each for each in mine if each.row.means is Means.MEMORY_LIMIT and each.row.unit]
    if len(sizes) > 1:
        raise sizes[1].refusal(f"is a second amount beside {sizes[0].key}; remove one of the two")
    return sizes[0] if sizes else None


def _compute(dialect: Dialect, mine: Sequence[Field], known: Known) -> Fraction | None:
    """Return the part of each GPU's compute."""
    for each in mine:
        if each.row.means is Means.COMPUTE:
            return _number(each) * (each.row.unit or 1)
        if each.row.means is Means.REPLICA and each.key in known.replicas and (dialect.mps or known.mps):
            return Fraction(WHOLE_GPU_PERCENT // known.replicas[each.key], WHOLE_GPU_PERCENT)
    return None


def _part(size: Field, known: Known) -> Fraction | None:
    """Return the part of the card's memory; ``None`` where the field is an amount."""
    if size.row.means is Means.PART:
        return _number(size) * (size.row.unit or 1)
    if size.row.means is not Means.REPLICA:
        return None
    if size.key not in known.replicas:
        raise size.refusal(f"is a replica of unknown size; give --replicas {size.key}=4 if there are 4 of each GPU")
    if _number(size) != 1:
        raise size.refusal("replicas may be of several GPUs; write 1, or whole GPUs")
    return Fraction(1, known.replicas[size.key])


def _mib(size: Field, part: Fraction | None, known: Known) -> int:
    """Return the memory: amounts rounded up as everywhere, parts down, so that all parts of a card fit on it."""
    if part is not None:
        if known.card is None:
            raise size.refusal("is a part of the card's memory; give that memory, for example --card 80Gi")
        mib = floor(part * known.card)
    elif size.row.means is Means.SLICES:
        if _number(size) != 1:
            raise size.refusal("slices may be of several GPUs; write 1 of a larger size")
        mib = ceil((exact_value(size.star) or 0) * (size.row.unit or 1))
    elif (unit := known.units.get(size.key, size.row.unit)) is None:
        raise size.refusal(
            f"has no unit; give --unit {size.key}=1Gi or --unit {size.key}=1Mi, as its device plugin has"
        )
    else:
        mib = ceil(_number(size) * unit)
    if mib > (known.card or _MOST_MIB):
        raise size.refusal(f"means {format_mib(mib)}, more than the card has; correct it, --unit or --card")
    return mib


def _percent(field: Field, compute: Fraction) -> int:
    percent = compute * WHOLE_GPU_PERCENT
    if percent.denominator != 1 or not 1 <= percent <= WHOLE_GPU_PERCENT:
        raise field.refusal(f"comes with {float(percent):g} % of compute; write a whole percentage from 1 to 100")
    return int(percent)


def _check_limits(mine: Sequence[Field], size: Field | None, compute: Fraction | None) -> None:
    """Refuse memory that is lent: a container that uses it would be killed. Less compute only makes it slower."""
    for each in mine:
        if each.row.means is Means.MEMORY_LIMIT and size not in (each, None):
            part = size.row.means is Means.PART
            if _number(each) * (1 if part else Fraction(1, MIB)) != _number(size) * (size.row.unit or 1):
                raise each.refusal(
                    f"is not the {size.value} of {size.key}; here both are one: write the memory it needs"
                )
        if each.row.means is Means.COMPUTE_LIMIT and _number(each) * (each.row.unit or 1) < (compute or 0):
            raise each.refusal("is less than what is reserved; correct one of the two")


def _lost(dialect: Dialect, mine: Sequence[Field], share: _Share, known: Known) -> Iterator[str]:
    """Yield what of a container's share has no equivalent."""
    for each in mine:
        if each.row.means is Means.COMPUTE_LIMIT and _number(each) * (each.row.unit or 1) * 100 != share.percent:
            yield f"{each.text}: more compute than is reserved, while the GPU is idle"
        if each.row.means is Means.REPLICA and not known.mps:
            yield f"{each.text}: it had no limit of memory of its own; {format_mib(share.mib)} is its part of the card"
    if _size(mine) is None:
        yield f"{mine[0].text}: names no memory; {dialect.name} then gives {format_mib(share.mib)} of this card"
    if share.percent == WHOLE_GPU_PERCENT:
        yield f"{mine[0].text}: a GPU for itself; containers that reserve no compute may be placed beside it"
    if share.gpus > 1:
        yield f"{mine[0].text}: shares of several GPUs need nodes in the mode {contract.TIME_SLICING}"


def _annotations(pod: Pod, dialect: Dialect, shares: Mapping[str, _Share]) -> dict[str, str]:
    """Write the shares: for the pod if it has one container, else each by the container's name."""
    alone = len(list(dialects.containers(pod))) == 1
    written = dict[str, str]()
    for name, share in shares.items():
        keys = (contract.MEMORY, contract.COMPUTE, contract.GPUS)
        if not alone:
            keys = (contract.MEMORY_OF + name, contract.COMPUTE_OF + name, contract.GPUS_OF + name)
        percent = None if share.percent is None else f"{share.percent}%"
        values = (format_mib(share.mib), percent, str(share.gpus) if share.gpus > 1 else None)
        written |= {key: value for key, value in zip(keys, values, strict=True) if value is not None}
    return written | ({contract.SAME_GPU: "false"} if len(shares) > 1 and not dialect.one_gpu else {})


def _models(fields: Sequence[Field]) -> dict[str, str]:
    """Write the models. Some systems write dashes for the spaces of a name: either spelling is the card."""
    names = [name.strip() for each in fields if each.row.means is Means.MODEL for name in str(each.value).split(",")]
    both = dict.fromkeys(spelled for name in names for spelled in (name, name.replace("-", " ")))
    return {contract.GPU_MODEL: ",".join(both)} if both else {}


def _removed(pod: Pod, dialect: Dialect) -> dict[str, Any]:
    """Return the fields of the pod's spec that go."""
    spec = mapping(pod, "spec")
    going = {"schedulerName": dialect.schedulers, "hostIPC": (True,) if dialect.host_ipc else ()}
    return {key: spec[key] for key, values in going.items() if spec.get(key) in values}


def _paths(pod: Pod, fields: Sequence[Field]) -> Iterator[str]:
    """Yield the places of all fields that go."""
    for section, index, container in dialects.containers(pod):
        here = f"spec.{section}[{container.get('name')}].resources."
        if keys := {each.key for each in fields if each.path.startswith(here)}:
            yield from _without(mapping(container, "resources"), keys, f"/spec/{section}/{index}/resources")
    yield from (_pointer("/metadata/annotations", each.key) for each in fields if each.path.startswith("metadata.a"))


def _without(resources: Mapping[str, Any], keys: set[str], pointer: str) -> list[str]:
    """Return what to remove, so that no empty mapping is left."""
    left = {part: mapping(resources, part).keys() - keys for part in PARTS if mapping(resources, part).keys() & keys}
    if not any(left.values()) and left.keys() == resources.keys():
        return [pointer]
    paths = list[str]()
    for part, others in left.items():
        gone = [key for key in mapping(resources, part) if key in keys]
        paths += [_pointer(f"{pointer}/{part}", key) for key in gone] if others else [f"{pointer}/{part}"]
    return paths


def _additions(pod: Pod, written: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        yield {"op": "add", "path": "/metadata", "value": {"annotations": dict(written)}}
    elif not isinstance(metadata.get("annotations"), dict):
        yield {"op": "add", "path": "/metadata/annotations", "value": dict(written)}
    else:
        for key, value in written.items():
            yield {"op": "add", "path": _pointer("/metadata/annotations", key), "value": value}


def _pointer(parent: str, key: str) -> str:
    return f"{parent}/{key.replace('~', '~0').replace('/', '~1')}"
