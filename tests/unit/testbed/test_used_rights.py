"""Which rights pods used is read from the API server's audit log, and what nobody used is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.asked_rights import Right
from tests.support.unused_rights import ELSEWHERE, unused
from tests.testbed.cluster import used_rights

ROOT = Path(__file__).parents[3]
ACCOUNT = "gpu-share-enforcer"
CHART: list[dict[str, Any]] = [
    {
        "kind": "ClusterRole",
        "metadata": {"name": "role"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["ours", "other"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        ],
    },
    {
        "kind": "ClusterRoleBinding",
        "roleRef": {"kind": "ClusterRole", "name": "role"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT}],
    },
]


def event(verb: str, *, pod: bool = True, decision: str = "allow", **asked: str) -> str:
    user = {"username": f"system:serviceaccount:gpu-share-system:{ACCOUNT}"}
    extra = {"extra": {"authentication.kubernetes.io/pod-name": ["enforcer-1"]}} if pod else {}
    annotations = {"authorization.k8s.io/decision": decision}
    return json.dumps({"verb": verb, "user": user | extra, "objectRef": asked, "annotations": annotations})


USED = (
    event("watch", resource="pods"),
    event("get", resource="secrets", name="ours"),
    event("patch", apiGroup="resource.k8s.io", resource="resourceclaims", subresource="status", name="a"),
)


def of(*lines: str) -> list[tuple[str, Right]]:
    return unused(CHART, set(used_rights.used(lines)))


def test_what_pods_used_is_not_named_and_the_rest_is() -> None:
    assert of(*USED) == [(ACCOUNT, Right("get", "", "secrets", "other"))]
    assert len(of()) == 5, "all of them"


@pytest.mark.parametrize("other", [{"pod": False}, {"decision": "forbid"}])
def test_a_request_of_a_test_or_a_refused_one_uses_no_right(other: dict[str, Any]) -> None:
    assert of(*USED, event("get", resource="secrets", name="other", **other)) == of(*USED)


def test_the_rights_of_several_clusters_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(used_rights.VARIABLE, str(tmp_path))
    for number, line in enumerate((*USED, event("get", resource="secrets", name="other"))):
        log = tmp_path / str(number) / used_rights.LOG
        log.parent.mkdir(parents=True)
        log.write_text(f"{line}\n")
        used_rights.keep(tmp_path / str(number))
    assert unused(CHART, used_rights.kept(tmp_path)) == []


def test_what_is_used_elsewhere_is_used_by_a_test_that_exists() -> None:
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in (ROOT / file).read_text()


def test_a_request_that_ended_before_it_was_authorized_uses_no_right() -> None:
    whole = json.loads(event("get", resource="secrets", name="other"))
    ended = json.dumps({key: value for key, value in whole.items() if key != "annotations"})
    assert of(*USED, ended) == of(*USED)
