"""Another quota for a container that runs: whether it can have it, and what the claim then says. Pure.

What the claim consumed is the bound: it was reserved when the pod was placed, so nobody else is asked. The rules are
those by which a claim is prepared in the first place; here they are applied to the limits after the resize.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from enforcer.dra.allocation import ContainerUse, check_variables, containers
from enforcer.dra.contexts import context_of
from enforcer.dra.prepared_claim import ContainerLimit, PreparedClaim, ResizeResult, shortened
from enforcer.quota.from_claims import Object
from gpushare import contract
from gpushare.errors import PrepareError, QuantityError, ResizeRefused
from gpushare.peak_usage import peak_usage
from gpushare.quantity import DEFAULT_MIN_MIB, format_mib, parse_memory
from gpushare.reasons import Reason
from gpushare.resize_annotation import ResizeRequest, parse_request
from gpushare.suggestion import nearest

AT_ONCE: Final = "at once"
AT_START: Final = "at next start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeBounds:
    """What holds besides what was reserved: the smallest share, and the namespace's ceiling for each container."""

    min_mib: int = DEFAULT_MIN_MIB
    max_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentUsage:
    """How a container uses its GPU now.

    ``used_mib`` is the memory of its processes, ``None`` if NVML is unavailable. ``applies_immediately``: whether the
    limit backend applies a new limit to running processes. ``mps``: whether these also have a limit by MPS.
    """

    used_mib: int | None
    applies_immediately: bool
    mps: bool = True

    def effect(self, before: int, after: int) -> str:
        """Say when the limit itself changes: what MPS lets a process have is never more than when it began."""
        return AT_ONCE if self.applies_immediately and (after <= before or not self.mps) else AT_START


def apply_resize(
    claim: PreparedClaim, pod: Object, container: str, asked: Any, bounds: ResizeBounds, now: CurrentUsage
) -> PreparedClaim:
    """Return the claim with an answer to a resize request, and with the other limit where it is granted.

    Args:
        claim: as it is prepared.
        pod: that uses it.
        container: one that has a limit there.
        asked: what the annotation says.
        bounds: the operator's.
        now: how it stands.
    """
    before = limit_of(claim, container).memory_mib
    blank = ResizeResult(container=container, asked=shortened(asked), done=False, before_mib=before, reason="", note="")
    try:
        request = parse_request(asked)
        after = resized(claim, pod, container, request.memory_mib, bounds)
        _check_usage(container, before, request, now)
    except (ResizeRefused, QuantityError) as error:
        return _with(claim, replace(blank, reason=str(error.reason), note=error.message))
    effect = now.effect(before, request.memory_mib)
    note = _note(container, before, request.memory_mib, effect, mps=now.mps)
    return _with(after, replace(blank, done=True, reason=str(Reason.RESIZED), note=note, effect=effect))


def resized(claim: PreparedClaim, pod: Object, container: str, mib: int, bounds: ResizeBounds) -> PreparedClaim:
    """Return the claim with another limit of one container.

    Raises:
        ResizeRefused: it cannot have that; the sentence says what it can have.
    """
    check_known(claim, pod, container)
    limit = limit_of(claim, container)
    if mib < bounds.min_mib:
        message = f"{format_mib(mib)} is below the minimum of {format_mib(bounds.min_mib)}"
        raise ResizeRefused(message, Reason.BELOW_MINIMUM)
    if bounds.max_mib is not None and mib > max(bounds.max_mib, limit.memory_mib):
        message = f"{format_mib(mib)} is above this namespace's {contract.MAX_MEMORY} of {format_mib(bounds.max_mib)}"
        raise ResizeRefused(f"{message}; write a smaller amount", Reason.ABOVE_MAXIMUM)
    _check_context(claim, limit, mib)
    limits = tuple(replace(each, memory_mib=mib) if each is limit else each for each in claim.limits)
    after = replace(claim, limits=limits)
    if mib > limit.memory_mib and any(
        peak_limit_mib(after, pod, gpu) > claim.mib_on(gpu) for gpu in gpus_of(claim, limit)
    ):
        raise ResizeRefused(_beyond(claim, pod, limit, mib), Reason.ABOVE_MAXIMUM)
    _check_variables(after, pod, limit)
    return after


def _check_context(claim: PreparedClaim, limit: ContainerLimit, mib: int) -> None:
    context = context_of(claim, limit.request, limit.compute)
    if context is not None and mib <= context.mib:
        message = f"{format_mib(mib)} is too little: a CUDA context alone takes about {context.mib}Mi of it on this GPU"
        raise ResizeRefused(f"{message}; ask for {format_mib(context.smallest_share_mib)}", Reason.BELOW_MINIMUM)


def check_known(claim: PreparedClaim, pod: Object, container: str) -> None:
    """Make sure that a container has a limit in this claim.

    Raises:
        ResizeRefused: it is not a container of the pod, or has no share.
    """
    sharing = [each.container for each in claim.limits]
    if container in sharing:
        return
    names = [str(raw["name"]) for raw, _ in containers(pod)]
    if container in names:
        message = f"container {container} has no GPU share; the containers with a share are {', '.join(sharing)}"
        raise ResizeRefused(message, Reason.UNKNOWN_CONTAINER)
    near = nearest(container, sharing)
    hint = f"did you mean {near}?" if near else f"the containers with a share are {', '.join(sharing)}"
    raise ResizeRefused(f"the pod has no container named {container[:64]!r}; {hint}", Reason.UNKNOWN_CONTAINER)


def peak_limit_mib(claim: PreparedClaim, pod: Object, gpu: str) -> int:
    """MiB of one GPU that a claim's containers can hold at once under their limits."""
    kinds = {str(raw["name"]): kind for raw, kind in containers(pod)}
    here = [each for each in claim.limits if gpu in gpus_of(claim, each)]
    return peak_usage([(kinds.get(each.container, ""), each.memory_mib, 0) for each in here])[0]


def most_mib(claim: PreparedClaim, pod: Object, container: str) -> int:
    """MiB that one container can have at most, beside what the others have now; of several GPUs on each."""
    limit = limit_of(claim, container)
    return min(_most_on(gpu, claim, pod, limit) for gpu in gpus_of(claim, limit))


def _most_on(gpu: str, claim: PreparedClaim, pod: Object, limit: ContainerLimit) -> int:
    reserved = claim.mib_on(gpu)
    whole = tuple(replace(each, memory_mib=reserved) if each is limit else each for each in claim.limits)
    return max(0, 2 * reserved - peak_limit_mib(replace(claim, limits=whole), pod, gpu))


def limit_of(claim: PreparedClaim, container: str) -> ContainerLimit:
    """Find the limit of a container that has one."""
    return next(each for each in claim.limits if each.container == container)


def ceiling_of(namespace: Mapping[str, str]) -> int | None:
    """Read a namespace's ceiling from its annotations; one that cannot be read is none, as in admission's absence."""
    try:
        return parse_memory(namespace[contract.MAX_MEMORY])
    except (KeyError, QuantityError):
        return None


def pending_requests(claim: PreparedClaim, requested: Mapping[str, Any]) -> dict[str, Any]:
    """The unanswered resize requests for containers of a claim; the smallest amount comes first."""
    mine = {each.container: each.memory_mib for each in claim.limits}
    new = [
        (name, asked)
        for name, asked in requested.items()
        if name in mine and not any(each.answers(name, asked) for each in claim.answers)
    ]
    return dict(sorted(new, key=lambda each: (_growth(each[1], mine[each[0]]), each[0])))


def _growth(asked: Any, before: int) -> int:
    try:
        return parse_request(asked).memory_mib - before
    except QuantityError:
        return 0


def _check_usage(container: str, before: int, request: ResizeRequest, now: CurrentUsage) -> None:
    if request.force or request.memory_mib >= before:
        return
    if now.used_mib is None:
        message = (
            f"the enforcer cannot read the GPU memory of container {container} now; try again, or use "
            "gpu-share resize --force"
        )
        raise ResizeRefused(message, Reason.NVML_UNAVAILABLE)
    if now.used_mib > request.memory_mib:
        message = (
            f"container {container} holds {now.used_mib} MiB now: with a quota of "
            f"{format_mib(request.memory_mib)} it would be over quota"
        )
        raise ResizeRefused(
            f"{message}; free memory in the container first, or use gpu-share resize --force", Reason.OVER_QUOTA
        )


def _check_variables(after: PreparedClaim, pod: Object, limit: ContainerLimit) -> None:
    """Containers that use one request get the same variables, so one of them cannot be given another limit alone."""
    raws = {str(raw["name"]): (raw, kind) for raw, kind in containers(pod)}
    pairs = [(ContainerUse(*raws[each.container], after.of(each.request), own=True), each) for each in after.limits
             if each.container in raws]  # fmt: skip
    try:
        check_variables([use for use, _ in pairs], [each for _, each in pairs])
    except PrepareError as error:
        users = ", ".join(each.container for each in after.limits_of(limit.request))
        message = f"containers {users} use the same request ({limit.request}) of the ResourceClaim, so all get the same"
        hint = "the quota of one alone cannot change; change the manifest and create the pod again"
        raise ResizeRefused(f"{message} MPS memory limit; {hint}", Reason.CLAIM_MISMATCH) from error


def _beyond(claim: PreparedClaim, pod: Object, limit: ContainerLimit, mib: int) -> str:
    gpu = min(gpus_of(claim, limit), key=lambda each: _most_on(each, claim, pod, limit))
    others = [
        f"{each.container} {format_mib(each.memory_mib)}"
        for each in claim.limits
        if each is not limit and gpu in gpus_of(claim, each)
    ]
    beside = f" for all its containers (others: {', '.join(others)})" if others else ""
    most = most_mib(claim, pod, limit.container)
    text = f"{format_mib(mib)} exceeds the reservation: the pod has {format_mib(claim.mib_on(gpu))} of the GPU{beside}"
    return f"{text}; container {limit.container} can have at most {format_mib(most)}"


def _note(container: str, before: int, after: int, effect: str, *, mps: bool) -> str:
    if after == before:
        return f"container {container} keeps its quota of {format_mib(after)}"
    text = f"the quota of container {container} is now {format_mib(after)} (before: {format_mib(before)})"
    if effect == AT_ONCE:
        return text
    if not mps:
        return f"{text}; the memory of the MIG instance does not change"
    lasting = f"{text}; running processes keep their MPS limit until the container restarts"
    return f"{lasting}; above {format_mib(after)} the container is over quota" if after < before else lasting


def _with(claim: PreparedClaim, answer: ResizeResult) -> PreparedClaim:
    others = tuple(each for each in claim.answers if each.container != answer.container)
    return replace(claim, answers=(*others, answer))


def gpus_of(claim: PreparedClaim, limit: ContainerLimit) -> tuple[str, ...]:
    """UUIDs of the GPUs that a limit is for; at least one."""
    return tuple(each.gpu for each in claim.of(limit.request) if each.gpu is not None)
