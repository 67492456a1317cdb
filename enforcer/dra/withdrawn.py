"""Prepared claims that the API server has not allocated any more, while their pod may still run.

Somebody deleted the claim under its pod, or the pod by force, or wrote that the pod has ended; another pod may have the
claim since. The scheduler takes the memory for free. It stays off the offer until the kubelet undoes the claim; from
then on what the pod's processes hold does.
"""

from collections import defaultdict
from http import HTTPStatus
from typing import Final

from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.runtime.manager import Wake
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path

EVERY: Final = 60.0
"""Seconds between looks: each is a read for each share of the node."""


class WithdrawnClaims:
    """Looks for such claims.

    Args:
        cluster: to read claims.
        store: the prepared claims.
        due: set when a share did not fit, although the scheduler thought so.
    """

    def __init__(self, cluster: KubeClient, store: ClaimStore, due: Wake) -> None:
        self._cluster, self._store, self._due = cluster, store, due
        self._known: frozenset[str] = frozenset()

    def run_once(self) -> None:
        """Look at each prepared claim."""
        self._due.clear()
        self._known = frozenset(each.uid for each in self._store.prepared() if each.gpus and self._withdrawn(each))

    def mib(self) -> dict[str, int]:
        """Return the MiB that such claims still reserve, by GPU."""
        found: dict[str, int] = defaultdict(int)
        for claim in self._store.prepared():
            for gpu in claim.gpus if claim.uid in self._known else ():
                found[gpu] += claim.mib_on(gpu)
        return dict(found)

    def _withdrawn(self, claim: PreparedClaim) -> bool:
        """Ask the API server; while it does not answer, what was known counts."""
        try:
            found = self._cluster.get(path(RESOURCE_V1, "resourceclaims", claim.name, claim.namespace))
        except ClusterError as error:
            return error.status == HTTPStatus.NOT_FOUND or claim.uid in self._known
        allocation = ((found.get("status") or {}).get("allocation") or {}).get("devices") or {}  # the scheduler's word
        reserved = {(each["pool"], each["device"], each.get("shareID")) for each in allocation.get("results") or ()}
        mine = {(each.pool, each.device, each.share_id) for each in claim.granted}
        return found["metadata"]["uid"] != claim.uid or not mine <= reserved
