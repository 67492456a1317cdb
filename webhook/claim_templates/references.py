"""What pods and claim templates say about each other, read from the objects themselves. Pure.

A template is named by the hash of its content and rebuilt from the stored pod alone, so any replica can create it, at
any time, also after a crash; and one that several pods of a namespace name is there once.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.claim_messages import ENDED
from gpushare.contract import CLAIM, MANAGED_LABEL, OTHER_GPU_CLASSES, SHARING_CLASSES, TEMPLATE_PREFIX
from webhook.mutation.demand import Demand
from webhook.mutation.resourceclaims import stored
from webhook.mutation.template_content import content

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of a template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReference:
    """A template that a pod names. ``body`` is ``None`` where its content does not give its name: never created."""

    key: Key
    body: Object | None
    demand: Demand | None = None

    @property
    def sound(self) -> bool:
        """Whether the pod's content gives the name."""
        return self.body is not None

    @property
    def content_key(self) -> int:
        """What the template asks for, as a number of ``template_content``."""
        return content(self.body or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """A template of one of our names that is there; the versions make sure that it is this one that gets deleted."""

    key: Key
    uid: str
    version: str
    ours: bool = True
    """Whether it has our label: what has not is never deleted."""
    content_key: int = 0
    """What it asks for, as a number of ``template_content``."""


def reference(pod: Mapping[str, Any]) -> Key | None:
    """The template a live, managed pod takes its claim from, or ``None``."""
    metadata = pod.get("metadata") or {}
    if (metadata.get("labels") or {}).get(MANAGED_LABEL) != "true":
        return None
    if (pod.get("status") or {}).get("phase") in ENDED:
        return None
    for entry in (pod.get("spec") or {}).get("resourceClaims") or []:
        name = entry.get("resourceClaimTemplateName")
        if entry.get("name") == CLAIM and isinstance(name, str) and name.startswith(TEMPLATE_PREFIX):
            return sys.intern(metadata.get("namespace", "")), sys.intern(name)
    return None


def wanted(pod: Mapping[str, Any]) -> TemplateReference | None:
    """What a pod asks for, as the API server stores it.

    Nothing, a template, or a name that its content does not give (``body`` is None).
    """
    key = reference(pod)
    if key is None:
        return None
    found = stored(pod)
    if found is None or found.template["metadata"]["name"] != key[1]:
        return TemplateReference(key=key, body=None)
    return TemplateReference(key=key, body=found.template, demand=Demand.of(found))


def named(pod: Mapping[str, Any]) -> Object:
    """What identifies a pod in an Event about it."""
    metadata = pod["metadata"]
    found = {key: metadata.get(key, "") for key in ("namespace", "name", "uid")}
    return {"apiVersion": "v1", "kind": "Pod", **found}


def existing(template: Mapping[str, Any]) -> TemplateRecord | None:
    """A template under one of our names, or ``None``."""
    metadata = template["metadata"]
    if not metadata["name"].startswith(TEMPLATE_PREFIX):
        return None
    key = (sys.intern(metadata["namespace"]), sys.intern(metadata["name"]))
    ours = (metadata.get("labels") or {}).get(MANAGED_LABEL) == "true"
    uid, version = metadata["uid"], metadata["resourceVersion"]
    return TemplateRecord(key=key, uid=uid, version=version, ours=ours, content_key=content(template))


def is_own(item: Mapping[str, Any], *, template: bool) -> bool:
    """Whether a claim, or a template, gives a GPU of ours by the will of people, and not of a pod or of gpu-share."""
    metadata = item.get("metadata") or {}
    owners = metadata.get("ownerReferences") or []
    if any(each.get("kind") == "Pod" for each in owners):
        return False
    if template and str(metadata.get("name")).startswith(TEMPLATE_PREFIX):
        return False
    return asks_for(item, SHARING_CLASSES, template=template)


def is_of_other_gpus(item: Mapping[str, Any], *, template: bool) -> bool:
    """Whether a claim, or a template, asks for a GPU of another driver."""
    return asks_for(item, OTHER_GPU_CLASSES, template=template)


def asks_for(item: Mapping[str, Any], classes: Collection[str], *, template: bool) -> bool:
    """Whether any request of a claim, also as an alternative, is for one of ``classes``."""
    spec = item.get("spec") or {}
    spec = (spec.get("spec") or {}) if template else spec
    requests = (spec.get("devices") or {}).get("requests") or []
    choices = [choice for r in requests for choice in (r.get("exactly"), *(r.get("firstAvailable") or ()))]
    return any(choice and choice.get("deviceClassName") in classes for choice in choices)
