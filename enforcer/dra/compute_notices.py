"""Messages about compute: whose reservation others can use too, and who has a cap without a reservation."""

from collections.abc import Iterator, Sequence

from enforcer.dra.compute_caps import beside
from enforcer.dra.prepared_claim import AllocatedDevice, PreparedClaim
from enforcer.dra.quotas import message_quotas
from enforcer.quota.types import Mode
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from gpushare import contract
from gpushare.quantity import WHOLE_GPU_PERCENT
from gpushare.reasons import Reason


class ComputeNotices:
    """Tells the owner of each request once, for as long as its claim is prepared.

    Args:
        events: takes messages to the owners of pods.
    """

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._reported: frozenset[tuple[str, str]] = frozenset()

    def check(self, prepared: Sequence[PreparedClaim]) -> None:
        """Take in what is prepared."""
        there = {(claim.uid, grant.request) for claim in prepared for grant in claim.granted}
        for claim in prepared:
            for grant in claim.granted:
                key = claim.uid, grant.request
                note = "" if key in self._reported else _note(claim, grant, prepared)
                if note:
                    self._reported |= {key}
                    for message in _messages(claim, grant, note):
                        self._events.record(message)
        self._reported &= there


def _note(claim: PreparedClaim, grant: AllocatedDevice, prepared: Sequence[PreparedClaim]) -> str:
    """Return the sentence that follows the container's name; empty where there is nothing to say."""
    if grant.mode is not Mode.MPS:
        return ""
    if cap := claim.caps.get(grant.request):
        how = f"to get more, reserve it with {contract.COMPUTE}, and set no lower percentage in the container"
        return f"reserves no compute of {grant.gpu}, so it may use {cap}% of its SMs as long as its pod lasts; {how}"
    others = beside(claim, grant, prepared) if grant.compute else 0
    if grant.compute + others <= WHOLE_GPU_PERCENT:
        return ""
    why = "they reserved none, started before it, or compute is overcommitted"
    return (
        f"reserves {grant.compute}% of the compute of {grant.gpu}, but others may use {others}% of it at the same time "
        f"({why}): while they compute, it can get less than its part"
    )


def _messages(claim: PreparedClaim, grant: AllocatedDevice, note: str) -> Iterator[UserMessage]:
    mine = {limit.container for limit in claim.limits_of(grant.request)}
    for quota in message_quotas(claim):
        if quota.container in mine and quota.gpu == grant.gpu:
            text = f"container {quota.container} {note}"
            yield UserMessage(quota=quota, reason=Reason.COMPUTE_SHARED, note=text, action="Prepare", warning=False)
