"""The claim's condition ``LimitInForce``: what it says, and that it is written only where it says something new."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.claim_status import limit_condition, write_condition
from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.quota.types import LimitStatus, Quota
from gpushare.errors import ClusterError
from gpushare.kube_client import APPLY_PATCH
from gpushare.reasons import Reason
from tests.support.quotas import of_containers
from tests.unit.enforcer.dra.objects import namespace
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.limits.test_metrics_of_limits import proven
from tests.unit.enforcer.made import DEVICE

WHEN = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(name="claim")
def _claim(world: World) -> PreparedClaim:
    world.driver.prepare(world.tenant("tts"))
    claim: PreparedClaim = world.published[-1]
    return claim


@pytest.fixture(name="quota")
def _quota(claim: PreparedClaim) -> Quota:
    (found,) = of_containers(quotas_of_prepared([claim], [], [namespace()], []))
    return found


def condition(claim: PreparedClaim, *proofs: tuple[Quota, LimitStatus]) -> dict[str, Any]:
    (entry,) = limit_condition(claim, proofs, WHEN)["status"]["devices"]
    assert (entry["device"], entry["driver"]) == (DEVICE, "gpu-share.io")
    assert entry["shareID"]
    (found,) = entry["conditions"]
    return dict(found)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (Reason.IN_FORCE, "True"), (Reason.UNKNOWN, "Unknown"), (Reason.LIMIT_ESCAPED, "False"),
        (Reason.NOT_APPLIED, "False"), (Reason.PER_PROCESS_ONLY, "False"),
    ],
)  # fmt: skip
def test_the_condition_has_the_state_for_its_reason(
    claim: PreparedClaim, quota: Quota, state: Reason, status: str
) -> None:
    assert condition(claim, (quota, proven(state))) == {
        "type": "LimitInForce", "status": status, "reason": str(state), "message": "model (mps-v2): because",
        "lastTransitionTime": "2026-11-22T00:00:00Z",
    }  # fmt: skip


def test_of_several_containers_in_one_request_the_worst_counts(claim: PreparedClaim, quota: Quota) -> None:
    found = condition(claim, (quota, proven(Reason.IN_FORCE)), (quota, proven(Reason.LIMIT_ESCAPED)))
    assert found["reason"] == "LimitEscaped"
    assert found["message"] == "model (mps-v2): because"


def test_it_is_written_once_and_again_only_when_it_is_another(world: World, claim: PreparedClaim, quota: Quota) -> None:
    well, escaped = proven(Reason.IN_FORCE), proven(Reason.LIMIT_ESCAPED)
    other = replace(well, sentence="other figures")
    for said in (well, well, other, other, escaped, replace(escaped, sentence="of another process")):
        before = len(world.api.patched)
        assert write_condition(world.setup.cluster, claim, [(quota, said)])
        if len(world.api.patched) > before:
            _, body, content_type = world.api.patched[-1]
            assert content_type == APPLY_PATCH
            world.api.objects[world.where(claim.name)]["status"]["devices"] = body["status"]["devices"]
    reasons = [body["status"]["devices"][0]["conditions"][0]["reason"] for _, body, _ in world.api.patched]
    assert reasons == ["InForce", "InForce", "LimitEscaped"]


def test_an_api_server_that_does_not_answer_is_notified_later_and_one_that_refuses_is_not(
    world: World, claim: PreparedClaim, quota: Quota
) -> None:
    proofs = [(quota, proven(Reason.IN_FORCE))]
    world.api.down = True
    assert not write_condition(world.setup.cluster, claim, proofs)
    world.api.down, world.api.refuse_patches = False, True
    assert write_condition(world.setup.cluster, claim, proofs)
    world.api.objects.clear()
    assert write_condition(world.setup.cluster, claim, proofs), "the claim is gone"


@pytest.mark.parametrize("status", [401, 409, 429])
def test_an_api_server_that_has_no_time_now_is_notified_later(
    world: World, claim: PreparedClaim, quota: Quota, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(*_: Any, **__: Any) -> None:
        raise ClusterError("later", status)

    monkeypatch.setattr(world.api, "patch", later)
    assert not write_condition(world.setup.cluster, claim, [(quota, proven(Reason.IN_FORCE))])


def test_a_claim_of_the_same_name_is_left_alone(world: World, claim: PreparedClaim, quota: Quota) -> None:
    world.api.objects[world.where(claim.name)]["metadata"]["uid"] = "another"
    assert write_condition(world.setup.cluster, claim, [(quota, proven(Reason.IN_FORCE))])
    assert not world.api.patched
