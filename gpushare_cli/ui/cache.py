"""One list and one watch for each kind of object that pages show; what else is asked goes to the API server.

``explain``, ``check``, ``top`` and ``placement`` read through this client and need not know of it. It writes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event, Lock, Thread
from typing import Any, Final, NoReturn

from gpushare.contract import ENFORCER_REPORTER
from gpushare.errors import ClusterError, GpuShareError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, Object, path
from gpushare.raw_objects import mapping, text
from gpushare_cli.lookups import SHARING
from gpushare_cli.ui.changes import Changes
from gpushare_cli.ui.slimming import slim

FIRST_SECONDS: Final = 15.0
"""So long a page waits for the first list of a kind."""
OF_ENFORCERS: Final = {"fieldSelector": f"reportingComponent={ENFORCER_REPORTER}"}
FOLLOWED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "nodes": (CORE_V1, {}),
    "resourceslices": (RESOURCE_V1, {}),
    "resourceclaims": (RESOURCE_V1, {}),
    "pods": (CORE_V1, {"labelSelector": SHARING}),
    "events": (CORE_V1, OF_ENFORCERS),
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
