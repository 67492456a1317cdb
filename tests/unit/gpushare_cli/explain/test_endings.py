"""``gpu-share explain`` on pods that have ended: what they had, when they ended, and why."""

from typing import Any

import pytest

from gpushare_cli.explain.cluster_state import PodExplanation, explain
from gpushare_cli.explain.pod_record import PodRecord
from tests.unit.gpushare_cli.explain.test_pod import load

LATE = "2026-11-20T23:00:00Z"


def ended(
    code: int, reason: str = "Error", phase: str = "Failed", name: str = "running", **more: Any
) -> dict[str, Any]:
    """A recorded pod after its end: its claim is gone, as Kubernetes deletes it."""
    content = load(name)
    (status,) = content["pod"]["status"]["containerStatuses"]
    status["state"] = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": LATE}}
    content["pod"]["status"] |= {"phase": phase, **more}
    return content | {"claims": {}}


def explained(content: dict[str, Any]) -> PodExplanation:
    return explain(PodRecord(**content))


def test_a_completed_pod_shows_its_share_and_its_end() -> None:
    found = explained(ended(0, "Completed", "Succeeded"))
    assert found.fine
    assert found.summary.endswith(f": Succeeded on node explained, ended at {LATE}")
    assert found.containers[0].given == "4Gi, 25%"
    (end,) = found.findings
    assert (end.type, end.reason, end.time, end.hint) == ("ended", "Completed", LATE, "")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (ended(137, name="killed"), "the enforcer killed its processes"),
        (ended(137, "OOMKilled"), "resources.limits.memory"),
        (ended(137), "no kill Event exists"),
        (ended(1), ""),
        (ended(137) | {"events": None}, ""),
    ],
)
def test_why_a_pod_failed_is_reported_as_far_as_it_is_known(content: dict[str, Any], says: str) -> None:
    found = explained(content)
    assert not found.fine
    (end,) = [each for each in found.findings if each.type == "ended"]
    assert (says in end.hint, bool(end.hint)) == (True, bool(says))


def test_an_eviction_is_named_also_where_only_a_condition_says_so() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "x"}
    found = explained(ended(143, conditions=[condition]))
    assert "failed: PreemptionByScheduler: x" in [each.message for each in found.findings]


def test_a_container_that_never_ran_was_given_nothing() -> None:
    content = ended(0, phase="Failed", reason="Evicted")
    content["pod"]["status"]["containerStatuses"] = []
    found = explained(content)
    assert found.containers[0].given == "nothing"
    assert not found.fine


def test_an_amount_that_was_changed_meanwhile_is_not_called_the_last_one() -> None:
    content = ended(0, "Completed", "Succeeded")
    content["pod"]["metadata"]["annotations"]["resize.gpu-share.io/main"] = "3Gi mark"
    assert explained(content).containers[0].given == "4Gi, 25% at its start"


def test_a_pod_that_is_being_deleted_says_so() -> None:
    content = load("running")
    content["pod"]["metadata"]["deletionTimestamp"] = LATE
    assert explained(content).summary.endswith(f"being deleted since {LATE}")


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
@pytest.mark.parametrize(("code", "fine"), [(0, True), (1, False)])
def test_a_container_that_failed_and_does_not_run_again_yet_is_named(kind: str, code: int, fine: bool) -> None:  # noqa: FBT001 - a parameter of the test
    content = load("running")
    status = {"name": "fetch", "state": {"terminated": {"exitCode": code, "reason": "OOMKilled"}}, "restartCount": 4}
    content["pod"]["status"].setdefault(kind, []).append(status)
    found = explained(content)
    assert found.fine is fine
    assert any("resources.limits.memory" in each.hint for each in found.findings) is not fine
