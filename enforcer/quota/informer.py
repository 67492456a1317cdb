"""Follow claims, pods, namespaces and slices on the API server, and compute this node's quotas when they change.

Every thread here may fail for as long as it likes: what was known last stays in force.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.from_claims import quotas_of
from enforcer.quota.kept_fields import kept_pod
from enforcer.quota.types import Quota
from enforcer.runtime.manager import Manager, Wake
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
LOOK_EVERY: Final = 5.0
"""Seconds after which containers are looked for again that started unseen: the API server may be away."""
STATE: Final = "state"
"""The thread that waits for the disk of the state directory."""
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

    def replace(self, pods: Sequence[Object]) -> None:
        """Take in all there are."""

    def on_event(self, change: str, pod: Object) -> None:
        """Take in one event: ADDED, MODIFIED or DELETED."""


class QuotaRule(Protocol):
    """How quotas follow from the objects on the API server."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of objects that the rule needs."""

    def namespaces(self) -> frozenset[str]:
        """Return the namespaces that matter beside those of this node's pods."""

    def quotas(self, seen: Mapping[str, Sequence[Object]]) -> tuple[Quota, ...]:
        """Return the quotas, from the objects by kind."""


class AllocatedClaims:
    """Takes quotas from allocated claims, where the enforcer prepares none.

    Args:
        node: this node's name.
    """

    kinds = EVERYTHING

    def __init__(self, node: str) -> None:
        self._node = node

    def namespaces(self) -> frozenset[str]:
        """See ``QuotaRule``."""
        return frozenset()

    def quotas(self, seen: Mapping[str, Sequence[Object]]) -> tuple[Quota, ...]:
        """See ``QuotaRule``."""
        return quotas_of(self._node, seen["claims"], seen["pods"], seen["namespaces"], seen["slices"])


class ContainerIds(Protocol):
    """Knows which containers run on this node; ``enforcer.attribution.container_names.ContainerNames`` does."""

    def joined(self, quotas: Sequence[Quota], before: Sequence[Quota]) -> tuple[Quota, ...]:
        """Give each quota the id of the container that it is for; ``before`` are earlier quotas."""


class QuotaInformer:
    """The objects quotas are made from, as last seen. Nothing is worked out before all kinds have been listed once.

    Args:
        rule: how quotas come from what was seen.
        changed: set when something was seen.
        listeners: get each pod.
    """

    prefix = ""
    """Of the names of tasks and threads."""

    def __init__(self, rule: QuotaRule, changed: threading.Event, listeners: Sequence[PodListener] = ()) -> None:
        self._rule, self._changed, self._listeners = rule, changed, tuple(listeners)
        self._kinds: dict[str, dict[str, Object] | None] = dict.fromkeys(rule.kinds)
        self.kinds: Final = frozenset(self._kinds)
        self._lock = threading.Lock()

    def replace(self, kind: str, items: Iterable[Object]) -> None:
        """Know exactly these objects of one kind."""
        # Not a loop: its variable would hold an object until the next one is parsed.
        kept = [each for each in map(partial(self._kept, kind), items) if each is not None]
        with self._lock:
            self._kinds[kind] = {_key(kind, item): item for item in kept}
        self._changed.set()
        self._notify(kind, lambda each: each.replace(kept))

    def on_event(self, kind: str, change: str, item: Object) -> None:
        """Take in one watch event."""
        with self._lock:
            known = self._kinds[kind]
            if known is None:
                return
            kept = self._kept(kind, item)
            if change == "DELETED" or kept is None:
                known.pop(_key(kind, item), None)
            else:
                known[_key(kind, item)] = kept
        self._changed.set()
        if kept is not None:
            self._notify(kind, lambda each: each.on_event(change, kept))

    def _kept(self, kind: str, item: Object) -> Object | None:
        """Keep of an object no more than is read, for there may be thousands and large ones; ``None``: nothing."""
        if kind == "pods":
            return kept_pod(item)
        if kind == "claims":
            return item if _is_of_ours(item) else None
        return _kept_namespace(item) if kind == "namespaces" else item

    def _notify(self, kind: str, what: Callable[[PodListener], None]) -> None:
        """Tell the listeners. The watch they hang on must not end by a bug of theirs."""
        for each in self._listeners if kind == "pods" else ():
            try:
                what(each)
            except Exception:  # a bug in one listener must not end the watch, nor what the others learn
                log.exception(
                    "listener failed on a pod change", reason=str(Reason.INTERNAL), listener=type(each).__name__
                )

    def quotas(self) -> tuple[Quota, ...] | None:
        """Work out the quotas; ``None`` while something has never been listed."""
        also = self._rule.namespaces()
        with self._lock:
            if any(items is None for items in self._kinds.values()):
                return None
            kinds = {kind: self._seen(kind, also) for kind in self._kinds}
        return self._rule.quotas(kinds)

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


def _is_of_ours(item: Object) -> bool:
    """Tell whether a claim holds something of our driver: only such are kept."""
    allocation = ((item.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return any(result.get("driver") == DRIVER for result in allocation.get("results") or [])


def _key(kind: str, item: Object) -> str:
    return str(item["metadata"]["name" if kind == "namespaces" else "uid"])


def _kept_namespace(item: Object) -> Object:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    ours = {key: value for key, value in annotations.items() if is_ours(key)}
    return {"metadata": {"name": metadata["name"], "annotations": ours}}


def add_informers(
    manager: Manager,
    cluster: KubeClient,
    books: QuotaInformer,
    node: str,
    checkpoint: Checkpoint,
    ids: ContainerIds,
    changed: Wake,
) -> None:
    """Follow the objects, each kind in a thread of its own, and keep the checkpoint up to date.

    Args:
        manager: of the threads.
        cluster: where the objects are.
        books: take in the objects.
        node: this node's name.
        checkpoint: takes the quotas.
        ids: knows which containers run.
        changed: set when the quotas have to be worked out again.
    """
    for kind, (where, query) in sources(node).items():
        if kind in books.kinds:
            follower = Informer(
                cluster, where, partial(books.replace, kind), partial(books.on_event, kind), _failed, **query
            )
            name, run = f"follow-{books.prefix}{kind}", partial(follower.run, manager.stopped.is_set)
            manager.add_server(name, threading.Thread(target=run, name=name, daemon=True).start, None)
    write = partial(_write_quotas, books, checkpoint, ids, changed)
    manager.add(f"{books.prefix}quotas", write, every=LOOK_EVERY, wake=changed, thread=STATE)


def _write_quotas(books: QuotaInformer, checkpoint: Checkpoint, ids: ContainerIds, changed: Wake) -> None:
    """Write the quotas; until the API server has listed everything, earlier quotas with the containers of now."""
    time.sleep(SETTLE)
    changed.clear()
    try:
        before, quotas = checkpoint.read(), books.quotas()
        if before or quotas is not None:
            checkpoint.write(ids.joined(before if quotas is None else quotas, before))
    except OSError as error:
        log.warning("quotas not written; retrying", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))
        _once_more(changed)
    except Exception:  # whatever it is, it must not be the end of learning who may hold what
        log.exception("quotas not computed; retrying", reason=str(Reason.INTERNAL))
        _once_more(changed)


def _once_more(changed: Wake) -> None:
    time.sleep(PATIENCE)
    changed.set()


def _failed(error: ClusterError) -> None:
    log.warning("watch interrupted; the cached objects stay in use", reason=str(error.reason), error=error.message)
