"""What Kubernetes says in Events of a pod with a share, while it holds."""

import pytest

from tests.unit.gpushare_cli.explain.test_pod import load, told


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("FailedPrepareDynamicResources", "the MPS daemon does not start", "the MPS daemon does not start"),
        ("Unhealthy", "Liveness probe failed: 500", ""),
        ("Pulled", "image pulled", ""),
    ],
)
@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_what_kubernetes_says_of_a_share_is_notified_while_it_holds(
    reason: str, message: str, says: str, phase: str
) -> None:
    content = load("running")
    content["pod"]["status"] |= {"phase": phase, "startTime": "2026"}
    about = {"uid": content["pod"]["metadata"]["uid"]}
    content["events"] = [{"reason": reason, "message": message, "involvedObject": about, "lastTimestamp": "2026"}]
    fine, lines = told(content)
    hindered = bool(says) and phase == "Pending"
    assert fine is not hindered
    assert lines[3:4] == ([f"  2026 {reason}: {message}"] if hindered else [])
    assert len(lines) == (5 if hindered else 3), "with what to do"


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_probe_that_fails_is_told_while_the_pod_is_not_ready(ready: str) -> None:
    content = load("running")
    gate = {"type": "Ready", "status": "False"}
    content["pod"]["status"]["conditions"] = [gate, {"type": "ContainersReady", "status": ready}]
    about = {"uid": content["pod"]["metadata"]["uid"]}
    event = {"reason": "Unhealthy", "message": "Liveness probe failed: 500", "involvedObject": about}
    content["events"] = [event | {"lastTimestamp": "2026"}]
    fine, lines = told(content)
    assert fine is (ready == "True")
    assert lines[3:4] == ([] if fine else ["  2026 Unhealthy: Liveness probe failed: 500"])


def test_a_pod_that_names_a_template_that_is_not_there_is_told_so_also_without_an_annotation() -> None:
    content = load("waiting") | {"claims": {}}
    pod = content["pod"]
    pod["metadata"] |= {"annotations": {}, "labels": {}}
    pod["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "shaer"}]
    pod["status"]["resourceClaimStatuses"] = []
    about = {"uid": pod["metadata"]["uid"]}
    message = 'PodResourceClaim own: resource claim template "shaer" not found'
    event = {"reason": "FailedResourceClaimCreation", "message": message, "involvedObject": about}
    fine, lines = told(content | {"events": [event | {"lastTimestamp": "2026"}]})
    assert not fine
    assert "not made yet" in lines[0]
    assert "create it in the pod's namespace" in lines[-1]
