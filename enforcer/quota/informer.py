"""Follow claims, pods, namespaces and slices on the API server, and compute this node's quotas when they change.

Every thread here may fail for as long as it likes: what was known last stays in force.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from enforcer.quota.from_claims import quotas_of
from enforcer.quota.kept_fields import kept_pod
from enforcer.quota.types import Quota
from gpushare.contract import DRIVER, NAMESPACE_LABEL, is_ours
from gpushare.errors import ClusterError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.pod_claims import claim_names
from gpushare.reasons import Reason

log = structlog.get_logger()

Object = dict[str, Any]
SETTLE: Final = 0.1
"""Seconds to let a burst of events pass before quotas are worked out once."""
PATIENCE: Final = 1.0
EVERYTHING: Final = ("claims", "pods", "namespaces", "slices")
WITH_KUBELET: Final = ("pods", "namespaces")
"""What is left to look at where the kubelet has claims prepared."""


def sources(node: str) -> dict[str, tuple[str, Mapping[str, str]]]:
    """What quotas are made from: name, API path, and selectors that keep it to what may concern this node."""
    return {
        "claims": (path(RESOURCE_V1, "resourceclaims"), {}),
        "pods": (path(CORE_V1, "pods"), {"fieldSelector": f"spec.nodeName={node}"}),
        "namespaces": (path(CORE_V1, "namespaces"), {"labelSelector": f"{NAMESPACE_LABEL}=true"}),
        "slices": (path(RESOURCE_V1, "resourceslices"), {"fieldSelector": f"spec.nodeName={node}"}),
    }


class PodListener(Protocol):
    """Somebody who wants to see this node's pods as they are listed and watched."""

    def listed(self, pods: Sequence[Object]) -> None:
        """Take in all there are."""

    def changed(self, change: str, pod: Object) -> None:
        """Take in one event: ADDED, MODIFIED or DELETED."""


Rule = Callable[[Mapping[str, Sequence[Object]]], tuple[Quota, ...]]
"""From what was seen, by kind, to the quotas."""


def from_claims(node: str) -> Rule:
    """Take quotas from allocated claims, without a kubelet that has them prepared."""
    return lambda seen: quotas_of(node, seen["claims"], seen["pods"], seen["namespaces"], seen["slices"])


class QuotaInformer:
    """The objects quotas are made from, as last seen. Nothing is worked out before all kinds have been listed once.

    Args:
        node: this node's name.
        rule: how quotas come from what was seen; by default from allocated claims.
        kinds: what is looked at; the rule needs no other.
    """

    def __init__(self, node: str, rule: Rule | None = None, kinds: Iterable[str] = EVERYTHING) -> None:
        self._rule = rule or from_claims(node)
        self._kinds: dict[str, dict[str, Object] | None] = dict.fromkeys(kinds)
        self.kinds: Final = frozenset(self._kinds)
        self._lock = threading.Lock()
        self.changed: Final = threading.Event()
        self.listeners: Final[list[PodListener]] = []
        """Told of pods; to be added before anything is followed."""
        self.also: Callable[[], Iterable[str]] = tuple
        """Names of namespaces that matter, beside those of this node's pods."""

    def reset(self, kind: str, items: Iterable[Object]) -> None:
        """Know exactly these objects of one kind."""
        # Not a loop: its variable would hold an object until the next one is parsed.
        kept = [each for each in map(partial(_kept, kind), items) if each is not None]
        with self._lock:
            self._kinds[kind] = {_key(kind, item): item for item in kept}
        self.changed.set()
        self._tell(kind, lambda each: each.listed(kept))

    def event(self, kind: str, change: str, item: Object) -> None:
        """Take in one watch event."""
        with self._lock:
            known = self._kinds[kind]
            if known is None:
                return
            kept = _kept(kind, item)
            if change == "DELETED" or kept is None:
                known.pop(_key(kind, item), None)
            else:
                known[_key(kind, item)] = kept
        self.changed.set()
        if kept is not None:
            self._tell(kind, lambda each: each.changed(change, kept))

    def _tell(self, kind: str, what: Callable[[PodListener], None]) -> None:
        """Tell the listeners. The watch they hang on must not end by a bug of theirs."""
        for each in self.listeners if kind == "pods" else ():
            try:
                what(each)
            except Exception:  # a bug in one listener must not end the watch, nor what the others learn
                log.exception("a pod's change not taken in", reason=str(Reason.INTERNAL), listener=type(each).__name__)

    def quotas(self) -> tuple[Quota, ...] | None:
        """Work out the quotas; ``None`` while something has never been listed."""
        also = frozenset(self.also())
        with self._lock:
            if any(items is None for items in self._kinds.values()):
                return None
            kinds = {kind: self._seen(kind, also) for kind in self._kinds}
        return self._rule(kinds)

    def _seen(self, kind: str, also: frozenset[str]) -> list[Object]:
        """Of namespaces only those that matter here: how many others there are must not cost this node anything."""
        known = self._kinds[kind] or {}
        if kind != "namespaces":
            return list(known.values())
        names = {pod["metadata"].get("namespace") for pod in (self._kinds.get("pods") or {}).values()}
        return [known[name] for name in sorted((names - {None}) | also) if name in known]

    def claims(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the claims that this node's pods have."""
        with self._lock:
            pods = list((self._kinds["pods"] or {}).values())
        return frozenset((str(each["metadata"].get("namespace")), name) for each in pods for name in claim_names(each))

    def pods(self) -> frozenset[str] | None:
        """UIDs of this node's pods; ``None`` while they have never been listed."""
        with self._lock:
            known = self._kinds["pods"]
            return None if known is None else frozenset(known)


def _matters(kind: str, item: Object) -> bool:
    """Keep of all claims, where they are followed, only those that hold something of our driver."""
    if kind != "claims":
        return True
    allocation = ((item.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return any(result.get("driver") == DRIVER for result in allocation.get("results") or [])


def _key(kind: str, item: Object) -> str:
    return str(item["metadata"]["name" if kind == "namespaces" else "uid"])


def _kept(kind: str, item: Object) -> Object | None:
    """What is kept of an object: no more than is read, for there may be thousands and large ones; ``None``: nothing."""
    if kind == "pods":
        return kept_pod(item)
    if kind != "namespaces":
        return item if _matters(kind, item) else None
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    ours = {key: value for key, value in annotations.items() if is_ours(key)}
    return {"metadata": {"name": metadata["name"], "annotations": ours}}


def follow_quotas(
    cluster: KubeClient,
    books: QuotaInformer,
    node: str,
    on_quotas: Callable[[tuple[Quota, ...]], None],
    stopped: threading.Event,
) -> None:
    """Keep telling ``on_quotas`` what the quotas are, from threads that end with the process."""
    for kind, (where, query) in sources(node).items():
        if kind not in books.kinds:
            continue
        follower = Informer(cluster, where, partial(books.reset, kind), partial(books.event, kind), _failed, **query)
        _thread(f"follow-{kind}", partial(follower.run, stopped.is_set))
    _thread("quotas", partial(_keep_quotas, books, on_quotas, stopped))


def _keep_quotas(
    books: QuotaInformer, on_quotas: Callable[[tuple[Quota, ...]], None], stopped: threading.Event
) -> None:
    while not stopped.is_set():
        if not books.changed.wait(PATIENCE):
            continue
        time.sleep(SETTLE)
        books.changed.clear()
        try:
            quotas = books.quotas()
            if quotas is not None:
                on_quotas(quotas)
        except OSError as error:
            log.warning("quotas not written; tried again", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))
            _once_more(books)
        except Exception:  # whatever it is, it must not be the end of learning who may hold what
            log.exception("quotas not worked out; tried again", reason=str(Reason.INTERNAL))
            _once_more(books)


def _once_more(books: QuotaInformer) -> None:
    time.sleep(PATIENCE)
    books.changed.set()


def _failed(error: ClusterError) -> None:
    log.warning("watch interrupted; what was known stays in force", reason=str(error.reason), error=error.message)


def _thread(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()
