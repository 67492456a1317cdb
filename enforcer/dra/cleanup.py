"""Where kubelet, API server and checkpoint disagree because one of them lost something.

A claim that nobody undoes (the kubelet lost its notes) is let go when its pod is certainly gone: no such pod and no
such claim on the API server, no process of the pod left on this machine, and all of that twice, some time apart. A
claim that the kubelet has prepared and our checkpoint does not know (the state directory was lost) is prepared again,
so that its containers can restart and are enforced.
"""

from typing import Final

import structlog

from enforcer.attribution.living_pods import living_pods
from enforcer.dra.cdi_files import CdiFileStore
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.driver import ClaimRef, Driver, PrepareCall
from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.quota.informer import QuotaInformer
from gpushare.errors import ClusterError, PrepareError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, find, path
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 60.0
ADOPT_SECONDS: Final = 10.0
"""For one lost claim: its thread has other tasks, and it is tried again."""


class StaleClaimCleaner:
    """Looks for such claims.

    Args:
        setup: has the prepared claims, and says whether pods and claims exist, and which pods have processes.
        driver: undoes them.
        books: the node's pods as last seen.
    """

    def __init__(self, setup: DraPluginConfig, driver: Driver, books: QuotaInformer) -> None:
        self._setup, self._driver, self._books = setup, driver, books
        self._suspects: frozenset[str] = frozenset()

    def run_once(self) -> None:
        """Let go of what was gone last time already; remember what is gone now."""
        pods = self._books.pods()
        missing = [] if pods is None else [each for each in self._setup.store.prepared() if each.pod_uid not in pods]
        living = living_pods(self._setup.attributor) if missing else frozenset()
        gone = [each for each in missing if each.pod_uid not in living and self._gone(each)]
        for claim in gone:
            if claim.uid in self._suspects:
                log.warning(
                    "claim of a deleted pod unprepared", reason=str(Reason.CLAIM_CLEANED_UP), namespace=claim.namespace,
                    claim=claim.name, pod=claim.pod,
                )  # fmt: skip
                self._driver.unprepare(ClaimRef(claim.namespace, claim.name, claim.uid))
        self._suspects = frozenset(each.uid for each in gone)

    def _gone(self, claim: PreparedClaim) -> bool:
        return self._absent(path(CORE_V1, "pods", claim.pod, claim.namespace), claim.pod_uid) and self._absent(
            path(RESOURCE_V1, "resourceclaims", claim.name, claim.namespace), claim.uid
        )

    def _absent(self, where: str, uid: str) -> bool:
        try:
            found = find(self._setup.cluster, where)
        except ClusterError:
            return False
        return found is None or bool(found["metadata"]["uid"] != uid)


class OrphanCleaner:
    """Looks for files that our checkpoint does not know. The order of our own work never leaves any: it lost something.

    Args:
        setup: has the checkpoint and the claims.
        files: the files.
        driver: prepares them again, or removes what is left.
        books: the node's pods and their claims as last seen.
    """

    def __init__(self, setup: DraPluginConfig, files: CdiFileStore, driver: Driver, books: QuotaInformer) -> None:
        self._setup, self._files, self._driver, self._books = setup, files, driver, books
        self._suspects: frozenset[str] = frozenset()

    def run_once(self) -> None:
        """Prepare again what the API server knows; remove what was in nobody's name last time already."""
        # The files are looked at twice: a claim is known before it has a file, and has none before it is forgotten, so
        # what is being prepared or undone meanwhile is never taken for lost.
        claims, folders = self._files.claims(), self._files.pods()
        prepared = self._setup.store.prepared()
        claims &= self._files.claims()
        lost = self._orphans((claims | self._setup.store.corrupt()) - {each.uid for each in prepared})
        pods = self._books.pods()
        empty = frozenset() if pods is None else folders - {each.pod_uid for each in prepared} - frozenset(pods)
        for uid in lost & self._suspects:
            log.info("file of an unknown claim removed", reason=str(Reason.CLAIM_CLEANED_UP), claim_uid=uid)
            self._driver.unprepare(ClaimRef("", "", uid))
        for pod in empty & self._suspects:
            self._files.remove_status(pod)
        self._suspects = lost | empty

    def _orphans(self, uids: frozenset[str]) -> frozenset[str]:
        """Prepare again those whose claims a pod of this node has; return the others."""
        if not uids:
            return uids
        if self._books.pods() is None:
            return frozenset()
        try:
            found = {
                ref.uid: ref for ref in map(self._read, self._books.claims()) if ref is not None and ref.uid in uids
            }
        except ClusterError:
            return frozenset()
        for uid in sorted(found):
            self._adopt(found[uid])
        return uids - found.keys()

    def _read(self, claim: tuple[str, str]) -> ClaimRef | None:
        namespace, name = claim
        found = find(self._setup.cluster, path(RESOURCE_V1, "resourceclaims", name, namespace))
        return None if found is None else ClaimRef(namespace, name, found["metadata"]["uid"])

    def _adopt(self, ref: ClaimRef) -> None:
        try:
            self._driver.prepare(ref, PrepareCall(ADOPT_SECONDS))
        except PrepareError as error:
            log.warning(
                "lost claim not restored", reason=str(error.reason), namespace=ref.namespace, claim=ref.name,
                error=error.message,
            )  # fmt: skip
