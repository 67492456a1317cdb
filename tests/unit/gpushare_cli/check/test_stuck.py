"""Sharing pods that do not start: no image for the sidecar, no scheduler, or minutes on their node."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare import contract
from gpushare_cli.check.startable import stuck
from gpushare_cli.explain.pod_record import NO_CLAIM, TRIED_AGAIN, remedy
from gpushare_cli.words import moment
from tests.unit.gpushare_cli.check.api import Api

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SEEN = {"type": "PodScheduled", "status": "False"}


def pod(
    age: timedelta, phase: str = "Pending", waits: str = "", node: str = "gpu-1", *conditions: Any
) -> dict[str, Any]:
    state = {"waiting": {"reason": waits, "message": f"{waits}: no such image"}} if waits else {"running": {}}
    status = {
        "phase": phase,
        "conditions": list(conditions),
        "initContainerStatuses": [{"name": contract.SIDECAR, "state": state}],
    }
    metadata = {"namespace": "asr", "name": "a", "creationTimestamp": moment(NOW - age)}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": status}


def by(scheduler: str) -> dict[str, Any]:
    found = pod(LONG, "Pending", "", "")
    found["spec"]["schedulerName"] = scheduler
    return found


def scheduled(reason: str, message: str) -> dict[str, Any]:
    return SEEN | {"reason": reason, "message": message}


DENIED = "claim is forbidden: ValidatingAdmissionPolicy 'cost' with binding 'b' denied request: policy 'cost': no label"
DEAD = 'failed calling webhook "a.example.org": no endpoints'
KCM = "system:serviceaccount:kube-system:resource-claim-controller"
RIGHTS = 'is forbidden: User "system:kube-scheduler" cannot patch resource "resourceclaims/status" in API group "x"'
ENV = [{"name": "GPU_SHARE_LOG_LEVEL", "value": "info"}]
RELEASE = {
    "metadata": {"name": "gpu-share-webhook", "namespace": "gpu-share-system"},
    "spec": {"template": {"spec": {"containers": [{"env": ENV}]}}},
}
GATE = "claim a/b, request main: has capacity requests, but the DRAConsumableCapacity feature is disabled"
LONG, SHORT = timedelta(minutes=6), timedelta(seconds=30)


@pytest.mark.parametrize(
    ("found", "level", "says"),
    [
        (pod(LONG, "Running"), "ok", "none of 1"),
        (pod(SHORT), "ok", ""),
        (pod(LONG), "warning", "more than 5 minutes: asr/a"),
        (pod(LONG, "Failed", "ErrImagePull"), "ok", "none of 0"),
        (
            pod(SHORT, "Pending", "", "", scheduled("SchedulerError", DEAD)),
            "wrong",
            "the scheduler cannot place asr/a: failed",
        ),
        (
            pod(SHORT, "Pending", "", "", scheduled("SchedulerError", RIGHTS)),
            "wrong",
            "the scheduler cannot place asr/a: ",
        ),
        (pod(SHORT, "Pending", "", "", scheduled("SchedulerError", "CEL runtime error")), "ok", ""),
        (pod(SHORT, "Pending", "", "", scheduled("Unschedulable", GATE)), "wrong", "cannot place asr/a: claim"),
        (pod(SHORT, "Pending", "", "", scheduled("Unschedulable", "no room")), "ok", ""),
        (pod(SHORT, "Pending", "ImagePullBackOff"), "wrong", "asr/a: ImagePullBackOff: no such image"),
        (pod(SHORT, "Pending", "PodInitializing"), "ok", ""),
        (pod(LONG, "Pending", "", "", SEEN), "ok", ""),
        (pod(LONG, "Pending", "", ""), "wrong", "no scheduler has looked at asr/a"),
        (by("default-scheduler"), "wrong", "no scheduler has looked at asr/a"),
        (by("volcano"), "warning", "wait for another: asr/a (volcano)"),
        (pod(SHORT, "Pending", "", ""), "ok", ""),
    ],
)
def test_pods_that_do_not_start_are_named_with_why(found: Any, level: str, says: str) -> None:
    answer = stuck(Api({"pods": [found], "deployments": [RELEASE]}), NOW)  # type: ignore[arg-type] # it only lists
    assert (answer.level, says in answer.detail) == (level, True), answer
    assert (answer.hint == "") is (level == "ok")


@pytest.mark.parametrize(
    ("events", "level", "says"),
    [
        ([], "wrong", "kube-controller-manager has made no claim for asr/a"),
        ([{"involvedObject": {"uid": "another"}, "message": "exceeded quota"}], "wrong", "kube-controller-manager"),
        ([{"involvedObject": {"uid": "u"}, "message": "exceeded quota: gpu"}], "warning", "asr/a: exceeded quota: gpu"),
        ([{"involvedObject": {"uid": "u"}, "message": DENIED}], "wrong", "policy 'cost'"),
    ],
)
def test_a_pod_that_has_no_claim_yet_does_not_wait_for_a_scheduler(events: Any, level: str, says: str) -> None:
    found = pod(LONG, node="")
    found["metadata"]["uid"] = "u"
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "made"}]
    answer = stuck(Api({"pods": [found], "events": events}), NOW)  # type: ignore[arg-type] # it only lists
    assert (answer.level, says in answer.detail, bool(answer.hint)) == (level, True, True), answer
    found["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "it"}]
    answer = stuck(Api({"pods": [found], "events": events}), NOW)  # type: ignore[arg-type] # it only lists
    assert "no scheduler" in answer.detail


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (DENIED, "kubectl describe validatingadmissionpolicies cost;"),
        (DEAD, "webhook a.example.org is not one of gpu-share"),
        (f'User "{KCM}" cannot create resource "resourceclaims"', "system:controller:resource-claim-controller;"),
        ("exceeded quota: gpu", "have the quota raised;"),
        ("something new", "an operator looks who refuses the claim;"),
    ],
)
def test_what_to_do_about_a_claim_that_is_refused_fits_who_refuses_it(message: str, says: str) -> None:
    hint = remedy(NO_CLAIM, message)
    assert says in hint
    assert hint.endswith(TRIED_AGAIN)
    assert ("quota" in hint) is ("quota" in message)


@pytest.mark.parametrize(("name", "says"), [("gpu-share-0123456789abcdef", "webhook"), ("made", "create it in")])
def test_a_template_that_is_missing_is_no_matter_of_a_quota_of_claims(name: str, says: str) -> None:
    found = pod(LONG, node="")
    found["metadata"]["uid"] = "u"
    found["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    message = f'PodResourceClaim gpu: resource claim template "{name}": resourceclaimtemplate "{name}" not found'
    events = [{"involvedObject": {"uid": "u"}, "message": message}]
    answer = stuck(Api({"pods": [found], "events": events}), NOW)  # type: ignore[arg-type] # it only lists
    assert answer.level == "warning"
    assert "end other pods" not in answer.hint
    assert says in answer.hint


@pytest.mark.parametrize(("image", "others"), [("gpu-share:0.1.0", False), ("mirror.corp/gpu-share:0.1.0", True)])
def test_an_image_that_the_chart_does_not_name_may_be_of_others(image: str, *, others: bool) -> None:
    found = pod(SHORT, "Pending", "ImagePullBackOff")
    found["spec"]["initContainers"] = [{"name": contract.SIDECAR, "image": image}]
    answer = stuck(Api({"pods": [found], "deployments": [RELEASE]}), NOW)  # type: ignore[arg-type] # it only lists
    assert ("mutatingadmissionpolicies" in answer.hint, "image.registry" in answer.hint) == (others, True)
