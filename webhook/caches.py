"""What the webhook knows of the cluster when a review comes in: namespaces with their policy, claims of GPUs.

Kept by watches, so that answering a review needs no call. A namespace that no watch has shown yet is read live,
because admitting a pod without its namespace's maximum would be worse than not answering.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.errors import ConfigError, PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from webhook import live_policies
from webhook.claim_templates import references
from webhook.flags import documents
from webhook.live_policies import LivePolicies, Policy

Object = dict[str, Any]
CLAIM: Final = "claim"
TEMPLATE: Final = "template"
NOTHING: Final[frozenset[str]] = frozenset()
_Names = dict[str, set[str]]
"""By namespace."""
_ByKind = dict[str, _Names]


class NamespacePolicyCache:
    """Policy by namespace. Reading and writing single entries is atomic, so that no lock stands in a request's way.

    Args:
        live: where a namespace is read that no watch has shown; ``None`` where there is no API server.
    """

    def __init__(self, live: LivePolicies | None = None) -> None:
        self._live = live
        self._policies: dict[str, Policy] = {}
        self.synced = False

    def __contains__(self, name: str) -> bool:
        return name in self._policies

    def policy(self, name: str) -> NamespacePolicy:
        """Return the policy of an opted-in namespace.

        Raises:
            PolicyDenied: its annotations are not a policy; the message names them.
            GpuShareError: no such namespace has opted in, or it cannot be read now.
        """
        known = self._policies.get(name)
        if known is None and self._live:
            known = self._live.policy(name)
        if known is None:
            raise live_policies.unknown(name)
        return _usable(known)

    def replace(self, namespaces: Iterable[Object]) -> None:
        """Know exactly these."""
        self._policies = {item["metadata"]["name"]: live_policies.parse(item) for item in namespaces}
        self.synced = True
        if self._live:
            self._live.forget()

    def on_event(self, kind: str, namespace: Object) -> None:
        """Take in one watch event."""
        name = namespace["metadata"]["name"]
        if kind == "DELETED":
            self._policies.pop(name, None)
        else:
            self._policies[name] = live_policies.parse(namespace)
        if self._live:
            self._live.forget(name)


class KnownClaims:
    """Claims and claim templates that give GPUs: ``claim/<name>``, ``template/<name>``.

    Those of our DeviceClasses that people wrote, and those that ask for GPUs of other drivers. A namespace's set is
    changed where it is: a copy would cost each event as much as there are names.
    """

    def __init__(self) -> None:
        self._own: _ByKind = {CLAIM: {}, TEMPLATE: {}}
        self._others: _ByKind = {CLAIM: {}, TEMPLATE: {}}
        self._synced: set[str] = set()

    @property
    def synced(self) -> bool:
        """Whether both kinds have been listed."""
        return self._synced == {CLAIM, TEMPLATE}

    def own(self, namespace: str) -> "Names":
        """Those of our classes in a namespace."""
        return _of_namespace(self._own, namespace)

    def others(self, namespace: str) -> "Names":
        """Those of other GPU drivers in a namespace."""
        return _of_namespace(self._others, namespace)

    def reset(self, kind: str, items: Iterable[Object]) -> None:
        """Know exactly these of ``kind``, which is ``CLAIM`` or ``TEMPLATE``."""
        for _ in self.listing(kind, items):
            continue

    def listing(self, kind: str, items: Iterable[Object]) -> Iterator[Object]:
        """Pass a list on object by object, and know exactly these once it has come to its end."""
        own: _Names = {}
        others: _Names = {}
        for item in items:
            if references.is_own(item, template=kind == TEMPLATE):
                _add(own, item)
            if references.is_of_other_gpus(item, template=kind == TEMPLATE):
                _add(others, item)
            yield item
        self._own[kind], self._others[kind] = own, others
        self._synced.add(kind)

    def event(self, kind: str, change: str, item: Object) -> None:
        """Take in one watch event."""
        gone = change == "DELETED"
        for known, counts in ((self._own, references.is_own), (self._others, references.is_of_other_gpus)):
            if not gone and counts(item, template=kind == TEMPLATE):
                _add(known[kind], item)
            else:
                _discard(known[kind], item)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one namespace by kind, read as ``claim/<name>`` and ``template/<name>``."""

    by_kind: Mapping[str, AbstractSet[str]]

    def __contains__(self, name: object) -> bool:
        kind, _, rest = str(name).partition("/")
        return rest in self.by_kind.get(kind, NOTHING)


def _of_namespace(known: _ByKind, namespace: str) -> Names:
    return Names({kind: names.get(namespace, NOTHING) for kind, names in known.items()})


def _add(known: _Names, item: Object) -> None:
    known.setdefault(item["metadata"]["namespace"], set()).add(item["metadata"]["name"])


def _discard(known: _Names, item: Object) -> None:
    namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
    if name in known.get(namespace, NOTHING):
        known[namespace].discard(name)
        if not known[namespace]:
            del known[namespace]


def static_namespaces(file: Path) -> NamespacePolicyCache:
    """Policies from a file of Namespace objects (YAML documents or lists, or JSON), for use without an API server.

    Raises:
        ConfigError: the file cannot be read as that.
    """
    found = [item for document in documents("--namespaces", file) for item in _flatten(document)]
    if not all(map(_is_namespace, found)):
        raise ConfigError(f"--namespaces {file} contains an object that is not a Namespace with a name; remove it")
    namespaces = NamespacePolicyCache()
    namespaces.replace(filter(live_policies.opted_in, found))
    return namespaces


def _is_namespace(item: Any) -> bool:
    metadata = item.get("metadata") if isinstance(item, dict) and item.get("kind") == "Namespace" else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return False
    return all(isinstance(metadata.get(key), dict | None) for key in ("labels", "annotations"))


def _flatten(document: Any) -> list[Any]:
    if isinstance(document, list):
        return document
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        found = document.get("items") or []
        return found if isinstance(found, list) else [found]
    return [] if document is None else [document]


def _usable(policy: Policy) -> NamespacePolicy:
    if isinstance(policy, PolicyDenied):
        # A fresh one: raising a kept exception would lengthen its traceback with each request.
        raise PolicyDenied.of(policy.problems, complete=policy.complete)
    return policy
