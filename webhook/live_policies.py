"""Read the policies of namespaces that no watch has shown yet, few enough that strangers cannot burden the API server.

Without client certificates every pod of the cluster can send reviews, and a review can name any namespace. So answers
are kept for a few seconds, also the one that a namespace takes no part, and calls are limited over all callers.
"""

import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog

from gpushare.contract import NAMESPACE_LABEL
from gpushare.errors import ClusterError, GpuShareError, PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.patterns import Pattern
from gpushare.reasons import Reason
from webhook.must_wait import MustWait

log = structlog.get_logger()

Object = dict[str, Any]
Policy = NamespacePolicy | PolicyDenied
"""A namespace's policy, or the mistake in its annotations."""

KEPT_SECONDS: Final = 5.0
MAX_KEPT: Final = 256
BURST: Final = 10
READS_PER_SECOND: Final = 2.0
MAX_NAME: Final = 63
_NAME: Final = Pattern(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", MAX_NAME)


class LivePolicies:
    """Policies as the API server has them, at most ``KEPT_SECONDS`` old. Safe to use from several threads.

    Args:
        get: reads a namespace; raises ``ClusterError``.
        clock: monotonic seconds.
        may_wait: whether the calling thread may wait for ``get``.
    """

    def __init__(
        self,
        get: Callable[[str], Object],
        clock: Callable[[], float] = time.monotonic,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self._get, self._clock, self._may_wait = get, clock, may_wait
        self._lock = threading.Lock()
        """Guards the two below, and is released during requests to the API server."""
        self._kept: dict[str, tuple[float, Policy | None]] = {}
        self._budget, self._counted = float(BURST), clock()

    def policy(self, name: str) -> Policy | None:
        """Return a namespace's policy; ``None`` where the namespace does not exist or has not opted in.

        Raises:
            GpuShareError: it cannot be read now.
        """
        if _NAME.fullmatch(name) is None:  # an RFC 1123 label
            return None
        with self._lock:
            until, policy = self._kept.get(name, (float("-inf"), None))
            if self._clock() < until:
                return policy
            if not self._may_wait():
                raise MustWait
            self._spend(name)
        policy = self._read(name)
        with self._lock:
            self._keep(name, policy)
        return policy

    def forget(self, name: str | None = None) -> None:
        """Drop what is kept of one namespace, or of all: a watch has shown something newer."""
        with self._lock:
            if name is None:
                self._kept.clear()
            else:
                self._kept.pop(name, None)

    def _spend(self, name: str) -> None:
        now = self._clock()
        self._budget = min(float(BURST), self._budget + (now - self._counted) * READS_PER_SECOND)
        self._counted = now
        if self._budget < 1:
            raise not_now(name)
        self._budget -= 1

    def _read(self, name: str) -> Policy | None:
        try:
            namespace = self._get(name)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            # Its sentence names the API server's address, which is none of a stranger's business.
            log.warning(
                "namespace cannot be read",
                reason=error.reason,
                namespace=name,
                status=error.status,
                error=error.message,
            )
            raise not_now(name) from error
        return parse(namespace) if opted_in(namespace) else None

    def _keep(self, name: str, policy: Policy | None) -> None:
        self._kept.pop(name, None)
        self._kept[name] = (self._clock() + KEPT_SECONDS, policy)
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]


def opted_in(namespace: Mapping[str, Any]) -> bool:
    """Tell whether a namespace has the label that makes it take part."""
    return (namespace["metadata"].get("labels") or {}).get(NAMESPACE_LABEL) == "true"


def parse(namespace: Mapping[str, Any]) -> Policy:
    """Read the policy in a namespace's annotations; a mistake in them is returned."""
    try:
        return NamespacePolicy.from_annotations(namespace["metadata"].get("annotations") or {})
    except PolicyDenied as error:
        return error


def unknown(name: str) -> GpuShareError:
    """Make the error for a namespace without a policy. It does not say whether the namespace exists."""
    message = f"namespace {name[:MAX_NAME]!r} does not share GPUs; label it {NAMESPACE_LABEL}=true, or try again"
    return GpuShareError(message, Reason.NAMESPACE_UNKNOWN)


def not_now(name: str) -> GpuShareError:
    """Make the error for a namespace that cannot be read at this moment."""
    message = f"the policy of namespace {name[:MAX_NAME]!r} cannot be read now; try again"
    return GpuShareError(message, Reason.NAMESPACE_UNKNOWN)
