"""Find the claims of a pod, whoever made them, and which container uses which. Pure.

A pod has claims by the entries of ``spec.resourceClaims``, and by ``status.extendedResourceClaimStatus``: the scheduler
itself makes a claim for a container that asks for a DeviceClass among its resources. Raw objects in; what has another
type counts as absent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Use:
    """A container that uses a claim: the claim's name, and a request of it; without one, all of it.

    ``entry`` is the name in ``spec.resourceClaims``, empty for a claim that the scheduler made for extended resources.
    """

    container: str
    claim: str
    request: str
    entry: str


def claim_names(pod: Object) -> list[str]:
    """Name all claims of a pod that exist or are to exist, each once."""
    return list(dict.fromkeys((*_entries(pod).values(), *filter(None, [_made_by_scheduler(pod)]))))


def uses(pod: Object) -> Iterator[Use]:
    """Yield which container uses which claim, in the order of their start."""
    entries, spec = _entries(pod), _object(pod, "spec")
    for container in (*_list(spec, "initContainers"), *_list(spec, "containers")):
        for each in _list(_object(container, "resources"), "claims"):
            if claim := entries.get(_text(each, "name"), ""):
                yield Use(_text(container, "name"), claim, _text(each, "request"), _text(each, "name"))
    yield from _of_extended_resources(pod)


def _of_extended_resources(pod: Object) -> Iterator[Use]:
    claim = _made_by_scheduler(pod)
    for each in _list(_object(_object(pod, "status"), "extendedResourceClaimStatus"), "requestMappings"):
        if claim and _text(each, "containerName") and _text(each, "requestName"):
            yield Use(_text(each, "containerName"), claim, _text(each, "requestName"), "")


def _made_by_scheduler(pod: Object) -> str:
    return _text(_object(_object(pod, "status"), "extendedResourceClaimStatus"), "resourceClaimName")


def _entries(pod: Object) -> dict[str, str]:
    """By the name of the entry in ``spec.resourceClaims``, which claim stands behind it."""
    named = _list(_object(pod, "spec"), "resourceClaims")
    made = _list(_object(pod, "status"), "resourceClaimStatuses")
    pairs = {_text(each, "name"): _text(each, "resourceClaimName") for each in named}
    pairs |= {_text(each, "name"): name for each in made if (name := _text(each, "resourceClaimName"))}
    return {entry: claim for entry, claim in pairs.items() if entry and claim}


def _object(parent: Object, key: str) -> Object:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _list(parent: Object, key: str) -> list[Object]:
    value = parent.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(parent: Object, key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""
