"""How much memory a workload should ask for: the rule, over what was measured of its containers.

The amount is that which ``explain`` names after a kill: the peak, the tolerance of a quota, rounded up.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare.pod_claims import containers
from gpushare.quantity import DEFAULT_MIN_MIB, format_mib
from gpushare.raw_objects import Object, mapping, moment, text
from gpushare_cli.explain.pod_record import container_statuses
from gpushare_cli.explain.sizes import annotation_of, sufficient_mib, workload_of
from gpushare_cli.placement.placing import in_gib

Place = tuple[str, str, str]
"""Namespace, pod and container."""
SIGKILLED: Final = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """MiB that a container of a pod reserved, and the most that it used (``None``: not known), as its enforcer says.

    ``refused``: it was refused memory, or was killed for it, or an earlier pod with a larger share used more.
    """

    reserved_mib: int
    peak_mib: int | None
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one container of one pod; ``seconds`` is how long the pod has run."""

    namespace: str
    workload: str
    container: str
    annotation: str
    amounts: Amounts
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What one container of a workload should ask for; ``advised_mib`` is what it has where there is no advice."""

    namespace: str
    workload: str
    container: str
    pods: int
    reserved_mib: int
    peak_mib: int | None
    advised_mib: int
    annotation: str
    why: str

    @property
    def frees_mib(self) -> int:
        """MiB that all its pods together would reserve less; negative where they need more."""
        return (self.reserved_mib - self.advised_mib) * self.pods

    @property
    def write(self) -> str:
        """The annotation to write; empty where nothing is to change."""
        return "" if self.advised_mib == self.reserved_mib else f"{self.annotation}: {format_mib(self.advised_mib)}"

    def json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "namespace": self.namespace, "workload": self.workload, "container": self.container, "pods": self.pods,
            "reservedMiB": self.reserved_mib, "peakMiB": self.peak_mib, "advisedMiB": self.advised_mib,
            "freesMiB": self.frees_mib, "annotation": self.write, "why": self.why,
        }  # fmt: skip


def measured(
    pods: Iterable[Object],
    uses: Mapping[Place, Amounts],
    kills: Collection[Place],
    now: float,
    past: Mapping[Place, int] | None = None,
) -> Iterator[Measured]:
    """Put together what is known of each container that has a share.

    Args:
        pods: with shares, as the API server has them.
        uses: of their containers, as enforcers or sidecars answer.
        kills: containers that were killed, also those of pods that are gone.
        now: seconds since 1970.
        past: MiB that containers used at most before, also those of pods that are gone.
    """
    before = defaultdict[tuple[str, str], list[tuple[str, int]]](list)
    for (namespace, name, container), mib in (past or {}).items():
        before[namespace, container].append((name, mib))
    for pod in pods:
        metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
        namespace, name, kind = text(metadata, "namespace"), text(metadata, "name"), workload_of(metadata)
        began = moment(mapping(pod, "status").get("startTime"))
        shot = {text(each, "name") for each in container_statuses(pod) if _was_killed(each)}
        for container in (text(each, "name") for each in containers(pod)):
            if (found := uses.get((namespace, name, container))) is not None:
                of_it = container in shot or _is_among((namespace, name, container), kind[1], kills)
                mine = [mib for pod, mib in before[namespace, container] if _is_of(pod, name, kind[1])]
                amounts = _with_past(replace(found, refused=found.refused or of_it), mine)
                yield Measured(
                    namespace=namespace, workload=" ".join(filter(None, kind)) or f"Pod {name}", container=container,
                    annotation=annotation_of(metadata, spec, container), amounts=amounts,
                    seconds=0.0 if began is None else now - began.timestamp(),
                )  # fmt: skip


def advise(found: Iterable[Measured], least_seconds: float) -> list[Advice]:
    """Advise each container of each workload, what frees most first."""
    groups = defaultdict[tuple[str, str, str], list[Measured]](list)
    for each in found:
        groups[each.namespace, each.workload, each.container].append(each)
    advised = [_advice(mine, least_seconds) for mine in groups.values()]
    return sorted(advised, key=lambda each: (-each.frees_mib, each.namespace, each.workload, each.container))


def _advice(mine: Sequence[Measured], least_seconds: float) -> Advice:
    first, reserved = mine[0], max(each.amounts.reserved_mib for each in mine)
    peaks = [each.amounts.peak_mib for each in mine]
    known = [each for each in peaks if each is not None]
    advised, why = reserved, "its peak is not known of each pod"
    if known and len(known) == len(peaks):
        refused = any(each.amounts.refused or max(known) > each.amounts.reserved_mib for each in mine)
        advised, why = _amount(max(known), reserved, refused=refused, ran=max(each.seconds for each in mine),
                               least=least_seconds)  # fmt: skip
    return Advice(
        namespace=first.namespace, workload=first.workload, container=first.container, pods=len(mine),
        reserved_mib=reserved, peak_mib=max(known, default=None), advised_mib=advised, annotation=first.annotation,
        why=why,
    )  # fmt: skip


def _amount(peak: int, reserved: int, *, refused: bool, ran: float, least: float) -> tuple[int, str]:
    """Return what to ask for, and why."""
    enough = max(sufficient_mib(peak), DEFAULT_MIN_MIB)
    margin = f"its peak of {in_gib(peak) if peak else '0'} and a margin of {in_gib(enough - peak)}"
    if enough > reserved:
        return enough, f"{margin}; it reserves less than that"
    if enough == reserved:
        return reserved, f"fits: {margin}"
    if refused:
        return reserved, "it was killed for its memory, refused some, or used more before, so less is never advised"
    if ran < least:
        return reserved, f"its pods have run for {_hours(ran)}, and a peak of {_hours(least)} is needed to advise less"
    return enough, margin


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


def _was_killed(status: Object) -> bool:
    ends = (mapping(mapping(status, key), "terminated") for key in ("state", "lastState"))
    return any(each.get("exitCode") == SIGKILLED for each in ends)


def _is_among(place: Place, workload: str, kills: Collection[Place]) -> bool:
    """Tell whether a container was killed, in this pod or in an earlier one of its workload."""
    namespace, pod, container = place
    return any(
        (killed[0], killed[2]) == (namespace, container) and _is_of(killed[1], pod, workload) for killed in kills
    )


def _is_of(other: str, pod: str, workload: str) -> bool:
    return other == pod or (bool(workload) and other.startswith(f"{workload}-"))


def _with_past(now: Amounts, past: Collection[int]) -> Amounts:
    """Count peaks of earlier pods. One that only a larger share could hold does not say how much is enough."""
    fitting = [each for each in past if each <= now.reserved_mib]
    peak = max([*fitting, *([] if now.peak_mib is None else [now.peak_mib])], default=None)
    return replace(now, peak_mib=peak, refused=now.refused or len(fitting) < len(past))
