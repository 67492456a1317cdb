"""``gpu-share resize`` on objects recorded from a real API server; the enforcer's own rules answer."""

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from enforcer.dra.claim_status import status_of
from enforcer.dra.resize import CurrentUsage, ResizeBounds, apply_resize
from gpushare.contract import RESIZE_OF
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare.resize_annotation import parse_request
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod import recorded
from gpushare_cli.main import main
from gpushare_cli.prepared import prepared_of
from gpushare_cli.resize import command as resize
from tests.unit.gpushare_cli.explain.test_pod import Api, load

POD = "explained-1/running"
NOW = CurrentUsage(used_mib=2000, applies_immediately=False)


class Answering(Api):
    """A cluster whose enforcer answers wishes as they are written, by the second look, or never."""

    def __init__(self, content: dict[str, Any], *refused: str, enforcer: bool = True, **more: Any) -> None:
        super().__init__(content, *refused, **more)
        self.enforcer, self.patched, self.pending = enforcer, list[Any](), list[Any]()

    def patch(self, where: str, body: Any, _: str, **query: str) -> Any:
        if "patch" in self.refused:
            raise ClusterError('PATCH: pods "running" is forbidden: User "x" cannot patch resource "pods"', self.status)
        self.patched.append((where, body, query))
        if not query and self.enforcer:
            self.pending = [body["metadata"]["annotations"]]

    def get(self, where: str) -> Any:
        found = super().get(where)
        if "/resourceclaims/" in where and self.pending:
            self._answer(found, self.pending.pop())
        return copy.deepcopy(found)

    def _answer(self, claim: Any, annotations: dict[str, str]) -> None:
        pod = self.content["pod"]
        kept = prepared_of(claim, pod)
        assert kept is not None
        for key, asked in annotations.items():
            kept = apply_resize(kept, pod, key.removeprefix(RESIZE_OF), asked, ResizeBounds(), NOW)
        (mine,) = status_of(kept, datetime(2026, 11, 22, tzinfo=UTC))["status"]["devices"]
        claim["status"]["devices"][0]["data"] |= mine["data"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(resize, "LOOK_SECONDS", 0.0)

    def use(api: Answering) -> Answering:
        monkeypatch.setattr(KubeClient, "connect", lambda *_: api)
        monkeypatch.setattr(resize, "namespace_of", lambda *_: "explained-1")
        return api

    return use


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["resize", *arguments])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def test_lowered_it_says_before_after_reserved_and_when(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster(Answering(load("running")))
    code, text = said(capsys, POD, "main", "3Gi")
    assert code == 0
    assert text.startswith("explained-1/running main: 4Gi -> 3Gi (reserved 4Gi) the quota of container main is now 3Gi")
    assert "until the container restarts" in text
    ((where, body, query),) = api.patched
    assert (where, query) == ("/api/v1/namespaces/explained-1/pods/running", {})
    assert body["metadata"]["uid"] == load("running")["pod"]["metadata"]["uid"], (
        "this pod, and no later one of its name"
    )
    (wish,) = body["metadata"]["annotations"].values()
    assert parse_request(wish).memory_mib == 3072
    found = explain(recorded(api, "explained-1", "running"))
    assert found.fine
    assert "3Gi, 25% (4Gi reserved)" in found.lines[2]


def test_each_resize_request_has_a_mark_of_its_own(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster(Answering(load("running")))
    assert [said(capsys, POD, "main", "1Gi")[0] for _ in range(2)] == [1, 1]
    first, second = (body["metadata"]["annotations"][f"{RESIZE_OF}main"] for _, body, _ in api.patched)
    assert first != second


def test_what_the_enforcer_refuses_is_its_sentence_and_force_goes_along(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(Answering(load("running")))
    code, text = said(capsys, POD, "main", "1Gi")
    assert code == 1
    assert "explained-1/running main keeps 4Gi: container main holds 2000 MiB now" in text
    assert said(capsys, POD, "main", "1Gi", "--force")[0] == 0


def test_json_says_all_of_it(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(Answering(load("running")))
    assert main(["resize", POD, "main", "3Gi", "-o", "json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done.pop("note").startswith("the quota of container main is now 3Gi")
    assert done == {
        "namespace": "explained-1", "pod": "running", "container": "main", "done": True, "reason": "Resized",
        "beforeMiB": 4096, "afterMiB": 3072, "reservedMiB": 4096, "effect": "at next start", "dryRun": False,
    }  # fmt: skip
    assert main(["resize", POD, "main", "9Gi", "-o", "json"]) == 1
    refused = json.loads(capsys.readouterr().out)
    assert (refused["done"], refused["reason"], refused["afterMiB"]) == (False, "AboveMaximum", 3072)


def test_a_dry_run_asks_for_the_right_and_changes_nothing(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster(Answering(load("running")))
    code, text = said(capsys, POD, "main", "3Gi", "--dry-run")
    assert code == 0
    assert "main: would go 4Gi -> 3Gi" in text
    assert "no change was requested" in text
    assert [query for _, _, query in api.patched] == [{"dryRun": "All"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((POD, "main", "5Gi"), "keeps 4Gi: 5Gi exceeds the reservation: the pod has 4Gi of the GPU"),
        ((POD, "main", "500Mi"), "below the minimum of 512Mi"),
        ((POD, "mian", "3Gi"), "no container named 'mian'; did you mean main?"),
        ((POD, "gpu-share", "3Gi"), "container gpu-share has no GPU share; the containers with a share are main"),
    ],
)
def test_what_is_known_here_to_be_impossible_is_not_even_asked(
    cluster: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    api = cluster(Answering(load("running")))
    code, text = said(capsys, *arguments)
    assert (code, api.patched) == (1, [])
    assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((POD, "main", "3"), "did you mean 3Mi?"),
        (("a/b/c", "main", "3Gi"), "write POD or NAMESPACE/POD"),
        (("a/", "main", "3Gi"), "write POD or NAMESPACE/POD"),
        (("/b", "main", "3Gi"), "write POD or NAMESPACE/POD"),
        (("a/b", "main", "3Gi", "-n", "c"), "nor the namespace that -n names (c)"),
        (("deploy/a", "main", "3Gi"), "deploy/a is a Deployment: gpu-share explain deploy/a names its pods"),
        ((POD, "main"), "required: MEMORY"),
    ],
)
def test_wrong_use_is_two(
    cluster: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    cluster(Answering(load("running")))
    code, text = said(capsys, *arguments)
    assert code == 2
    assert words in text


@pytest.mark.parametrize("arguments", [("running",), ("running", "-n", "explained-1"), (POD, "-n", "explained-1")])
def test_a_pod_is_named_as_elsewhere(
    cluster: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    cluster(Answering(load("running")))
    assert said(capsys, *arguments[:1], "main", "3Gi", *arguments[1:])[0] == 0


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (("pods",), "you may not read pod running"),
        (("resourceclaims",), "you may not read ResourceClaims in namespace explained-1; ask a cluster operator"),
        (
            ("patch",),
            "you may not change quotas in namespace explained-1; ask a cluster operator for a ClusterRoleBinding",
        ),
    ],
)
def test_without_the_right_it_says_what_to_ask_for(
    cluster: Any, capsys: pytest.CaptureFixture[str], refused: tuple[str, ...], words: str
) -> None:
    cluster(Answering(load("running"), *refused))
    code, text = said(capsys, POD, "main", "3Gi")
    assert code == 1
    assert words in text


def test_pods_that_do_not_run_or_have_no_share_are_refused(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    content = load("running")
    cluster(Answering(content))
    assert "no pod other in namespace explained-1" in said(capsys, "other", "main", "3Gi")[1]
    (claim,) = content["claims"].values()
    claim["status"]["devices"][0]["data"]["podUid"] = "of-another"
    assert "has no prepared share" in said(capsys, POD, "main", "3Gi")[1]
    content["claims"] = {}
    assert "has no prepared share" in said(capsys, POD, "main", "3Gi")[1]
    content["pod"]["status"]["phase"] = "Pending"
    assert "is not running (phase Pending)" in said(capsys, POD, "main", "3Gi")[1]
    content["pod"]["metadata"]["deletionTimestamp"] = "2026"
    code, text = said(capsys, POD, "main", "3Gi")
    assert (code, "is being deleted" in text) == (1, True)


def test_an_enforcer_that_does_not_answer_is_waited_for_no_longer_than_told(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(Answering(load("running"), enforcer=False))
    code, text = said(capsys, POD, "main", "3Gi", "--timeout", "0.1")
    assert code == 1
    assert "the enforcer of node explained has not answered within 0.1 s; the resize request stays on the pod" in text


@pytest.mark.parametrize(
    ("verb", "seconds"), [("resize", "0"), ("resize", "nan"), ("uninstall", "inf"), ("uninstall", "-1")]
)
def test_a_timeout_that_never_comes_is_refused(verb: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [POD, "--memory", "3Gi"] if verb == "resize" else []
    assert main([verb, *options, f"--timeout={seconds}"]) == 2
    assert "is not a number of seconds from" in capsys.readouterr().err
