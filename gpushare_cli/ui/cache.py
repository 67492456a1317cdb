"""One list and one watch for each kind of object that pages show; what else is asked goes to the API server.

``explain``, ``check``, ``top`` and ``placement`` read through this client and need not know of it. It writes nothing.
Of objects that tenants write only the fields that pages read of lists are kept: each may have a megabyte.

``Changes`` is a number that grows, ``Polled`` a value that is read again while pages ask, ``History`` has curves.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Condition, Event, Lock, Thread
from typing import Any, Final, Generic, NoReturn, TypeVar

from gpushare import contract
from gpushare.contract import ENFORCER_REPORTER
from gpushare.errors import ClusterError, GpuShareError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, GARBAGE, RESOURCE_V1, KubeClient, Object, path
from gpushare.raw_objects import mapping, objects, text
from gpushare_cli.lookups import SHARING, picked

T = TypeVar("T")
INTEREST: Final = 30.0
"""Seconds for which a value is read again after a page asked for it."""
KEEP: Final = 10.0
"""Seconds after which pages are made again also where nothing changed: so a page that is open goes on asking."""
WINDOW: Final = 900.0
"""Seconds of a curve."""
UNREADABLE: Final = "an object of the cluster has another shape than Kubernetes gives it"
POINTS: Final = 300
"""Of one curve at most."""
CURVES: Final = 20_000
"""So many are kept; of more, those that have ended are dropped."""


class Changes:
    """A number that grows with every change; pages wait for the next one.

    Args:
        once: whether values are read once and never again, for a snapshot.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.once = once
        self._number, self._news, self.closed = 0, Condition(), Event()

    def note(self) -> None:
        """Say that something changed."""
        with self._news:
            self._number += 1
            self._news.notify_all()

    def close(self) -> None:
        """End what reads for pages."""
        self.closed.set()
        self.note()

    @property
    def number(self) -> int:
        """The number now."""
        return self._number

    def wait(self, seen: int, seconds: float) -> int:
        """Return the number once it is not ``seen`` any more, or after so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self._number != seen, seconds)
            return self._number


class Polled(Generic[T]):
    """A value that a thread reads again every ``seconds``, as long as pages ask for it.

    Args:
        read: reads it; it may raise ``GpuShareError``, which is the value then.
        seconds: between two reads.
        changes: hears of each new value.
    """

    def __init__(self, read: Callable[[], T], seconds: float, changes: Changes) -> None:
        self._read, self._seconds, self._changes = read, seconds, changes
        self._value: T | GpuShareError | None = None
        self._asked, self._runs, self._lock, self._ready = 0.0, False, Lock(), Event()

    def get(self, wait: float = 0.0) -> T | GpuShareError | None:
        """Return the last value; before the first one wait so many seconds for it, then ``None``."""
        with self._lock:
            self._asked = time.monotonic()
            if not self._runs:
                self._runs, self._value = True, None  # what was read before a pause is old
                self._ready.clear()
                Thread(target=self._poll, daemon=True).start()
        self._ready.wait(wait)
        return self._value

    def _poll(self) -> None:
        noted = 0.0
        while True:
            before = self._value
            try:
                self._value = self._read()
            except GpuShareError as error:
                self._value = error
            except GARBAGE as error:
                self._value = GpuShareError(f"{UNREADABLE}: {error!r:.200}")
            except RuntimeError:  # no more threads at the interpreter's end
                if self._changes.closed.is_set():
                    return
                raise
            self._ready.set()
            if not _same(before, self._value) or time.monotonic() - noted > KEEP:
                noted = time.monotonic()
                self._changes.note()
            if self._changes.once:
                return
            ended = self._changes.closed.wait(self._seconds)
            with self._lock:
                if ended or time.monotonic() - self._asked > INTEREST:
                    self._runs = False
                    return


def _same(one: object, other: object) -> bool:
    if isinstance(one, GpuShareError) and isinstance(other, GpuShareError):
        return one.message == other.message
    return one == other


class History:
    """Curves of the last ``WINDOW`` seconds: what was seen while pages were open."""

    def __init__(self) -> None:
        self._points = defaultdict[Hashable, deque[tuple[float, int]]](lambda: deque(maxlen=POINTS))
        self._lock = Lock()

    def add(self, key: Hashable, at: float, value: int | None) -> None:
        """Note a value at a time, in seconds of the monotonic clock; ``None`` is not noted."""
        with self._lock:
            if len(self._points) > CURVES:
                for old in [each for each, points in self._points.items() if not points or at - points[-1][0] > WINDOW]:
                    del self._points[old]
            points = self._points[key]
            if value is not None and (not points or points[-1][0] < at):
                points.append((at, value))

    def begin(self, key: Hashable, points: Sequence[tuple[float, int]]) -> None:
        """Put points before the first one of a curve, as many as it has room for."""
        with self._lock:
            mine = self._points[key]
            older = [each for each in points if not mine or each[0] < mine[0][0]]
            mine.extendleft(older[: -(POINTS - len(mine)) - 1 : -1])

    def of(self, key: Hashable, now: float) -> list[tuple[float, int]]:
        """Return the points of a curve as seconds before ``now`` (negative) and value."""
        return [(at - now, value) for at, value in list(self._points.get(key, ())) if now - at <= WINDOW]


FIRST_SECONDS: Final = 15.0
"""So long a page waits for the first list of a kind."""
FOLLOWED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "nodes": (CORE_V1, {}),
    "resourceslices": (RESOURCE_V1, {}),
    "resourceclaims": (RESOURCE_V1, {}),
    "pods": (CORE_V1, {"labelSelector": SHARING}),
    "events": (CORE_V1, {"fieldSelector": f"reportingComponent={ENFORCER_REPORTER}"}),
}
"""The kinds that are followed: where they are, and which of them."""


class Cached(KubeClient):
    """A client that answers lists of followed kinds from memory.

    Where the user may not list a kind in the cluster, it is followed in each namespace that is asked for.
    """

    def __init__(self, api: KubeClient, changes: Changes) -> None:
        self._api, self.changes = api, changes
        self._followers: dict[tuple[str, str], _Follower] = {}
        self._lock = Lock()

    def start(self) -> None:
        """Begin to read each kind, all at once: the first page needs several."""
        for kind in FOLLOWED:
            self._follower(kind, "")

    def get(self, where: str, **query: Any) -> Object:
        """See ``KubeClient``."""
        return self._api.get(where, **query)

    def listing(self, where: str, **query: str) -> Any:
        """See ``KubeClient``."""
        kind = where.rpartition("/")[2]
        namespace = where.split("/namespaces/")[1].partition("/")[0] if "/namespaces/" in where else ""
        if not _is_followed(kind, query):
            return self._api.listing(where, **query)
        return iter([each for each in self._items(kind, namespace) if _is_selected(each, query)])

    def run(self, *words: Any, **more: Any) -> Iterator[bytes]:
        """See ``KubeClient``."""
        return self._api.run(*words, **more)

    def problems(self) -> list[str]:
        """Return the sentences about what was read once and cannot be read now."""
        return [each.problem for each in list(self._followers.values()) if each.problem]

    def _call(self, *_: Any, **__: Any) -> NoReturn:
        raise GpuShareError("gpu-share ui changes nothing in the cluster")

    def _items(self, kind: str, namespace: str) -> list[Object]:
        try:
            found = self._follower(kind, "").items()
        except ClusterError as error:
            if not namespace or error.status != HTTPStatus.FORBIDDEN:
                raise
            return self._follower(kind, namespace).items()
        return [each for each in found if namespace in {"", text(each["metadata"], "namespace")}]

    def _follower(self, kind: str, namespace: str) -> "_Follower":
        with self._lock:
            if (kind, namespace) not in self._followers:
                base, query = FOLLOWED[kind]
                follower = _Follower(self.changes, kind)
                self._followers[kind, namespace] = follower
                follower.start(self._api, path(base, kind, namespace=namespace), query)
            return self._followers[kind, namespace]

    def list(self, where: str, **query: str) -> tuple[list[Object], str]:
        """See ``KubeClient``; there is no version to watch from."""
        return list(self.listing(where, **query)), ""


@dataclass
class _Follower:
    """The objects of one list and its watch."""

    changes: Changes
    kind: str
    found: dict[tuple[str, str], Object] = field(default_factory=dict)
    read: bool = False
    error: ClusterError | None = None
    tried: Event = field(default_factory=Event)

    def start(self, api: KubeClient, where: str, query: Mapping[str, str]) -> None:
        informer = Informer(api, where, self._on_list, self._on_event, self._on_error, **query)
        Thread(target=informer.run, args=(self.changes.closed.is_set,), daemon=True).start()

    @property
    def problem(self) -> str:
        return f"not current: {self.error.message}" if self.read and self.error is not None else ""

    def items(self) -> list[Object]:
        """Raises ``ClusterError`` where they were never read."""
        self.tried.wait(FIRST_SECONDS)
        if not self.read:
            raise self.error or ClusterError("the API server does not answer yet; the page shows it once it does")
        return list(self.found.values())

    def _on_list(self, items: Iterator[Object]) -> None:
        self.found = {_key(each): slim(self.kind, each) for each in items}
        self.read, self.error = True, None
        self._note()

    def _on_event(self, kind: str, item: Object) -> None:
        found = dict(self.found)
        if kind == "DELETED":
            found.pop(_key(item), None)
        else:
            found[_key(item)] = slim(self.kind, item)
        self.found, self.error = found, None
        self._note()

    def _on_error(self, error: ClusterError) -> None:
        if str(error) != str(self.error):
            self.error = error
            self._note()
        self.tried.set()

    def _note(self) -> None:
        self.tried.set()
        self.changes.note()


def _key(item: Object) -> tuple[str, str]:
    return text(item["metadata"], "namespace"), text(item["metadata"], "name")


def _is_followed(kind: str, query: Mapping[str, str]) -> bool:
    """Tell whether all that a query asks for is among what is followed, and can be selected here."""
    if kind not in FOLLOWED or not query.keys() <= {"labelSelector", "fieldSelector"}:
        return False
    terms = _terms(query)
    needed = _terms(FOLLOWED[kind][1])
    return set(needed) <= set(terms) and all(path_ in _FIELDS for is_label, path_, _, _ in terms if not is_label)


_FIELDS: Final = {"spec.driver", "reason", "reportingComponent", "involvedObject.uid"}


def _is_selected(item: Object, query: Mapping[str, str]) -> bool:
    labels = mapping(mapping(item, "metadata"), "labels")
    return all(
        (name in labels if value is None else (labels.get(name) if is_label else _field(item, name)) == value) is equal
        for is_label, name, equal, value in _terms(query)
    )


def _terms(query: Mapping[str, str]) -> list[tuple[bool, str, bool, str | None]]:
    """Read selectors of the forms ``a=b``, ``a!=b`` and ``a``: whether of a label, its name, whether equal, the value.

    The value is ``None`` for any.
    """
    found = []
    for key, selector in query.items():
        for each in selector.split(","):
            name, sign, value = each.partition("=")
            found.append((key == "labelSelector", name.rstrip("!"), not name.endswith("!"), value if sign else None))
    return found


def _field(item: Object, name: str) -> object:
    value: object = item
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


MAX_MESSAGE: Final = 1024
OF_METADATA: Final = (
    "namespace", "name", "uid", "labels", "ownerReferences", "resourceVersion", "deletionTimestamp",
)  # fmt: skip
OF_EVENTS: Final = (
    "involvedObject", "reason", "action", "type", "reportingComponent", "reportingInstance", "eventTime",
    "lastTimestamp",
)  # fmt: skip
OF_PODS: Final = ("nodeName", "resourceClaims")
OF_POD_STATUS: Final = ("phase", "startTime", "containerStatuses", "initContainerStatuses", "resourceClaimStatuses")
OF_CONTAINERS: Final = ("name", "resources", "restartPolicy")
DROPPED: Final = {"metadata": ("managedFields",), "status": ("images",)}
"""Of objects that no tenant writes."""


def slim(kind: str, item: Object) -> Object:
    """Return what is kept of an object of a followed kind."""
    if kind == "pods":
        return _pod(item)
    if kind == "resourceclaims":
        return {"metadata": picked(item["metadata"], OF_METADATA), "status": item.get("status")}
    if kind == "events":
        message = {"message": str(item.get("message"))[:MAX_MESSAGE]}
        return {"metadata": picked(item["metadata"], OF_METADATA), **picked(item, OF_EVENTS), **message}
    return {
        key: {k: v for k, v in value.items() if k not in DROPPED.get(key, ())} if isinstance(value, dict) else value
        for key, value in item.items()
    }


def _pod(item: Object) -> Object:
    spec, written = mapping(item, "spec"), mapping(mapping(item, "metadata"), "annotations")
    ours = {key: value for key, value in written.items() if contract.GROUP in key or key == contract.DEFAULT_CONTAINER}
    containers = {
        key: [picked(each, OF_CONTAINERS) for each in objects(spec, key)] for key in ("initContainers", "containers")
    }
    return {
        "metadata": {**picked(item["metadata"], OF_METADATA), "annotations": ours},
        "spec": {**picked(spec, OF_PODS), **containers},
        "status": picked(mapping(item, "status"), OF_POD_STATUS),
    }
