"""An enforcer evicts pods of its own node alone, and respects PodDisruptionBudgets."""

from http import HTTPStatus
from typing import Any

import pytest

from enforcer.driver_upgrade.eviction import PodEvictor
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.integration.controlplane import objects
from tests.integration.controlplane.policies.world import ENFORCER, NODE_NAME, Acting, World, refusal, until
from tests.support.clock import FakeClock
from tests.support.wiring import Messages
from tests.unit.enforcer.made import quota

pytestmark = pytest.mark.controlplane
OWN, OTHER = "node-evicts", "node-elsewhere"


@pytest.fixture(name="namespace", scope="module")
def _namespace(world: World) -> str:
    for name in (OWN, OTHER):
        world.cluster.create(path(CORE_V1, "nodes"), objects.node(name))
    return world.make_namespace()


def created(world: World, namespace: str, name: str, node: str, *, claim: str = "share") -> dict[str, Any]:
    claims = {"resourceClaims": [{"name": claim, "resourceClaimName": claim}]} if claim else {}
    pod = {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "pause"}], **claims},
    }
    made = world.cluster.create(world.pods(namespace=namespace), pod)
    stranger, where = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: "no-node"}), world.pods(name, namespace)
    trial = eviction(name) | {"deleteOptions": {"dryRun": ["All"]}}
    # The policy evaluates the pods in the API server's cache, which learns of a pod a moment after its creation.
    until("the policy knows the pod", lambda: refusal(lambda: stranger.create(f"{where}/eviction", trial)) != "")
    return made


def gone(world: World, namespace: str, name: str) -> bool:
    """Without a kubelet an evicted pod stays, marked for deletion."""
    try:
        return "deletionTimestamp" in world.cluster.get(world.pods(name, namespace))["metadata"]
    except ClusterError as error:
        return error.status == HTTPStatus.NOT_FOUND


def eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def test_pods_of_other_nodes_are_refused(world: World, namespace: str) -> None:
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: OWN})
    for name, node in (("mine", OWN), ("theirs", OTHER)):
        created(world, namespace, name, node)
    where = f"{world.pods('theirs', namespace)}/eviction"
    assert "only pods of its own node" in refusal(lambda: enforcer.create(where, eviction("theirs")))
    mine, nobody = f"{world.pods('mine', namespace)}/eviction", Acting.as_user(world.plane, ENFORCER)
    assert "names no node" in refusal(lambda: nobody.create(mine, eviction("mine")))
    assert not gone(world, namespace, "theirs")
    assert not gone(world, namespace, "mine")
    assert refusal(lambda: enforcer.create(mine, eviction("mine"))) == ""
    assert gone(world, namespace, "mine")
    world.cluster.create(where, eviction("theirs"))  # others are not concerned


def test_pods_without_claims_are_refused(world: World, namespace: str) -> None:
    created(world, namespace, "plain", OWN, claim="")
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: OWN})
    where = f"{world.pods('plain', namespace)}/eviction"
    assert "have a ResourceClaim" in refusal(lambda: enforcer.create(where, eviction("plain")))
    assert not gone(world, namespace, "plain")


def test_a_disruption_budget_is_respected(world: World, namespace: str) -> None:
    enforcer, sent, now = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: OWN}), Messages(), [0.0]
    pod = created(world, namespace, "guarded", OWN)
    tenant = quota(namespace=namespace, pod="guarded", pod_uid=pod["metadata"]["uid"])
    budgets = path("/apis/policy/v1", "poddisruptionbudgets", namespace=namespace)
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
    world.cluster.create(budgets, budget)
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    world.cluster.patch(f"{world.pods('guarded', namespace)}/status", ready)
    evictor = PodEvictor(enforcer, sent, FakeClock(lambda: now[0]))
    evictor.evict_pods([tenant])
    assert [each.reason for each in sent.sent] == [Reason.EVICTION_REFUSED]
    assert len(evictor.problems()) == 1
    assert not gone(world, namespace, "guarded")
    world.cluster.delete(f"{budgets}/all")
    evictor.evict_pods([tenant])
    assert not gone(world, namespace, "guarded"), "asked again too early"
    now[0] += 60
    evictor.evict_pods([tenant])
    assert gone(world, namespace, "guarded")
    assert [each.reason for each in sent.sent] == [Reason.EVICTION_REFUSED, Reason.DRIVER_UPGRADE]
    assert evictor.problems() == []


def test_another_pod_of_the_same_name_is_spared(world: World, namespace: str) -> None:
    created(world, namespace, "again", OWN)
    evictor = PodEvictor(Acting.as_user(world.plane, ENFORCER, {NODE_NAME: OWN}), Messages())
    # The API server tries again for ten seconds before it answers with a conflict: the call may time out instead.
    evictor.evict_pods([quota(namespace=namespace, pod="again", pod_uid="of-an-earlier-one")])
    assert not gone(world, namespace, "again")
