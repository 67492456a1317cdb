"""Pods that use a claim which was prepared for another one: they get nothing of it, and are told."""

from collections.abc import Callable, Iterator, Sequence

from enforcer.dra.enforced import joined, quotas_of_joined
from enforcer.dra.prepared import Prepared
from enforcer.quotas import Object
from enforcer.told.notice import Notice
from gpushare.reasons import Reason

Pair = tuple[Prepared, Prepared]
"""A claim as it was prepared, and as another pod uses it."""


class Joiners:
    """Tells each such pod once.

    Args:
        tell: takes what owners of pods are to be told.
    """

    def __init__(self, tell: Callable[[Notice], None]) -> None:
        self._tell = tell
        self._told: frozenset[tuple[str, str]] = frozenset()

    def see(self, prepared: Sequence[Prepared], pods: Sequence[Object]) -> tuple[str, ...]:
        """Take in what is prepared and who is there; return what operators are to read."""
        found = [(claim, other) for claim in prepared for other in joined(claim, pods)]
        for pair in found:
            if _key(pair) not in self._told:
                for notice in _notices(pair):
                    self._tell(notice)
        self._told = frozenset(_key(pair) for pair in found)
        return tuple(
            f"claim {claim.namespace}/{claim.name} was prepared for pod {claim.pod}; pod {other.pod} uses it too "
            "and gets nothing of it; give each a claim of its own"
            for claim, other in found
        )


def _key(pair: Pair) -> tuple[str, str]:
    return pair[0].uid, pair[1].pod_uid


def _notices(pair: Pair) -> Iterator[Notice]:
    claim, other = pair
    for quota in quotas_of_joined(other)[:1]:
        note = (
            f"ResourceClaim {claim.name} is in use by pod {claim.pod}, and its memory is promised once: container "
            f"{quota.container} may hold 0 MiB on {quota.gpu} and is ended when it holds any; create the pod anew and "
            "give it a ResourceClaim of its own, or a resourceClaimTemplateName"
        )
        yield Notice(quota=quota, reason=Reason.CLAIM_TAKEN, note=note, action="Prepare")
