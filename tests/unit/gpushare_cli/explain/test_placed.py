"""What is wrong with a pod that has a node: the kubelet cannot start it, or somebody deleted its claim."""

from collections.abc import Callable
from typing import Any

import pytest

from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod_record import PodRecord
from tests.unit.gpushare_cli.explain.test_pod import load


@pytest.mark.parametrize(
    ("reason", "message", "hint"),
    [
        (
            "FailedPrepareDynamicResources",
            "claim asr/a: DRA driver gpu-share.io is not registered",
            "gpu-share-enforcer",
        ),
        (
            "FailedPrepareDynamicResources",
            "claim asr/a: DRA driver other.example is not registered",
            "kubelet tries again",
        ),
        ("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured', "container runtime"),
        ("FailedMount", 'configmap "settings" not found', "kubelet tries again"),
    ],
)
def test_what_kubernetes_says_of_a_share_comes_with_what_to_do(reason: str, message: str, hint: str) -> None:
    content = load("running")
    content["pod"]["status"] |= {"phase": "Pending", "startTime": "2026"}
    about = {"uid": content["pod"]["metadata"]["uid"]}
    content["events"] = [{"reason": reason, "message": message, "involvedObject": about, "lastTimestamp": "2026"}]
    (found,) = [each for each in explain(PodRecord(**content)).findings if each.reason == reason]
    assert hint in found.hint
    assert ("gpu-share-enforcer" in found.hint) is ("gpu-share.io" in message), "no enforcer registers another driver"


def gone(content: dict[str, Any]) -> None:
    content["claims"] = {}


def made_anew(content: dict[str, Any]) -> None:
    """As kube-controller-manager makes a claim again: the scheduler gives it nothing, because the pod is placed."""
    (claim,) = content["claims"].values()
    claim["status"] = {}


def of_its_owner(content: dict[str, Any]) -> None:
    gone(content)
    pod = content["pod"]
    pod["metadata"]["annotations"] = {}
    pod["status"]["resourceClaimStatuses"] = []
    pod["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimName": "running-gpu-share-v4fk4"}]


@pytest.mark.parametrize("lose", [gone, made_anew, of_its_owner])
def test_a_pod_that_runs_and_whose_claim_was_deleted_says_so(lose: Callable[[dict[str, Any]], None]) -> None:
    content = load("running")
    lose(content)
    found = explain(PodRecord(**content))
    (lost,) = [each for each in found.findings if each.type == "obstacle"]
    assert not found.fine
    assert "running-gpu-share-v4fk4" in lost.message
    assert "delete the pod" in lost.hint
    if found.containers:
        assert (found.containers[0].asked, found.containers[0].given) == ("4Gi, 25%", "4Gi, 25%")


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "2026"}},
        {"status": {"phase": "Succeeded"}},
        {"spec": {"nodeName": ""}},
        {"status": {"containerStatuses": []}},
    ],
)
@pytest.mark.parametrize("lose", [gone, made_anew])
def test_a_pod_that_does_not_run_has_not_lost_its_claim(
    change: dict[str, Any], lose: Callable[[dict[str, Any]], None]
) -> None:
    content = load("running")
    lose(content)
    for key, values in change.items():
        content["pod"][key] |= values
    assert not [line for line in explain(PodRecord(**content)).lines if "was deleted" in line]
