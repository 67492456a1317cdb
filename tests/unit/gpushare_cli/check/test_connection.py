"""Each object and each list of a cluster is read once in a run of ``check``, whatever came of it."""

from collections import Counter
from typing import Any

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare_cli.check import cluster, command, connection, preinstall
from gpushare_cli.check.connection import ReadOnce, connected
from tests.support.asked_rights import Recorder
from tests.unit.gpushare_cli.check.api import Api

OPTED_IN = {"metadata": {"name": "asr", "labels": {contract.NAMESPACE_LABEL: "true"}}}
NODE = {"metadata": {"name": "gpu-7", "labels": {contract.NODE_LABEL: "true"}}}
OF_US = path(CORE_V1, "pods", namespace="gpu-share-system")


@pytest.mark.parametrize("named", [None, "asr"])
@pytest.mark.parametrize("pre", [True, False])
def test_a_run_makes_at_most_one_list_of_a_kind(
    named: str | None, *, pre: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are of two kinds: those with a share, wherever they are, and those of the release in its namespace."""
    api = Recorder(namespaces=[OPTED_IN], nodes=[NODE])
    monkeypatch.setattr(KubeClient, "connect", lambda *_: api)
    questions = preinstall.questions() if pre else cluster.questions(named)
    answers = list(command.ask(connected(None, None, required=True, questions=lambda: questions)))
    assert len(answers) == len(questions) + 1
    assert set((api.gets + api.listed).values()) == {1}
    kinds = Counter(where.rpartition("/")[2] for where in api.listed if where != OF_US)
    assert set(kinds.values()) == {1}


def test_what_no_question_reads_is_not_kept() -> None:
    node = {"metadata": {"name": "a", "managedFields": [{}]}, "status": {"images": [{}], "conditions": []}}
    api = ReadOnce(Api({"nodes": [node]}))  # type: ignore[arg-type] # it has what is called
    (found,) = api.list("/api/v1/nodes")[0]
    assert (found["metadata"].keys() & {"name", "managedFields"}, found["status"]) == ({"name"}, {"conditions": []})


def test_what_the_api_server_refuses_is_asked_once() -> None:
    asked: list[str] = []

    class Refusing(Api):
        def get(self, where: str) -> Any:
            asked.append(where)
            return super().get(where)

    api = ReadOnce(Refusing({"nodes": 403}))  # type: ignore[arg-type] # it has what is called
    for _ in range(2):
        with pytest.raises(ClusterError, match="403"):
            api.list("/api/v1/nodes")
    assert asked == ["/api/v1/nodes"]


@pytest.mark.parametrize(
    ("said", "status", "level", "remedy"),
    [
        ('failed calling webhook "a.example.io": no endpoints', 500, "wrong", "webhook a.example.io"),
        ('admission webhook "a.example.io" denied the request: no', 403, "warning", "webhook a.example.io"),
        ("exceeded quota: none, requested: count/resourceclaimtemplates=1", 403, "warning", "ResourceQuota"),
    ],
)
def test_who_refuses_a_dry_run_is_named_and_no_right_is_missing(
    said: str, status: int, level: str, remedy: str
) -> None:
    class Refusing(Api):
        def create(self, where: str, body: Any, **query: str) -> Any:
            raise ClusterError(f"POST {where}: {said}", status)

    api: Any = Refusing({"resourceslices": []})
    for answer in (connection.asked(api, ask) for _, ask in preinstall.GATES):
        assert (answer.level, answer.forbidden, remedy in answer.hint) == (level, False, True), answer
