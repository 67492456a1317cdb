from copy import deepcopy
from typing import Any

import pytest

from enforcer.quota.from_claims import Terms, devices_of, known, parse_policy, quotas_of
from enforcer.quota.types import OnExceed, Quota, pod_row
from gpushare import contract
from tests.support.quotas import of_containers
from tests.unit.enforcer.made import CONTAINER, GPU, OTHER_GPU, POD, neighbour, quota

NODE = "gpu-7"
Object = dict[str, Any]


def piece(**changes: Any) -> Object:
    devices = [
        {"name": "gpu-0", "attributes": {"uuid": {"string": GPU}}},
        {"name": "gpu-1", "attributes": {contract.ATTRIBUTE_UUID: {"string": OTHER_GPU}}},
        {"name": "status", "attributes": {"kind": {"string": "status"}}},
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"driver": contract.DRIVER, "nodeName": NODE, "pool": pool, "devices": devices} | changes}


def result(request: str, device: str, memory: str | None = "4Gi", compute: str | None = None) -> Object:
    consumed = {contract.CAPACITY_MEMORY: memory, contract.CAPACITY_COMPUTE: compute}
    kept = {name: value for name, value in consumed.items() if value is not None}
    return {
        "driver": contract.DRIVER, "pool": NODE, "device": device, "request": request, "consumedCapacity": kept,
    }  # fmt: skip


def claim(*results: Object, users: list[str] | None = None) -> Object:
    used = [{"resource": "pods", "name": "tts-0", "uid": uid} for uid in ([POD] if users is None else users)]
    return {
        "metadata": {"name": "tts-0-gpu-share-x", "namespace": "asr", "uid": "claim-1"},
        "status": {"allocation": {"devices": {"results": list(results)}}, "reservedFor": used},
    }


def container(name: str, memory: str | None = None, compute: str | None = None, request: str | None = "") -> Object:
    env = [{"name": contract.MEMORY_MIB, "value": memory}] if memory is not None else []
    env += [{"name": contract.MPS_THREAD_PERCENTAGE, "value": compute}] if compute is not None else []
    use = {"name": contract.CLAIM} | ({} if request is None else {"request": request or name})
    return {"name": name, "env": env, "resources": {"claims": [use]}}


def pod(*containers: Object, **spec: Any) -> Object:
    return {
        "metadata": {"name": "tts-0", "namespace": "asr", "uid": POD},
        "spec": {
            "nodeName": NODE,
            "containers": list(containers),
            "resourceClaims": [{"name": contract.CLAIM, "resourceClaimTemplateName": "gpu-share-abc"}],
        }
        | spec,
        "status": {
            "resourceClaimStatuses": [{"name": contract.CLAIM, "resourceClaimName": "tts-0-gpu-share-x"}],
            "containerStatuses": [{"name": "model", "containerID": f"containerd://{CONTAINER}"}],
        },
    }


def namespace(**annotations: str) -> Object:
    keys = {name: f"{contract.GROUP}/{name.replace('_', '-')}" for name in annotations}
    return {"metadata": {"name": "asr", "annotations": {keys[name]: value for name, value in annotations.items()}}}


def run(claim_: Object, pod_: Object, *namespaces: Object, slices: list[Object] | None = None) -> tuple[Quota, ...]:
    return of_containers(quotas_of(NODE, [claim_], [pod_], namespaces, [piece()] if slices is None else slices))


def whole_pods(claim_: Object, pod_: Object) -> tuple[Quota, ...]:
    return tuple(each for each in quotas_of(NODE, [claim_], [pod_], [], [piece()]) if each.whole_pod)


def test_a_running_pods_container_gets_what_its_claim_consumed() -> None:
    (found,) = run(claim(result("model", "gpu-0", "4Gi", "25")), pod(container("model", "4096", "25")))
    assert found == Quota(
        claim_uid="claim-1", namespace="asr", pod="tts-0", pod_uid=POD, container="model", container_id=None,
        gpu=GPU, memory_mib=4096, compute_percent=25,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "consumed", "quota"),
    [
        ("4096", "4Gi", 4096), ("9999", "4Gi", 4096), ("1000", "4Gi", 1000), (None, "4Gi", 4096), ("1000", None, 1000),
        ("-5", "4Gi", 4096), ("1e3", "4Gi", 4096), ("\u0661", "4Gi", 4096), ("", "4Gi", 4096), ("4096Mi", "4Gi", 4096),
        (None, "4294967296", 4096), (None, "4097Mi", 4097), (None, "5G", 4768), (None, "1048577", 1),
    ],
)  # fmt: skip
def test_the_smaller_of_what_the_pod_says_and_the_claim_consumed(written: Any, consumed: Any, quota: int) -> None:
    (found,) = run(claim(result("model", "gpu-0", consumed)), pod(container("model", written)))
    assert found.memory_mib == quota


@pytest.mark.parametrize("consumed", [None, "much", "-1Gi", "1.5Gi"])
def test_without_any_amount_there_is_no_quota(consumed: Any) -> None:
    assert run(claim(result("model", "gpu-0", consumed)), pod(container("model"))) == ()


def test_annotations_of_the_pod_are_not_read() -> None:
    annotated = pod(container("model", "4096"))
    annotated["metadata"]["annotations"] = {contract.MEMORY: "80Gi"}
    assert run(claim(result("model", "gpu-0")), annotated)[0].memory_mib == 4096


def test_the_last_entry_of_a_variable_counts_and_only_a_literal() -> None:
    twice = container("model", "1000")
    twice["env"].append({"name": contract.MEMORY_MIB, "value": "2000"})
    assert run(claim(result("model", "gpu-0")), pod(twice))[0].memory_mib == 2000
    twice["env"].append({"name": contract.MEMORY_MIB, "valueFrom": {"fieldRef": {}}})
    assert run(claim(result("model", "gpu-0")), pod(twice))[0].memory_mib == 4096


def test_each_container_its_own_request_and_init_containers_too() -> None:
    both = pod(
        container("model", "4096"),
        container("extra", "1024"),
        initContainers=[container("warm", "2048", None, "model")],
    )
    found = run(claim(result("model", "gpu-0"), result("extra", "gpu-1", "1Gi")), both)
    assert {(q.container, q.gpu, q.memory_mib) for q in found} == {
        ("model", GPU, 4096), ("extra", OTHER_GPU, 1024), ("warm", GPU, 2048),
    }  # fmt: skip


def test_a_pod_has_the_sum_of_its_claims_on_each_gpu() -> None:
    both = pod(container("model", "4096"), container("extra", "1024"), container("more", "512"))
    results = (result("model", "gpu-0"), result("extra", "gpu-1", "1Gi"), result("more", "gpu-0", "512Mi"))
    assert {(q.gpu, q.reserved_mib, q.ceiling_mib, q.container_id) for q in whole_pods(claim(*results), both)} == {
        (GPU, 4608, 0, POD), (OTHER_GPU, 1024, 0, POD),
    }  # fmt: skip
    assert whole_pods(claim(result("model", "gpu-0"), users=["another"]), both) == ()
    assert whole_pods(claim(result("model", "gpu-0", None)), both) == (), "nobody knows how much was reserved"


def test_a_container_that_names_no_request_has_all_of_them() -> None:
    found = run(claim(result("a", "gpu-0", "1Gi"), result("b", "gpu-0", "2Gi")), pod(container("model", request=None)))
    assert [(quota.gpu, quota.memory_mib) for quota in found] == [(GPU, 3072)]


def test_a_subrequest_belongs_to_its_request() -> None:
    assert len(run(claim(result("model/big", "gpu-0")), pod(container("model")))) == 1


def test_the_sidecars_device_is_no_gpu() -> None:
    assert run(claim(result("gpu-share", "status", None)), pod(container("gpu-share"))) == ()


def _elsewhere(item: Object) -> Object:
    return item | {"spec": item["spec"] | {"nodeName": "gpu-8"}}


def test_what_is_not_ours_gives_no_quota() -> None:
    fine = pod(container("model", "4096"))
    given = claim(result("model", "gpu-0"))
    foreign = deepcopy(given)
    foreign["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    assert run(foreign, fine) == ()
    assert run(claim(result("model", "gpu-0"), users=["another"]), fine) == (), "not reserved for this pod"
    assert run(given, _elsewhere(fine)) == ()
    assert run(given, fine, slices=[]) == ()
    assert run(given, fine, slices=[_elsewhere(piece())]) == ()
    assert run(given | {"status": {}}, fine) == ()
    assert run(given, fine | {"status": {}}) == ()
    assert run(given | {"metadata": given["metadata"] | {"namespace": "other"}}, fine) == ()


def test_a_claim_that_was_written_by_hand_counts_the_same() -> None:
    direct = pod(
        container("model"), resourceClaims=[{"name": contract.CLAIM, "resourceClaimName": "tts-0-gpu-share-x"}]
    )
    del direct["status"]["resourceClaimStatuses"]
    assert run(claim(result("model", "gpu-0")), direct)[0].memory_mib == 4096


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = piece(
        pool={"name": NODE, "generation": 1}, devices=[{"name": "gpu-9", "attributes": {"uuid": {"string": "x"}}}]
    )
    new = piece(pool={"name": NODE, "generation": 2})
    assert set(devices_of(NODE, [old, new])) == {(NODE, "gpu-0"), (NODE, "gpu-1")}


def test_the_namespaces_policy_applies() -> None:
    policy = namespace(on_exceed="kill-container", grace_period="30s", tolerance="10%")
    (found,) = run(claim(result("model", "gpu-0")), pod(container("model", "4000")), policy)
    assert (found.on_exceed, found.grace_seconds, found.tolerance_mib) == (OnExceed.KILL_CONTAINER, 30.0, 400)


def test_a_policy_that_cannot_be_read_is_as_if_it_were_not_there() -> None:
    broken = namespace(on_exceed="explode", grace_period="soon", tolerance="some")
    assert parse_policy(broken["metadata"]["annotations"]) == Terms()
    assert parse_policy({contract.TOLERANCE: "1Gi"}).tolerance(5) == 1024
    assert Terms().tolerance(4096) is None


def test_known_containers_are_those_that_have_started() -> None:
    assert known([quota(), neighbour(container_id=None), pod_row(quota(), 512)]) == {CONTAINER}
