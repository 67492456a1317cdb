"""Why a container's user cannot reach its MPS server."""

from typing import Any

import pytest

from tests.unit.gpushare_cli.explain.test_pod import load, told

FILES = [{"user": 0, "mode": 0o600}]
ENDED = {"terminated": {"exitCode": 1}}


def crashing(
    user: object, files: object = FILES, state: str = "waiting", last: object = ENDED, restarts: object = 1
) -> tuple[bool, str]:
    content = load("running")
    content["pod"]["spec"]["securityContext"] = {"runAsUser": user}
    for status in content["pod"]["status"]["containerStatuses"]:
        status["state"] = {state: {"reason": "CrashLoopBackOff", "exitCode": 0}}
        status |= {"lastState": last, "restartCount": restarts}
    (claim,) = content["claims"].values()
    for entry in claim["status"]["devices"]:
        entry.setdefault("data", {})["mpsFiles"] = files
    fine, lines = told(content)
    return fine, "\n".join(lines)


def test_a_user_who_may_not_open_the_file_of_the_mps_server_is_notified_why_and_what_to_set() -> None:
    fine, text = crashing(1000)
    assert not fine
    assert (
        "container main runs as user 1000, which may not open the file of the MPS server in /dev/shm (mode 0600" in text
    )
    assert "only root may" in text
    assert "set runAsUser to 1001" in crashing(1000, [{"user": 0, "mode": 0o600}, {"user": 1001, "mode": 0o600}])[1]


def test_a_volume_of_its_own_at_dev_shm_is_a_reason_only_where_the_server_has_a_file() -> None:
    content = load("running")
    for each in content["pod"]["spec"]["containers"]:
        each["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for status in content["pod"]["status"]["containerStatuses"]:
        status |= {"lastState": ENDED, "restartCount": 1}
    assert not any("/dev/shm" in line for line in told(content)[1]), "a driver from 580 on"
    (claim,) = content["claims"].values()
    for entry in claim["status"]["devices"]:
        entry.setdefault("data", {})["mpsFiles"] = FILES
    assert any("container main mounts a volume of its own at /dev/shm" in line for line in told(content)[1])


@pytest.mark.parametrize(("last", "restarts"), [(ENDED, 1), ({}, 1), (ENDED, None)])
def test_a_container_that_runs_again_after_a_failure_has_the_same_reason(last: object, restarts: object) -> None:
    fine, text = crashing(1000, state="running", last=last, restarts=restarts)
    assert (fine, "may not open the file of the MPS server" in text) == (False, True)


@pytest.mark.parametrize(
    ("state", "last", "restarts"),
    [
        ("terminated", {}, 0),
        ("running", {}, 0),
        ("running", None, None),
        ("running", {"terminated": {"exitCode": 0}}, 1),
        ("waiting", {}, 0),
    ],
)
def test_a_container_that_has_not_failed_has_no_such_reason(state: str, last: object, restarts: object) -> None:
    assert "may not open" not in crashing(1000, state=state, last=last, restarts=restarts)[1]


@pytest.mark.parametrize(
    ("user", "more"),
    [
        (0, {}),
        (None, {}),
        (1000, {"files": [{"user": 0, "mode": 0o666}]}),
        (1000, {"files": [*FILES, {"user": 1000, "mode": 0o600}]}),
        (1000, {"files": []}),
        (1000, {"files": [{"user": "0", "mode": None}]}),
    ],
)
def test_nothing_is_reported_where_it_may_and_where_that_is_not_known(user: Any, more: dict[str, Any]) -> None:
    assert "MPS server" not in crashing(user, **more)[1]
