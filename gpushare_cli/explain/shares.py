"""What each container of a pod asked for, and what it was given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import contract
from gpushare.main_container import main_container
from gpushare.pod_claims import containers
from gpushare.quantity import format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli import prepared
from gpushare_cli.explain.pod_record import PodRecord, container_statuses, requested, shortened
from gpushare_cli.terminal import NOT_AVAILABLE

NONE_OF_IT: Final = f"0Mi ({Reason.CLAIM_IN_USE})"
NO_GPU: Final = "no GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedShare:
    """What one request of a claim was given; ``limits`` are the driver's entries of the containers that use it.

    ``requested`` is the MiB of this request as the driver has it, ``reserved`` those of all of its pod on that GPU.
    """

    memory: str
    compute: str
    where: str
    limits: tuple[Object, ...] = ()
    requested: object = None
    reserved: int = 0


def given_to(record: PodRecord, container: Object) -> tuple[str, str]:
    """Say what a container was given, and on which GPUs."""
    used = list(record.used_claims(container))
    given = [each for claim, request in used for each in allocated(claim, request)]
    taken = any(record.first_pod_of(claim) for claim, _ in used)
    amounts = _amounts(container, given) if given else _without_claim(record, container)
    return NONE_OF_IT if taken else amounts, "; ".join(each.where for each in given)


def asked_by(record: PodRecord, container: Object) -> str:
    """Say what annotations ask for as they are now; where they say nothing, the container's request of the claim."""
    name, apps = text(container, "name"), objects(record.spec, "containers")
    main = main_container(record.annotations, apps) if apps else ""

    def written(wide: str, prefix: str) -> object:
        return record.annotations.get(prefix + name) or (record.annotations.get(wide) if name == main else None)

    if profile := written(contract.MIG_PROFILE, contract.MIG_PROFILE_OF):
        return f"MIG {shortened(profile)}"
    amounts = (written(contract.MEMORY, contract.MEMORY_OF), written(contract.COMPUTE, contract.COMPUTE_OF))
    if any(amounts):
        gpus = written(contract.GPUS, contract.GPUS_OF)
        several = f" of {shortened(gpus)} GPUs" if gpus not in {None, "1"} else ""
        return ", ".join(shortened(each) for each in amounts if each) + several
    asked = (_request(amount) for claim, request in record.used_claims(container)
             for _, amount in requested(claim, request))  # fmt: skip
    return ", ".join(filter(None, asked))


def _request(amounts: Object) -> str:
    memory, compute = amounts.get(contract.CAPACITY_MEMORY), amounts.get(contract.CAPACITY_COMPUTE)
    return ", ".join([*([str(memory)] if memory else []), *([f"{compute}%"] if compute else [])])


def has_run(status: Object) -> bool:
    """Tell from its entry in the pod's status whether a container was ever started."""
    states = [mapping(status, "state"), mapping(status, "lastState")]
    return bool(text(status, "containerID")) or any("running" in each or "terminated" in each for each in states)


def _without_claim(record: PodRecord, container: Object) -> str:
    """What is known of a share whose claim is not there: the webhook wrote the amount on the container."""
    entries = objects(record.spec, "resourceClaims")
    ours = {contract.CLAIM, *(text(each, "name") for each in entries)}
    if not any(text(used, "name") in ours for used in objects(mapping(container, "resources"), "claims")):
        return NO_GPU
    if record.claims is None:
        return "not known"
    name = text(container, "name")
    ran = any(has_run(each) for each in container_statuses(record.pod) if each.get("name") == name)
    written = _written(container) if ran and not list(record.used_claims(container)) else ""
    if written and contract.RESIZE_OF + name in record.annotations:
        return f"{written} at its start"
    return written or ("nothing" if record.has_ended else "nothing yet")


def _written(container: Object) -> str:
    variables = {each.get("name"): each.get("value") for each in objects(container, "env")}
    if profile := variables.get(contract.MIG_PROFILE_VARIABLE):
        return f"MIG {shortened(profile)}"
    memory, compute = variables.get(contract.MEMORY_MIB), variables.get(contract.MPS_THREAD_PERCENTAGE)
    if isinstance(memory, str) and memory.isascii() and memory.isdigit() and len(memory) < MAX_DIGITS:
        return _amount(int(memory), compute)
    return ""


MAX_DIGITS: Final = 18


def _amounts(container: Object, given: Sequence[AllocatedShare]) -> str:
    """What it may use: as the driver froze it, else as the webhook wrote it, else all that the claim holds for it."""
    name = text(container, "name")
    frozen = [(each, one) for one in given for each in one.limits if each.get("container") == name]
    if frozen:
        return "; ".join(_frozen(each, one) for each, one in frozen)
    return _written(container) or "; ".join(f"{each.memory}, {each.compute}" for each in given)


def _frozen(limit: Object, given: AllocatedShare) -> str:
    """One limit; with what its pod reserved of that GPU where its own request is of another amount."""
    mib = limit.get("memoryMiB")
    reserved = 0 if given.requested in (None, mib) else given.reserved
    beside = f" ({format_mib(reserved)} reserved)" if reserved else ""
    return _amount(mib, limit.get("computePercent"), limit.get("computeCap")) + beside


def _amount(mib: object, compute: object, cap: object = None) -> str:
    """Write memory and compute: what it reserved, else what others had not reserved at its start."""
    memory = format_mib(mib) if isinstance(mib, int) else NOT_AVAILABLE
    if compute:
        return f"{memory}, {shortened(compute)}%"
    return f"{memory}, cap {shortened(cap)}%" if cap else f"{memory}, no cap"


def allocated(claim: Object, request: str) -> Iterator[AllocatedShare]:
    """Yield what a request of a claim was allocated on our GPUs; an empty name is every request."""
    written = [mapping(each, "data") for each in objects(mapping(claim, "status"), "devices")]
    for result, data in prepared.allocated(claim):
        consumed = mapping(result, "consumedCapacity")
        # A MIG instance is not consumed in parts: it is known by what the driver wrote.
        if not (consumed or data.get("uuid")) or request not in {"", text(result, "request").partition("/")[0]}:
            continue
        compute = consumed.get(contract.CAPACITY_COMPUTE)
        mode, whole = data.get("mode"), _whole(data)
        yield AllocatedShare(
            memory=str(consumed.get(contract.CAPACITY_MEMORY) or (format_mib(whole) if whole else NOT_AVAILABLE)),
            compute=f"{compute}%" if compute not in (None, "0") else "no cap",
            where=f"{data.get('uuid') or result.get('device')}" + (f" ({mode})" if mode not in (None, "mps") else ""),
            limits=tuple(objects(data, "limits")),
            requested=data.get("memoryMiB"),
            reserved=sum(_whole(each) for each in written if each.get("uuid") == data.get("uuid")),
        )


def _whole(data: Object) -> int:
    found = data.get("memoryMiB")
    return found if isinstance(found, int) else 0


def sharing_containers(pod: Object) -> list[Object]:
    """Return the containers of a pod without our sidecar."""
    return [each for each in containers(pod) if each.get("name") != contract.SIDECAR]
