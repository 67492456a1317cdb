"""What each container of a pod asked for and was given; and how much memory would have sufficed after a kill."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from enforcer.dra.resize import ResizeBounds, ceiling_of, resized
from enforcer.quota.types import MIN_TOLERANCE_MIB, TOLERANCE_SHARE
from gpushare import contract
from gpushare.errors import ResizeRefused
from gpushare.kube_client import GARBAGE
from gpushare.main_container import main_container
from gpushare.pod_claims import containers
from gpushare.quantity import GIB, format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli import prepared
from gpushare_cli.explain import pod_record
from gpushare_cli.explain.pod_record import Finding, FindingType, PodRecord, container_statuses, has_run, shortened
from gpushare_cli.prepared import prepared_of
from gpushare_cli.terminal import NOT_AVAILABLE
from webhook.mutation.rewrite import is_our_claim

NO_GPU: Final = "no GPU"


def given_to(record: PodRecord, container: Object) -> tuple[str, str]:
    """Say what a container was given, and on which GPUs.

    That is as the driver froze it, else as the webhook wrote it, else all that the claim holds for it.
    """
    used, name = list(record.used_claims(container)), text(container, "name")
    given = [each for claim, request in used for each in _given(claim, request, name)]
    amounts = _without_claim(record, container)
    if given:
        frozen = [amount for _, limits, _ in given for amount in limits]
        amounts = "; ".join(frozen) or _written(container) or "; ".join(amount for _, _, amount in given)
    taken = any(record.first_pod_of(claim) for claim, _ in used)
    return f"0Mi ({Reason.CLAIM_IN_USE})" if taken else amounts, "; ".join(where for where, _, _ in given)


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
             for _, amount in pod_record.requested(claim, request))  # fmt: skip
    return ", ".join(filter(None, asked))


def _request(amounts: Object) -> str:
    memory, compute = amounts.get(contract.CAPACITY_MEMORY), amounts.get(contract.CAPACITY_COMPUTE)
    return ", ".join([*([str(memory)] if memory else []), *([f"{compute}%"] if compute else [])])


def _without_claim(record: PodRecord, container: Object) -> str:
    """What is known of a share whose claim is not there, or gives none: the webhook wrote the amount."""
    entries = objects(record.spec, "resourceClaims")
    ours = {contract.CLAIM, *(text(each, "name") for each in entries)}
    if not any(text(used, "name") in ours for used in objects(mapping(container, "resources"), "claims")):
        return NO_GPU
    if record.claims is None:
        return "not known"
    name = text(container, "name")
    ran = any(has_run(each) for each in container_statuses(record.pod) if each.get("name") == name)
    written = _written(container) if ran else ""
    if written and contract.RESIZE_OF + name in record.annotations:
        return f"{written} at its start"
    return written or ("nothing" if record.has_ended else "nothing yet")


def _written(container: Object) -> str:
    variables = {text(each, "name"): each.get("value") for each in objects(container, "env")}
    if profile := variables.get(contract.MIG_PROFILE_VARIABLE):
        return f"MIG {shortened(profile)}"
    memory, compute = variables.get(contract.MEMORY_MIB), variables.get(contract.MPS_THREAD_PERCENTAGE)
    if isinstance(memory, str) and memory.isascii() and memory.isdigit() and len(memory) < MAX_DIGITS:
        return _amount(int(memory), compute)
    return ""


MAX_DIGITS: Final = 18


def _amount(mib: object, compute: object, cap: object = None) -> str:
    """Write memory and compute: what it reserved, else what others had not reserved at its start."""
    memory = format_mib(mib) if isinstance(mib, int) else NOT_AVAILABLE
    if compute:
        return f"{memory}, {shortened(compute)}%"
    return f"{memory}, cap {shortened(cap)}%" if cap else f"{memory}, no cap"


def _given(claim: Object, request: str, container: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield where a request of a claim got our GPUs (empty: every request), a container's limits there, and the amount.

    Beside a limit stands what its pod reserved of that GPU, where its own request is of another amount.
    """
    written = [mapping(each, "data") for each in objects(mapping(claim, "status"), "devices")]
    for result, data in prepared.allocated(claim):
        consumed = mapping(result, "consumedCapacity")
        # A MIG instance is not consumed in parts: it is known by what the driver wrote.
        if not (consumed or data.get("uuid")) or request not in {"", text(result, "request").partition("/")[0]}:
            continue
        compute, mode, whole = consumed.get(contract.CAPACITY_COMPUTE), data.get("mode"), _whole(data)
        memory = consumed.get(contract.CAPACITY_MEMORY) or (format_mib(whole) if whole else NOT_AVAILABLE)
        reserved = sum(_whole(each) for each in written if each.get("uuid") == data.get("uuid"))
        limits = list[str]()
        for each in (one for one in objects(data, "limits") if one.get("container") == container):
            own = data.get("memoryMiB") in (None, each.get("memoryMiB"))
            beside = f" ({format_mib(reserved)} reserved)" if reserved and not own else ""
            limits.append(_amount(each.get("memoryMiB"), each.get("computePercent"), each.get("computeCap")) + beside)
        where = f"{data.get('uuid') or result.get('device')}" + (f" ({mode})" if mode not in (None, "mps") else "")
        yield where, limits, f"{memory}, {f'{compute}%' if compute not in (None, '0') else 'no cap'}"


def _whole(data: Object) -> int:
    found = data.get("memoryMiB")
    return found if isinstance(found, int) else 0


def sharing_containers(pod: Object) -> list[Object]:
    """Return the containers of a pod without our sidecar."""
    return [each for each in containers(pod) if each.get("name") != contract.SIDECAR]


SMALL_STEP: Final = 256
"""MiB to which amounts below ``SMALL`` are rounded up; others are whole GiB."""
SMALL: Final = 2 * GIB


def sufficient_mib(peak_mib: int) -> int:
    """Return the amount that a container with this peak asks for: peak and default tolerance, rounded up."""
    needed = peak_mib + max(MIN_TOLERANCE_MIB, peak_mib // TOLERANCE_SHARE)
    step = SMALL_STEP if needed < SMALL else GIB
    return -(-needed // step) * step


def advice(record: PodRecord) -> Iterator[Finding]:
    """Yield for each container that was killed how much would have sufficed for its peak, and how to ask for it."""
    seen = pod_record.peaks(record)
    for name in dict.fromkeys(map(pod_record.container_of, pod_record.kills(record))):
        used, quota = seen.get(name, (0, 0))
        peak = max([used, *_peaks(record, name)])
        enough = sufficient_mib(peak)
        if quota and peak > quota and enough > (_limit_now(record, name) or quota):
            yield _advice(record, name, peak, enough)


def _advice(record: PodRecord, name: str, peak: int, enough: int) -> Finding:
    ceiling = ceiling_of(mapping(mapping(record.namespace or {}, "metadata"), "annotations"))
    if ceiling is not None and enough > ceiling:
        above = f"that is above this namespace's {contract.MAX_MEMORY} of {format_mib(ceiling)}, which an operator sets"
        command, hint = "", above
    elif _can_resize(record, name, enough, ceiling):
        command = f"gpu-share resize {record.name} {name} {format_mib(enough)}"
        hint = f"the pod has already reserved that much; run {command}"
    elif not any(map(is_our_claim, objects(record.spec, "resourceClaims"))):
        command = f"{contract.CAPACITY_MEMORY}: {format_mib(enough)}"
        hint = f"write {command} into capacity.requests of a new ResourceClaim, or of its template"
    else:
        command = f"{annotation_of(record.metadata, record.spec, name)}: {format_mib(enough)}"
        hint = f"set {command} {_place(record)}"
    message = f"container {name} used at most {peak} MiB; a quota of {format_mib(enough)} would have sufficed"
    return Finding(FindingType.ADVICE, message, hint, command=command, container=name)


def _peaks(record: PodRecord, container: str) -> list[int]:
    uses = record.usage.uses
    return [each.peak_mib for each in uses if each.container == container and each.peak_mib is not None]


def _limit_now(record: PodRecord, container: str) -> int | None:
    """The quota that a container has by now, after a resize; ``None`` where no claim says so."""
    entries = [each for claim in record.known_claims for each in objects(mapping(claim, "status"), "devices")]
    limits = [limit for each in entries for limit in objects(mapping(each, "data"), "limits")]
    found = [limit.get("memoryMiB") for limit in limits if limit.get("container") == container]
    return next((each for each in found if isinstance(each, int)), None)


def _can_resize(record: PodRecord, container: str, mib: int, ceiling: int | None) -> bool:
    """Whether ``gpu-share resize`` can give a container that much, by the rules by which the node answers."""
    if record.phase != "Running" or "deletionTimestamp" in record.metadata:
        return False
    for claim in record.known_claims:
        with suppress(ResizeRefused, StopIteration, *GARBAGE):
            prepared = prepared_of(claim, record.pod)
            if prepared is not None:
                resized(prepared, record.pod, container, mib, ResizeBounds(max_mib=ceiling))
                return True
    return False


def annotation_of(metadata: Object, spec: Object, container: str) -> str:
    """Name the annotation that asks for a container's memory: the one that is there, else the usual one."""
    own, apps = contract.MEMORY_OF + container, objects(spec, "containers")
    annotations = mapping(metadata, "annotations")
    is_main = bool(apps) and main_container(annotations, apps) == container
    return contract.MEMORY if is_main and own not in annotations else own


def workload_of(metadata: Object) -> tuple[str, str]:
    """Return kind and name of what made a pod: a Deployment instead of its ReplicaSet; both empty for a bare pod."""
    owner = next((each for each in objects(metadata, "ownerReferences") if each.get("controller")), {})
    kind, name = text(owner, "kind"), text(owner, "name")
    ending = f"-{text(mapping(metadata, 'labels'), 'pod-template-hash')}"
    if kind == "ReplicaSet" and len(ending) > 1 and name.endswith(ending):
        return "Deployment", name.removesuffix(ending)
    return kind, name


def _place(record: PodRecord) -> str:
    """Where the annotation has to be written: pods of a workload come from its template."""
    kind, name = workload_of(record.metadata)
    if not kind:
        return "on a new pod; gpu-share does not read the annotations of an existing pod again"
    return f"in the pod template of {kind} {name}"
