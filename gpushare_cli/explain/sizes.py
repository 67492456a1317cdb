"""How much memory would have sufficed: the amount to ask for after a kill."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from enforcer.dra.resize import ResizeBounds, ceiling_of, resized
from enforcer.quota.types import MIN_TOLERANCE_MIB, TOLERANCE_SHARE
from gpushare import contract
from gpushare.errors import ResizeRefused
from gpushare.kube_client import GARBAGE
from gpushare.main_container import main_container
from gpushare.quantity import GIB, format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.explain import pod_events
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord
from gpushare_cli.prepared import prepared_of
from webhook.mutation.rewrite import is_our_claim

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
    seen = pod_events.peaks(record)
    for name in dict.fromkeys(map(pod_events.container_of, pod_events.kills(record))):
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
    return Finding(type=FindingType.ADVICE, message=message, hint=hint, command=command, container=name)


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
