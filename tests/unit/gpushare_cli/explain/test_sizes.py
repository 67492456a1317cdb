"""How much memory would have sufficed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.quota.from_claims import parse_mib
from enforcer.quota.types import Quota
from gpushare.contract import MAX_MEMORY
from gpushare.quantity import format_mib, parse_memory
from gpushare_cli.explain import sizes
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod_record import Finding, PodRecord, Usage
from sidecar.pod_status import Status, Use
from tests.unit.gpushare_cli.explain.test_pod import GPU, load


@given(st.integers(1, 2**22))
def test_the_amount_that_would_have_sufficed_is_above_the_peak_and_can_be_written(peak: int) -> None:
    enough = sizes.sufficient_mib(peak)
    tolerance = Quota(
        claim_uid="c", namespace="n", pod="p", pod_uid="u", container="m", container_id=None, gpu=GPU, memory_mib=peak
    ).ceiling_mib - peak  # fmt: skip
    assert peak + tolerance <= enough <= peak + tolerance + 1024
    assert parse_memory(format_mib(enough)) == enough


@pytest.mark.parametrize(("peak", "enough"), [(6144, "7Gi"), (100, "512Mi"), (2100, "3Gi"), (1024, "1280Mi")])
def test_amounts_are_round(peak: int, enough: str) -> None:
    assert format_mib(sizes.sufficient_mib(peak)) == enough


def advice(content: dict[str, Any]) -> list[Finding]:
    return [each for each in explain(PodRecord(**content)).findings if each.type == "advice"]


def killed(limit: int = 4096, reserved: str = "4Gi") -> dict[str, Any]:
    """A recorded pod whose container was killed with 9000 MiB of its 4096 MiB."""
    content = load("killed")
    (claim,) = content["claims"].values()
    result = claim["status"]["allocation"]["devices"]["results"][0]
    result["consumedCapacity"]["memory"] = reserved
    limits = [{"container": "main", "memoryMiB": limit}]
    data = {"uuid": GPU, "memoryMiB": parse_mib(reserved), "limits": limits}
    same = {key: result.get(key) for key in ("driver", "pool", "device", "shareID")}
    claim["status"]["devices"] = [{**same, "data": data}]
    content["pod"]["status"]["phase"] = "Running"
    return content


def test_after_a_kill_the_annotation_is_named() -> None:
    (found,) = advice(killed())
    assert (found.container, found.command) == ("main", "gpu-share.io/memory: 10Gi")
    assert "used at most 9000 MiB; a quota of 10Gi would have sufficed" in found.message


def test_a_claim_that_people_wrote_is_where_more_is_asked_for() -> None:
    content = killed()
    content["pod"]["spec"]["resourceClaims"] = [{"name": "gpu-share", "resourceClaimName": "mine"}]
    (found,) = advice(content)
    assert (found.command, "capacity.requests of a new ResourceClaim" in found.hint) == ("memory: 10Gi", True)


def test_where_the_pod_reserved_enough_a_resize_is_named() -> None:
    (found,) = advice(killed(reserved="12Gi"))
    assert found.command == "gpu-share resize explained-1/killed main 10Gi"


@pytest.mark.parametrize("change", [{"phase": "Failed"}, {"phase": "Pending"}])
def test_a_pod_that_does_not_run_is_not_resized(change: dict[str, str]) -> None:
    content = killed(reserved="12Gi")
    content["pod"]["status"] |= change
    assert all(each.command == "gpu-share.io/memory: 10Gi" for each in advice(content))


def test_who_has_enough_by_now_gets_no_advice() -> None:
    assert advice(killed(limit=10240, reserved="12Gi")) == []


def test_a_higher_peak_of_the_sidecar_counts() -> None:
    use = Use(container="main", gpu=GPU, used_mib=1, peak_mib=20000, quota_mib=4096, state="Within")
    (found,) = advice(killed() | {"usage": Usage(status=Status(uses=(use,)), age=1.0)})
    assert found.command == "gpu-share.io/memory: 21Gi"


def test_a_maximum_of_the_namespace_is_named_instead_of_what_would_be_refused() -> None:
    (found,) = advice(killed() | {"namespace": {"metadata": {"annotations": {MAX_MEMORY: "8Gi"}}}})
    assert (found.command, "gpu-share.io/max-memory of 8Gi" in found.hint) == ("", True)


@pytest.mark.parametrize(
    ("owner", "labels", "place"),
    [
        ({"kind": "ReplicaSet", "name": "a-6f7"}, {"pod-template-hash": "6f7"}, "of Deployment a"),
        ({"kind": "ReplicaSet", "name": "a-6f7"}, {}, "of ReplicaSet a-6f7"),
        ({"kind": "StatefulSet", "name": "db"}, {}, "of StatefulSet db"),
    ],
)
def test_the_template_of_the_workload_is_named(owner: dict[str, str], labels: dict[str, str], place: str) -> None:
    content = killed()
    content["pod"]["metadata"] |= {"ownerReferences": [{**owner, "controller": True}], "labels": labels}
    (found,) = advice(content)
    assert found.hint.endswith(f"in the pod template {place}")


def test_the_annotation_of_the_container_is_named_where_it_has_its_own() -> None:
    content = killed()
    content["pod"]["metadata"]["annotations"] = {"memory.gpu-share.io/main": "4Gi"}
    (found,) = advice(content)
    assert found.command == "memory.gpu-share.io/main: 10Gi"


@pytest.mark.parametrize("limits", [None, [{"memoryMiB": 1}], [3], [{"container": "main", "memoryMiB": "x"}]])
def test_a_claim_that_our_driver_did_not_write_is_no_reason_to_fail(limits: Any) -> None:
    content = killed(reserved="12Gi")
    (claim,) = content["claims"].values()
    claim["status"]["devices"][0]["data"]["limits"] = limits
    assert advice(content)
