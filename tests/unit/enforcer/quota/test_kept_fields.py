"""What is kept of a pod: all that is read, and little more however large the pod is."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.quotas import quotas_of_prepared
from enforcer.oom.diagnosis import failures_of
from enforcer.pod_deletion.deadlines import running
from enforcer.quota.from_claims import env_int
from enforcer.quota.kept_fields import MOST_USES, kept_pod, too_many
from gpushare import contract
from gpushare.pod_claims import claim_names, uses
from gpushare.resize_annotation import requests_in
from tests.unit.enforcer.dra.objects import by_hand, container, namespace, pod, using

SMALL = 200_000
"""Bytes as JSON of the largest pod that is kept; one of the API server's has up to 7,800,000."""
NAMES = ("main", "side", "init")


@st.composite
def pods(draw: st.DrawFn) -> Any:
    made: Any = draw(st.sampled_from([
        pod("tts", {contract.MEMORY: "1Gi"}, container("main"), container("side")),
        by_hand("own", {"gpu": "mine", "nic": "other"}, using("main", None), container("side"),
                inits=(using("init", "gpu", restartPolicy="Always"),)),
        by_hand("none", {}, container("main")),
    ]))  # fmt: skip
    made = json.loads(json.dumps(made))
    made["metadata"]["annotations"] = {"other": "x" * 100, contract.RESIZE_OF + "main": "2Gi"}
    ended = {
        "terminated": {"containerID": f"containerd://{'b' * 64}", "exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}
    }
    states = st.sampled_from([{"running": {"startedAt": "x"}}, ended, {"waiting": {"reason": "x"}}])
    made["status"] |= {
        "phase": draw(st.sampled_from(["Pending", "Running", "Failed"])),
        "containerStatuses": [
            {"name": name, "containerID": f"containerd://{'a' * 64}", "state": draw(states), "lastState": draw(states)}
            for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
        ],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "made", "requestMappings": [{"containerName": "side", "requestName": "one"}],
        },
    }  # fmt: skip
    return made


@given(pods())
def test_all_that_is_read_of_a_pod_is_kept(made: Any) -> None:
    kept = kept_pod(made)
    assert list(uses(kept)) == list(uses(made))
    assert set(claim_names(kept)) == set(claim_names(made))
    assert list(failures_of(kept)) == list(failures_of(made))
    assert running(kept) == running(made)
    assert requests_in(kept["metadata"]["annotations"]) == requests_in(made["metadata"]["annotations"])
    assert quotas_of_prepared((), [kept], [namespace()], ()) == quotas_of_prepared((), [made], [namespace()], ())
    for section in ("initContainers", "containers"):
        whole = {each["name"]: each for each in made["spec"].get(section) or ()}
        for each in kept["spec"][section]:
            assert env_int(each, contract.MEMORY_MIB) == env_int(whole[each["name"]], contract.MEMORY_MIB)
            assert each.get("restartPolicy") == whole[each["name"]].get("restartPolicy")


def large(**spec: Any) -> Any:
    """A pod that never started, as large as they come."""
    metadata = {"name": "fat", "namespace": "a", "uid": "u", "annotations": {f"a/{n}": "x" * 250 for n in range(1000)}}
    return {"metadata": metadata, "spec": {"nodeName": "gpu-7", **spec}, "status": {"phase": "Pending"}}


def test_of_a_large_pod_little_is_kept() -> None:
    variables = [{"name": contract.MEMORY_MIB} for _ in range(45_000)]
    claims = [{"name": f"c{number}", "request": "x" * 60} for number in range(20_000)]
    entries = [{"name": f"c{number}", "resourceClaimName": "y" * 250} for number in range(20_000)]
    many = [
        {"name": f"k{number}", "resources": {"claims": claims[:1]}, "env": variables[:9]} for number in range(9_000)
    ]
    for made in (
        large(containers=[{"name": "main", "env": variables}]),
        large(containers=[{"name": "main", "env": variables, "resources": {"claims": claims}}], resourceClaims=entries),
        large(containers=many, resourceClaims=entries),
    ):
        assert len(json.dumps(kept_pod(made))) < SMALL
        assert too_many(made) is (len(made["spec"].get("resourceClaims") or ()) > MOST_USES)


def started(entries: list[Any], **status: Any) -> Any:
    made = large(resourceClaims=entries, containers=[{"name": "main", "resources": {"claims": [{"name": "last"}]}}])
    running = {"name": "main", "containerID": f"containerd://{'a' * 64}", "state": {"running": {}}}
    made["status"] = {"phase": "Running", "containerStatuses": [running], **status}
    return made


def test_a_claim_behind_many_others_is_seen_once_the_pod_runs() -> None:
    decoys = [{"name": f"e{number}", "resourceClaimName": f"d{number}"} for number in range(MOST_USES)]
    by_name = started([*decoys, {"name": "last", "resourceClaimName": "prepared"}])
    made = [{"name": f"e{number}", "resourceClaimName": f"d{number}"} for number in range(MOST_USES)]
    by_template = started([], resourceClaimStatuses=[*made, {"name": "last", "resourceClaimName": "prepared"}])
    for each in (by_name, by_template):
        assert "prepared" in claim_names(kept_pod(each))


def test_many_entries_of_one_claim_are_kept_once() -> None:
    entries = [{"name": f"e{number}", "resourceClaimName": "y" * 250} for number in range(20_000)]
    assert len(json.dumps(kept_pod(started(entries)))) < SMALL


def test_a_pod_that_failed_before_it_started_is_known_by_name() -> None:
    made = large(containers=[{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}])
    made["status"]["phase"] = "Failed"
    assert kept_pod(made)["spec"] == {"nodeName": "gpu-7"}
