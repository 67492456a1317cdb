"""Pods that use a claim which was prepared for another one: they get nothing of it, and a message."""

from collections.abc import Iterator, Sequence

from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.dra.quotas import joined, message_quotas
from enforcer.quota.from_claims import Object
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from gpushare.claim_messages import ENDED, claim_in_use_message
from gpushare.reasons import Reason

Pair = tuple[PreparedClaim, PreparedClaim]
"""A claim as it was prepared, and as another pod uses it."""


class SharedClaimDetector:
    """Tells each such pod once, and once more when the pod is gone that has the claim: that changes what to do.

    Args:
        events: takes messages to the owners of pods.
    """

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._reported: frozenset[tuple[str, str, bool]] = frozenset()

    def check(self, prepared: Sequence[PreparedClaim], pods: Sequence[Object]) -> tuple[str, ...]:
        """Take in what is prepared and who is there; return what operators are to read."""
        there = {pod["metadata"]["uid"] for pod in pods if (pod.get("status") or {}).get("phase") not in ENDED}
        found = [(claim, other) for claim in prepared for other in joined(claim, pods)]
        keys = [(claim.uid, other.pod_uid, claim.pod_uid in there) for claim, other in found]
        for pair, key in zip(found, keys, strict=True):
            for notice in _notices(pair, gone=not key[-1]) if key not in self._reported else ():
                self._events.record(notice)
        self._reported = frozenset(keys)
        return tuple(
            f"claim {claim.namespace}/{claim.name} was prepared for pod {claim.namespace}/{claim.pod}; "
            f"pod {other.namespace}/{other.pod} uses the same claim and gets no GPU memory; give each pod its own claim"
            for claim, other in found
        )


def _notices(pair: Pair, *, gone: bool) -> Iterator[UserMessage]:
    claim, other = pair
    for quota in message_quotas(other)[:1]:
        who = (
            f"container {quota.container} may hold 0 MiB on {quota.gpu}, so the "
            "container is over quota with any GPU memory"
        )
        note = claim_in_use_message(claim.name, claim.pod, who, gone=gone)
        yield UserMessage(quota=quota, reason=Reason.CLAIM_IN_USE, note=note, action="Prepare")
