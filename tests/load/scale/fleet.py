"""Nodes and pods in numbers on a control plane without kubelets: nodes are API objects, their GPUs the enforcer's own.

Pods are made in three ways: as shares, with claims written by hand in namespaces that the webhook is not called for,
and plain, without any claim.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Final

from gpushare.contract import CAPACITY_COMPUTE, CAPACITY_MEMORY, COMPUTE, DEVICE_CLASS, DRIVER
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, SLICES, TEMPLATES, Bed, template_name
from tests.integration.controlplane.checker import Audit, audit
from tests.integration.controlplane.objects import Object
from tests.load.scale.loads import Size
from tests.testbed.cluster.controlplane import TENANT

WRITERS: Final = 8
FLEET: Final = "test.gpu-share.io/fleet"
CLEARING_SECONDS: Final = 300.0


class Arm(StrEnum):
    """How pods get what they ask for."""

    SHARES = "shares"
    CLAIMS = "claims by hand"
    PLAIN = "plain pods"


@contextmanager
def fleet(bed: Bed, name: str, count: int, machine: str) -> Iterator[None]:
    """Nodes that only pods of this run ask for; their GPUs are published by the enforcer's own code."""
    names = [f"{name}-{number}" for number in range(count)]
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda each: bed.node(each, labels={FLEET: name}, slices=False), names))
            list(pool.map(lambda each: publish_nodes(bed.cluster, [each], machine), names))
        yield
    finally:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda each: bed.remove(path(CORE_V1, "nodes", each)), names))
        for item in offered(bed.cluster, name):
            bed.remove(path(RESOURCE_V1, SLICES, item["metadata"]["name"]))


def offered(cluster: KubeClient, of: str) -> list[Object]:
    """The slices of a fleet."""
    return [
        each for each in cluster.list(path(RESOURCE_V1, SLICES))[0] if each["spec"]["nodeName"].startswith(f"{of}-")
    ]


def pod(arm: Arm, name: str, size: Size, of: str) -> Object:
    """One pod of a fleet."""
    asked = {COMPUTE: f"{size.compute}%"} if size.compute else {}
    shares = arm is Arm.SHARES
    body = objects.pod(name, f"{size.memory_mib}Mi", **asked) if shares else objects.pod(name)
    body["spec"]["nodeSelector"] = {FLEET: of}
    if arm is Arm.CLAIMS:
        body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": _by_hand(size)}]
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return body


def namespaces(bed: Bed, arm: Arm, count: int, sizes: Iterable[Size]) -> list[str]:
    """Fresh namespaces, with the templates that claims by hand take."""
    made = [bed.namespace("scale", opted_in=arm is not Arm.PLAIN) for _ in range(count)]
    if arm is Arm.CLAIMS:
        pairs = itertools.product(made, sorted(set(sizes)))
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda pair: _write_template(bed, *pair), pairs))
    return made


def create_all(bed: Bed, spaces: Sequence[str], bodies: Iterable[Object]) -> None:
    """Create pods as the tenant, several at a time, over all namespaces in turn."""
    tenant = bed.plane.cluster(TENANT)

    def create(pair: tuple[str, Object]) -> Object:
        return tenant.create(path(CORE_V1, PODS, namespace=pair[0]), pair[1])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(create, zip(itertools.cycle(spaces), bodies, strict=False)))


def stored(bed: Bed, spaces: Iterable[str], kind: str) -> list[Object]:
    """Everything of a kind in some namespaces."""
    return [each for namespace in spaces for each in bed.list(kind, namespace)]


def promises(bed: Bed, spaces: Sequence[str]) -> tuple[list[Object], list[Object]]:
    """All slices, and the claims in these namespaces as they were at one moment."""
    claims = bed.cluster.list(path(RESOURCE_V1, CLAIMS))[0]
    mine = [each for each in claims if each["metadata"]["namespace"] in spaces]
    return bed.cluster.list(path(RESOURCE_V1, SLICES))[0], mine


def judge(bed: Bed, spaces: Sequence[str]) -> Audit:
    """What the auditor says of them."""
    return audit(*promises(bed, spaces), DRIVER)


def check_templates(bed: Bed, spaces: Sequence[str]) -> None:
    """Exactly the templates that pods name are there."""
    named = {(pod["metadata"]["namespace"], template_name(pod)) for pod in stored(bed, spaces, PODS)}
    there = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in stored(bed, spaces, TEMPLATES)}
    assert there == named


def clear(bed: Bed, spaces: Sequence[str], *, let_go: bool = False) -> None:
    """Delete all pods; wait until no claim is left, and no template that was not written by hand.

    ``let_go``: do not leave the claims to the controller-manager, which at its default client rate is longer about
    them than a run took.
    """
    for namespace in spaces:
        bed.empty(namespace)
    if let_go:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(partial(_let_go, bed), stored(bed, spaces, CLAIMS)))
    bed.until("no template is left over", lambda: _templates(bed, spaces) == [], CLEARING_SECONDS)
    bed.until("no claim is left over", lambda: stored(bed, spaces, CLAIMS) == [], CLEARING_SECONDS)


def _let_go(bed: Bed, claim: Object) -> None:
    where = path(RESOURCE_V1, CLAIMS, claim["metadata"]["name"], namespace=claim["metadata"]["namespace"])
    with suppress(ClusterError):  # the controller-manager was first
        bed.cluster.patch(where, {"metadata": {"finalizers": None}})
        bed.cluster.delete(where)


def _templates(bed: Bed, spaces: Sequence[str]) -> list[str]:
    names = [each["metadata"]["name"] for each in stored(bed, spaces, TEMPLATES)]
    return [name for name in names if not name.startswith("by-hand-")]


def _by_hand(size: Size) -> str:
    return f"by-hand-{size.label}"


def _write_template(bed: Bed, namespace: str, size: Size) -> None:
    amounts = {CAPACITY_MEMORY: f"{size.memory_mib}Mi"}
    if size.compute:
        amounts[CAPACITY_COMPUTE] = str(size.compute)
    request = {"name": "gpu", "exactly": {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": amounts}}}
    body = {"metadata": {"name": _by_hand(size)}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    bed.cluster.create(path(RESOURCE_V1, TEMPLATES, namespace=namespace), body)
