"""Which claim templates are missing and which are left over, from the pods and templates seen. Pure; time is passed in.

A template is named by the hash of its content and rebuilt from the stored pod alone, so any replica can create it, at
any time, also after a crash; and one that several pods of a namespace name is there once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.contract import CLAIM, MANAGED_LABEL, TEMPLATE_PREFIX

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of a template."""
FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A template that a pod names. ``body`` is ``None`` where its content does not give its name: never created."""

    key: Key
    body: Object | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A template of ours that is there; the versions make sure that it is this one that gets deleted."""

    key: Key
    uid: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now."""

    create: tuple[Wanted, ...]
    delete: tuple[Existing, ...]
    unused_since: Mapping[Key, float]
    """To be passed to the next ``plan``: when each unused template was first seen unused."""


@dataclass(slots=True)
class Books:
    """What the watches have told so far. Pods by UID, templates by key."""

    pods: dict[str, Wanted] = field(default_factory=dict)
    templates: dict[Key, Existing] = field(default_factory=dict)


def reference(pod: Mapping[str, Any]) -> Key | None:
    """The template a live, managed pod takes its claim from, or ``None``."""
    metadata = pod.get("metadata") or {}
    if (metadata.get("labels") or {}).get(MANAGED_LABEL) != "true":
        return None
    if (pod.get("status") or {}).get("phase") in FINISHED:
        return None
    for entry in (pod.get("spec") or {}).get("resourceClaims") or []:
        name = entry.get("resourceClaimTemplateName")
        if entry.get("name") == CLAIM and isinstance(name, str) and name.startswith(TEMPLATE_PREFIX):
            return metadata.get("namespace", ""), name
    return None


def wanted(pod: Mapping[str, Any], template_for: Callable[[Mapping[str, Any]], Object | None]) -> Wanted | None:
    """What a stored pod asks for: nothing, a template, or a name that its content does not give (``body`` is None).

    Args:
        pod: as the API server stores it.
        template_for: rebuilds the template from the pod's spec.
    """
    key = reference(pod)
    if key is None:
        return None
    template = template_for(pod)
    if template is None or template["metadata"]["name"] != key[1]:
        return Wanted(key=key, body=None)
    return Wanted(key=key, body=template)


def existing(template: Mapping[str, Any]) -> Existing | None:
    """A template that is ours by label and by name, or ``None``: what is not ours is never deleted."""
    metadata = template["metadata"]
    ours = (metadata.get("labels") or {}).get(MANAGED_LABEL) == "true"
    if not ours or not metadata["name"].startswith(TEMPLATE_PREFIX):
        return None
    key = (metadata["namespace"], metadata["name"])
    return Existing(key=key, uid=metadata["uid"], version=metadata["resourceVersion"])


def plan(
    books: Books,
    *,
    opted_in: Callable[[str], bool],
    unused_since: Mapping[Key, float],
    now: float,
    retention: float,
) -> Plan:
    """Compare what is wanted with what is there.

    Args:
        books: what the watches have told.
        opted_in: whether a namespace takes part; elsewhere nothing is created.
        unused_since: from the previous plan.
        now: seconds on any clock that does not jump.
        retention: seconds a template stays after the last live pod that names it.
    """
    missing: dict[Key, Wanted] = {}
    referenced: set[Key] = set()
    for item in books.pods.values():
        referenced.add(item.key)
        if item.body is not None and item.key not in books.templates and opted_in(item.key[0]):
            missing[item.key] = item
    unused = {key: unused_since.get(key, now) for key in books.templates if key not in referenced}
    due = tuple(books.templates[key] for key, since in unused.items() if now - since >= retention)
    return Plan(create=tuple(missing.values()), delete=due, unused_since=unused)


def own_names(objects: Iterable[Mapping[str, Any]], classes: Collection[str], *, template: bool) -> set[Key]:
    """Namespace and name of the claims (or, with ``template``, claim templates) that ask for one of ``classes``."""
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"])
        for item in objects
        if asks_for(item, classes, template=template)
    }


def asks_for(item: Mapping[str, Any], classes: Collection[str], *, template: bool) -> bool:
    """Whether any request of a claim, also as an alternative, is for one of ``classes``."""
    spec = item.get("spec") or {}
    spec = (spec.get("spec") or {}) if template else spec
    requests = (spec.get("devices") or {}).get("requests") or []
    choices = [choice for r in requests for choice in (r.get("exactly"), *(r.get("firstAvailable") or ()))]
    return any(choice and choice.get("deviceClassName") in classes for choice in choices)
