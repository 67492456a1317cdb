"""Why a container that failed probably failed, as far as memory of the GPU goes. Pure.

A diagnosis is a likelihood: no component reports a refused allocation (see ``memory_pressure``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from enforcer.attribution.unaccounted import TOLERANCE_MIB
from enforcer.oom.memory_pressure import PressureSample
from enforcer.quota.from_claims import Object
from enforcer.status.messages import UserMessage
from gpushare.patterns import Pattern
from gpushare.raw_objects import moment
from gpushare.reasons import Reason

WITHIN: Final = 60.0
"""Seconds for which shortage may be why a program ends: some look for memory again and again before they give up."""
SLACK: Final = 2.0
"""Seconds that two clocks, one of them in whole seconds, may be apart."""
FROM_OUTSIDE: Final = frozenset({137, 143})
"""Exit codes of SIGKILL and SIGTERM: somebody ended it."""
BY_KUBELET: Final = frozenset({"OOMKilled", "Evicted"})
"""Reasons that the kubelet gives itself: the host's memory, not the GPU's."""
_ID: Final = Pattern(r"[a-z0-9-]+://([0-9a-f]{64})", 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A container that ended by itself, and not well; ``finished`` by the wall clock, in seconds."""

    pod_uid: str
    container_id: str
    exit_code: int
    finished: float


def failures_of(pod: Object) -> Iterator[Failure]:
    """List the containers of a pod that failed, their runs before the present one included.

    One that is being deleted, was ended by a signal from outside, or by the kubelet for its own reasons, did not fail.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return
    status = pod.get("status") or {}
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        for state in (each.get("state"), each.get("lastState")):
            found = _failure(pod["metadata"]["uid"], (state or {}).get("terminated") or {})
            yield from () if found is None else (found,)


def diagnose(failure: Failure, marks: Iterable[PressureSample]) -> tuple[Reason, PressureSample] | None:
    """Explain a failure by the samples of its container; ``None`` where memory was not short, or it was our doing.

    Of two shortages the tighter one counts; where they are alike it is the quota, which is looked at first.
    """
    candidates = [mark for mark in marks if _bears_on(mark, failure)]
    if not candidates or any(_ours(mark, failure) for mark in candidates):
        return None
    mark = min(candidates, key=lambda each: each.headroom_mib)
    quota_is_tighter = mark.quota.most_mib - mark.own_mib <= mark.free_mib
    own = mark.near_quota and (quota_is_tighter or not mark.gpu_full)
    return (Reason.QUOTA_REACHED if own else Reason.GPU_FULL), mark


def diagnosis_message(failure: Failure, reason: Reason, mark: PressureSample) -> UserMessage:
    """Tell the container's owner: their own figures, and of others what they hold together."""
    quota = mark.quota
    used = f"the container used {mark.own_mib} MiB of its {quota.most_mib} MiB"
    others = f"{mark.others_mib} MiB{_unaccounted(mark)}"
    why = {
        Reason.QUOTA_REACHED: f"because it reached its quota: {used} on {quota.gpu}",
        Reason.GPU_FULL: f"because {quota.gpu} was full: other processes used {others}, {used}",
    }[reason]
    note = f"container {quota.container} failed with exit code {failure.exit_code}, likely {why}"
    return UserMessage(quota=quota, reason=reason, note=note, action="Explain")


def _unaccounted(mark: PressureSample) -> str:
    mib = mark.unaccounted_mib
    return f", {mib} MiB of them counted for nobody, which is likely why" if mib > TOLERANCE_MIB else ""


def _bears_on(mark: PressureSample, failure: Failure) -> bool:
    """Whether memory was short for this very container shortly before it ended, and not only since."""
    began_before, lasted = mark.since <= failure.finished + SLACK, mark.last >= failure.finished - WITHIN
    same = (mark.quota.pod_uid, mark.quota.container_id) == (failure.pod_uid, failure.container_id)
    return same and began_before and lasted


def _ours(mark: PressureSample, failure: Failure) -> bool:
    return mark.ended is not None and mark.ended >= failure.finished - WITHIN


def _failure(pod_uid: str, ended: dict[str, Any]) -> Failure | None:
    match, code = _ID.fullmatch(ended.get("containerID") or ""), ended.get("exitCode")
    if match is None or not isinstance(code, int) or code == 0 or code in FROM_OUTSIDE:
        return None
    finished = moment(ended.get("finishedAt"))
    if ended.get("reason") in BY_KUBELET or finished is None:
        return None
    return Failure(pod_uid=pod_uid, container_id=match.group(1), exit_code=code, finished=finished.timestamp())
