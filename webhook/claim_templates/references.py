"""What pods and claim templates say about each other, read from the objects themselves. Pure.

A template is named by the hash of its content and rebuilt from the stored pod alone, so any replica can create it, at
any time, also after a crash; and one that several pods of a namespace name is there once.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.contract import CLAIM, MANAGED_LABEL, TEMPLATE_PREFIX
from webhook.mutation.template_content import content

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of a template."""
FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A template that a pod names. ``body`` is ``None`` where its content does not give its name: never created."""

    key: Key
    body: Object | None

    @property
    def sound(self) -> bool:
        """Whether the pod's content gives the name."""
        return self.body is not None

    @property
    def essence(self) -> int:
        """What the template asks for, as a number of ``template_content``."""
        return content(self.body or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A template of one of our names that is there; the versions make sure that it is this one that gets deleted."""

    key: Key
    uid: str
    version: str
    ours: bool = True
    """Whether it has our label: what has not is never deleted."""
    essence: int = 0
    """What it asks for, as a number of ``template_content``."""


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
            return sys.intern(metadata.get("namespace", "")), sys.intern(name)
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
    """A template under one of our names, or ``None``."""
    metadata = template["metadata"]
    if not metadata["name"].startswith(TEMPLATE_PREFIX):
        return None
    key = (sys.intern(metadata["namespace"]), sys.intern(metadata["name"]))
    ours = (metadata.get("labels") or {}).get(MANAGED_LABEL) == "true"
    uid, version = metadata["uid"], metadata["resourceVersion"]
    return Existing(key=key, uid=uid, version=version, ours=ours, essence=content(template))


def asks_for(item: Mapping[str, Any], classes: Collection[str], *, template: bool) -> bool:
    """Whether any request of a claim, also as an alternative, is for one of ``classes``."""
    spec = item.get("spec") or {}
    spec = (spec.get("spec") or {}) if template else spec
    requests = (spec.get("devices") or {}).get("requests") or []
    choices = [choice for r in requests for choice in (r.get("exactly"), *(r.get("firstAvailable") or ()))]
    return any(choice and choice.get("deviceClassName") in classes for choice in choices)
