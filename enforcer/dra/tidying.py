"""Claims that nobody undoes: the kubelet lost its own notes, or the node was away while the pod was deleted.

One is let go only when its pod is certainly gone: no such pod and no such claim on the API server, no process of the
pod left on this machine, and all of that twice, some time apart.
"""

from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog

from enforcer.attribute import Attributor
from enforcer.dra.driver import Driver, Ref
from enforcer.dra.prepared import Prepared
from enforcer.dra.store import ClaimStore
from gpushare.cluster import CORE_V1, RESOURCE_V1, Cluster, path
from gpushare.errors import ClusterError
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 60.0


class Forgotten:
    """Looks for such claims.

    Args:
        cluster: to ask whether pod and claim exist.
        store: the prepared claims.
        driver: undoes them.
        pods: UIDs of this node's pods as last seen; ``None`` while they were never listed.
        living: UIDs of the pods that have processes on this machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: ClaimStore,
        driver: Driver,
        pods: Callable[[], Collection[str] | None],
        living: Callable[[], Collection[str]],
    ) -> None:
        self._cluster, self._store, self._driver, self._pods, self._living = cluster, store, driver, pods, living
        self._suspects: frozenset[str] = frozenset()

    def turn(self) -> None:
        """Let go of what was gone last time already; remember what is gone now."""
        pods = self._pods()
        missing = [] if pods is None else [each for each in self._store.prepared() if each.pod_uid not in pods]
        living = self._living() if missing else ()
        gone = [each for each in missing if each.pod_uid not in living and self._gone(each)]
        for claim in gone:
            if claim.uid in self._suspects:
                log.warning(
                    "claim undone without the kubelet", reason=str(Reason.CLAIM_FORGOTTEN), namespace=claim.namespace,
                    claim=claim.name, pod=claim.pod,
                )  # fmt: skip
                self._driver.unprepare(Ref(claim.namespace, claim.name, claim.uid))
        self._suspects = frozenset(each.uid for each in gone)

    def _gone(self, claim: Prepared) -> bool:
        return self._absent(path(CORE_V1, "pods", claim.pod, claim.namespace), claim.pod_uid) and self._absent(
            path(RESOURCE_V1, "resourceclaims", claim.name, claim.namespace), claim.uid
        )

    def _absent(self, where: str, uid: str) -> bool:
        try:
            return bool(self._cluster.get(where)["metadata"]["uid"] != uid)
        except ClusterError as error:
            return error.status == HTTPStatus.NOT_FOUND


def living_pods(attributor: Attributor, proc: Path = Path("/proc")) -> frozenset[str]:
    """UIDs of the pods that have processes here."""
    identities = (attributor.identify(int(entry.name)) for entry in proc.iterdir() if entry.name.isdecimal())
    return frozenset(each.owner.pod_uid for each in identities if each is not None and each.owner is not None)
