"""Handle resize requests (annotations ``resize.gpu-share.io/<container>``) and report the result.

Each request is answered once: the answer is kept with the claim, on disk, together with the other limit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.dra import resize
from enforcer.dra.config import DraPluginConfig
from enforcer.dra.driver import Driver
from enforcer.dra.prepared_claim import PreparedClaim, ResizeResult
from enforcer.dra.quotas import message_quotas
from enforcer.dra.resize import apply_resize, ceiling_of
from enforcer.quota.from_claims import Object
from enforcer.quota.types import Mode, Quota
from enforcer.runtime.manager import Wake
from enforcer.status.messages import UserMessage
from gpushare.errors import NvmlError, PrepareError
from gpushare.reasons import Reason
from gpushare.resize_annotation import requests_in

log = structlog.get_logger()

EVERY: Final = 5.0
"""Seconds until a failed request is retried; a new request is handled at once."""


class ResizeController:
    """Answers resize requests.

    Attributes:
        wanted: set when there are unanswered resize requests.
    """

    def __init__(self, means: DraPluginConfig, driver: Driver) -> None:
        self._means, self._driver = means, driver
        self.wanted: Final = Wake()
        self._pods: Mapping[str, Object] = {}
        self._ceilings: Mapping[str, int | None] = {}
        self._unwritten: dict[str, tuple[str, Any]] = {}
        """Requests whose answer may be on disk while the claim's files are not what it says, by the claim's UID."""

    def set_objects(self, pods: Sequence[Object], namespaces: Sequence[Object]) -> None:
        """Take in the node's pods and the namespaces as they are now; quick."""
        self._pods = {each["metadata"]["uid"]: each for each in pods}
        self._ceilings = {
            each["metadata"]["name"]: ceiling_of(each["metadata"].get("annotations") or {}) for each in namespaces
        }
        if any(_requested(claim, self._pods) for claim in self._means.store.prepared()):
            self.wanted.set()

    def run_once(self) -> None:
        """Answer what has not been answered."""
        pods = self._pods
        for claim in self._means.store.prepared():
            for container, asked in _requested(claim, pods).items():
                self._answer(claim.uid, pods[claim.pod_uid], container, asked)
        for uid, (container, asked) in sorted(self._unwritten.items()):
            self._alter(uid, container, asked, lambda claim: claim)

    def _answer(self, uid: str, pod: Object, container: str, asked: Any) -> None:
        now = partial(self._now, pod["metadata"]["uid"], container)
        ceiling = self._ceilings.get(pod["metadata"]["namespace"])
        bounds = resize.ResizeBounds(min_mib=self._means.policy.min_memory_mib, max_mib=ceiling)
        self._alter(uid, container, asked, lambda known: apply_resize(known, pod, container, asked, bounds, now(known)))

    def _alter(self, uid: str, container: str, asked: Any, change: Callable[[PreparedClaim], PreparedClaim]) -> None:
        try:
            claim = self._driver.update(uid, change)
        except PrepareError as error:
            self._unwritten[uid] = container, asked
            log.warning(
                "the enforcer cannot change the quota yet; it retries",
                reason=str(error.reason),
                claim_uid=uid,
                error=error.message,
            )
            return
        self._unwritten.pop(uid, None)
        if claim is not None:
            for answer in claim.answers:
                if answer.answers(container, asked):
                    self._publish(claim, answer)

    def _now(self, pod_uid: str, container: str, claim: PreparedClaim) -> resize.CurrentUsage:
        gpus = resize.gpus_of(claim, resize.limit_of(claim, container))
        used = self._used_mib(gpus, pod_uid, container)
        mps = any(each.mode is Mode.MPS for each in claim.granted if each.gpu in gpus)
        return resize.CurrentUsage(used_mib=used, applies_immediately=all(map(self._at_once, gpus)), mps=mps)

    def _at_once(self, gpu: str) -> bool:
        """Whether another limit binds processes that run on a GPU; by the mode while its back end is not chosen yet."""
        backend = self._means.limiter.backends().get(gpu)
        return self._means.modes.of(gpu) is Mode.TIME_SLICING if backend is None else backend.applies_immediately

    def _used_mib(self, gpus: Sequence[str], pod_uid: str, container: str) -> int | None:
        """MiB that a container holds of that of these GPUs of which it holds most; ``None`` where one is not seen.

        While the container's processes are not known, all of the pod count as its own.
        """
        try:
            views = {view.gpu.uuid: view for view in self._means.watch.sample()}
        except NvmlError:
            return None
        seen = [views[gpu] for gpu in gpus if gpu in views and views[gpu].sample is not None]
        if len(seen) < len(gpus):
            return None
        known = {(each.pod_uid, each.container): each.container_id for each in self._means.checkpoint.latest}
        mine = known.get((pod_uid, container))
        return max(_used(view, pod_uid, mine) for view in seen)

    def _publish(self, claim: PreparedClaim, answer: ResizeResult) -> None:
        quota = quota_of(claim, answer.container)
        reason = Reason.RESIZED if answer.done else Reason.RESIZE_REFUSED
        log.info(
            "resize request handled", reason=answer.reason, namespace=claim.namespace, pod=claim.pod,
            container=answer.container, asked=answer.asked, before_mib=answer.before_mib, quota_mib=quota.memory_mib,
        )  # fmt: skip
        self._means.events.record(
            UserMessage(quota=quota, reason=reason, note=answer.note, action="Resize", warning=False)
        )


def _used(view: GpuSnapshot, pod_uid: str, container_id: str | None) -> int:
    owners = ((each.identity.owner, each.used_mib) for each in view.holders)
    mine = [
        mib
        for each, mib in owners
        if each is not None and each.pod_uid == pod_uid and container_id in {None, each.container_id}
    ]
    return sum(mine)


def _requested(claim: PreparedClaim, pods: Mapping[str, Object]) -> dict[str, Any]:
    pod = pods.get(claim.pod_uid)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return {}
    return resize.pending_requests(claim, requests_in(pod["metadata"].get("annotations") or {}))


def quota_of(claim: PreparedClaim, container: str) -> Quota:
    """Name a container, for messages."""
    return next(each for each in message_quotas(claim) if each.container == container)
