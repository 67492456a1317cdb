"""The driver's second line: what it refuses whichever way a claim came."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.quota.kept_fields import MOST_USES
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.host_access import HostAccess
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import (
    NAMESPACE,
    NODE,
    Object,
    allocated,
    by_hand,
    claim,
    gpu,
    namespace,
    pod,
    using,
)
from tests.unit.enforcer.dra.test_allocation import DEVICES
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU


def prepared(held: Object, made: Object, policy: dict[str, str] | None = None, **host: Any) -> PreparedClaim:
    return compute_limits(NODE, PrepareRequest(held, made, namespace(policy), HostAccess(**host)), DEVICES)


def refused(held: Object, made: Object, policy: dict[str, str] | None = None) -> PrepareError:
    with pytest.raises(PrepareError) as error:
        prepared(held, made, policy)
    return error.value


def hand_written(mib: int = 4096, compute: int = 0, **more: Any) -> tuple[Object, Object]:
    made = by_hand("own", {"gpu": "mine"}, using("main", None, **more))
    return allocated("mine", made, gpu("gpu", mib, compute)), made


def by_extended_resource(mib: int = 15872) -> tuple[Object, Object]:
    """What the scheduler makes of ``limits: {deviceclass.resource.kubernetes.io/gpu-share.io: 1}``."""
    made = by_hand("implicit", {}, {"name": "main"}, {"name": "helper"})
    mapping = {"containerName": "main", "resourceName": "x", "requestName": "container-0-request-0"}
    made["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": [mapping]}}
    return allocated("made", made, gpu("container-0-request-0", mib)), made


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("road", [hand_written, by_extended_resource])
@pytest.mark.parametrize("labels", [None, {}, {contract.NAMESPACE_LABEL: "false"}])
def test_a_namespace_that_has_not_opted_in_gets_nothing(road: Any, labels: dict[str, str] | None) -> None:
    held, made = road()
    where = namespace()
    where["metadata"]["labels"] = labels
    with pytest.raises(PrepareError) as error:
        compute_limits(NODE, PrepareRequest(held, made, where), DEVICES)
    assert error.value.reason is Reason.NOT_OPTED_IN
    assert NAMESPACE in error.value.message


@pytest.mark.parametrize("road", [hand_written, by_extended_resource])
def test_no_container_gets_more_than_the_maximum_unless_the_namespace_may_ask_for_anything(road: Any) -> None:
    policy = {contract.MAX_MEMORY: "2Gi"}
    held, made = road()
    assert refused(held, made, policy).reason is Reason.ABOVE_MAXIMUM
    assert prepared(held, made, policy | {contract.OWN_CLAIMS: "any"}).limits


def test_compute_that_nobody_limits_is_above_any_maximum_of_compute() -> None:
    policy = {contract.MAX_COMPUTE: "50%"}
    assert refused(*hand_written(), policy).reason is Reason.ABOVE_MAXIMUM
    assert refused(*hand_written(compute=60), policy).reason is Reason.ABOVE_MAXIMUM
    assert prepared(*hand_written(compute=50), policy).limits[0].compute == 50


def test_a_claim_of_the_scheduler_gives_its_container_what_was_granted_and_no_other_one() -> None:
    held, made = by_extended_resource(8192)
    found = prepared(held, made)
    assert [(each.container, each.memory_mib) for each in found.limits] == [("main", 8192)]


def test_a_pod_of_which_not_all_claims_are_kept_gets_no_share() -> None:
    held, made = hand_written()
    main = made["spec"]["containers"][0]
    main["resources"]["claims"] += [{"name": f"other-{number}"} for number in range(MOST_USES)]
    assert str(MOST_USES) in refused(held, made).message


def test_a_gpu_that_no_container_uses_is_refused() -> None:
    made = by_hand("idle", {"gpu": "mine"}, {"name": "main"})
    assert "no container" in refused(allocated("mine", made, gpu("gpu", 4096)), made).message


@pytest.mark.parametrize(
    ("spec", "container"),
    [
        ({"hostPID": True}, {}),
        ({"hostNetwork": True}, {}),
        ({}, {"securityContext": {"privileged": True}}),
        ({}, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/run/gpu-share"}}]}, {}),
    ],
)
def test_a_pod_with_a_way_around_its_share_gets_none(spec: Object, container: Object) -> None:
    held, made = hand_written(**container)
    made["spec"] |= spec
    assert refused(held, made).reason is Reason.CONFLICTS_WITH_SHARE


def test_what_the_operator_allows_is_prepared() -> None:
    held, made = hand_written()
    made["spec"] |= {"hostNetwork": True, "volumes": [{"name": "v", "hostPath": {"path": "/mnt/data"}}]}
    assert prepared(held, made, {contract.HOST_PATHS: "/mnt"}, network=True).limits
    with pytest.raises(PrepareError):
        prepared(held, made, {contract.HOST_PATHS: "/srv"}, network=True)


@pytest.mark.parametrize(
    ("own", "allowed", "expected"),
    [
        (None, None, "compute,utility"),
        ("all", None, "compute,utility"),
        ("utility", None, "utility"),
        ("compute,video", None, "compute,utility"),
        ("compute,video", "compute,utility,video", "compute,video"),
        (None, "utility", "utility"),
    ],
)
def test_images_and_pods_ask_the_toolkit_for_no_more_than_the_namespace_allows(
    own: str | None, allowed: str | None, expected: str
) -> None:
    env = [{"name": contract.NVIDIA_DRIVER_CAPABILITIES, "value": own}] if own else []
    found = prepared(*hand_written(env=env), {contract.ALLOWED_CAPABILITIES: allowed} if allowed else {})
    assert found.driver_capabilities == {"gpu": expected}
    assert decode(encode(found)) == found


def test_a_prepared_claim_is_reported_again_after_its_namespace_opted_out_and_undone(world: World) -> None:
    ref = world.tenant("tts")
    first = world.driver.prepare(ref)
    where = next(key for key in world.api.objects if key.endswith(f"/namespaces/{NAMESPACE}"))
    world.api.objects[where]["metadata"]["labels"] = {}
    world.restart()
    assert world.driver.prepare(ref) == first
    world.driver.unprepare(ref)
    with pytest.raises(PrepareError):
        world.driver.prepare(ref)


def test_a_checkpoint_with_a_gpu_and_no_limits_gets_what_was_granted() -> None:
    """Written by an enforcer that prepared claims for extended resources without a limit."""
    held, made = by_extended_resource(8192)
    old = replace(prepared(held, made), limits=())
    (quota,) = quotas_of_prepared([old], [made], [namespace()], ())
    assert (quota.whole_pod, quota.gpu, quota.reserved_mib) == (True, GPU, 8192)


def test_what_the_webhook_admits_is_prepared_under_the_same_policy() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"})
    policy = {contract.MAX_MEMORY: "4Gi", contract.MAX_COMPUTE: "25%"}
    assert prepared(claim(made), made, policy).limits


def test_every_way_to_the_host_is_named_at_once() -> None:
    held, made = hand_written(securityContext={"privileged": True})
    made["spec"] |= {"hostPID": True, "volumes": [{"name": "all", "hostPath": {"path": "/dev"}}]}
    message = refused(held, made).message
    for field in ("spec.hostPID", "spec.containers[0].securityContext.privileged", "spec.volumes[0].hostPath.path"):
        assert field in message
