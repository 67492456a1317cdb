"""Find the claims of a pod, from any creator, and which container uses which. Pure.

A pod has claims by the entries of ``spec.resourceClaims``, and by ``status.extendedResourceClaimStatus``: the scheduler
itself makes a claim for a container that asks for a DeviceClass among its resources. Raw objects in; what has another
type counts as absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.raw_objects import Object, mapping, objects, text


@dataclass(frozen=True, slots=True)
class Use:
    """A container that uses a claim: the claim's name, and a request of it; without one, all of it.

    ``entry`` is the name in ``spec.resourceClaims``, empty for a claim that the scheduler made for extended resources.
    """

    container: str
    claim: str
    request: str
    entry: str


def containers(pod: Object) -> list[Object]:
    """Return the containers of a pod in the order of their start."""
    spec = mapping(pod, "spec")
    return [*objects(spec, "initContainers"), *objects(spec, "containers")]


def claim_names(pod: Object) -> list[str]:
    """Name all claims of a pod that exist or are to exist, each once."""
    return list(dict.fromkeys((*_entries(pod).values(), *filter(None, [_made_by_scheduler(pod)]))))


def uses(pod: Object) -> Iterator[Use]:
    """Yield which container uses which claim, in the order of their start."""
    entries = _entries(pod)
    for container in containers(pod):
        for each in objects(mapping(container, "resources"), "claims"):
            if claim := entries.get(text(each, "name"), ""):
                yield Use(text(container, "name"), claim, text(each, "request"), text(each, "name"))
    yield from _of_extended_resources(pod)


def _of_extended_resources(pod: Object) -> Iterator[Use]:
    claim = _made_by_scheduler(pod)
    for each in objects(mapping(mapping(pod, "status"), "extendedResourceClaimStatus"), "requestMappings"):
        if claim and text(each, "containerName") and text(each, "requestName"):
            yield Use(text(each, "containerName"), claim, text(each, "requestName"), "")


def _made_by_scheduler(pod: Object) -> str:
    return text(mapping(mapping(pod, "status"), "extendedResourceClaimStatus"), "resourceClaimName")


def _entries(pod: Object) -> dict[str, str]:
    """By the name of the entry in ``spec.resourceClaims``, which claim stands behind it."""
    named = objects(mapping(pod, "spec"), "resourceClaims")
    made = objects(mapping(pod, "status"), "resourceClaimStatuses")
    pairs = {text(each, "name"): text(each, "resourceClaimName") for each in named}
    pairs |= {text(each, "name"): name for each in made if (name := text(each, "resourceClaimName"))}
    return {entry: claim for entry, claim in pairs.items() if entry and claim}
