"""``gpu-share breaker`` of all nodes, read from the enforcers' reports, and closed in the enforcer of one."""

import json
from pathlib import Path
from typing import Any

import pytest

from enforcer.kill.circuit_breaker import NAME
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.breaker import command as breaker
from gpushare_cli.main import main
from tests.unit.gpushare_cli.clusters import Cluster

SINCE = "2026-11-24T10:00:00Z"


def report(node: str, **content: Any) -> dict[str, Any]:
    annotations = {contract.ENFORCER: json.dumps({"version": "1.0.0", **content})} if content else {}
    return {
        "metadata": {"name": node, "annotations": annotations},
        "spec": {"driver": contract.DRIVER, "nodeName": node},
    }


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    cluster = Cluster()
    cluster.add(
        "resourceslices",
        report("c", breaker=SINCE, breakerReason="7 containers"),
        report("a", breaker=None),
        report("b"),
        report("d", breaker=""),
    )
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    monkeypatch.setattr(breaker, "STATE_DIRECTORY", tmp_path / "none")
    return cluster


def test_all_nodes_are_shown_with_since_when_and_why(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["breaker"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "NODE  STATE    SINCE                 REASON",
        "a     closed   N/A                   N/A",
        "b     unknown  N/A                   its enforcer reports nothing",
        f"c     open     {SINCE}  7 containers",
        "d     open     N/A                   an operator opened it (file breaker-open.json)",
    ]
    assert cluster.ran == [], "the reports tell it; no command is needed"


@pytest.mark.parametrize(("node", "code", "state"), [("a", 0, "closed"), ("b", 1, "unknown"), ("c", 1, "open")])
def test_one_node_can_be_asked(
    node: str, code: int, state: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["breaker", "--node", node, "-o", "json"]) == code
    assert [(each["node"], each["state"]) for each in json.loads(capsys.readouterr().out)] == [(node, state)]


def test_the_breaker_of_a_named_node_is_closed_in_its_enforcer(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enforcer("c", b"the breaker is closed; grace periods start again\n")
    cluster.enforcer("d", b"", ClusterError("the node does not answer", 500))
    assert main(["breaker", "--node", "c", "--reset"]) == 0
    assert capsys.readouterr().out == "c: the breaker is closed; grace periods start again\n"
    assert cluster.ran == [("enforcer-c", ("gpu-share", "breaker", "--reset", "--state=/var/lib/elsewhere"))]
    assert main(["breaker", "--node", "d", "--reset"]) == 1
    assert capsys.readouterr().err == "gpu-share: node d: the node does not answer\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["--reset"], 2),
        (["--node", "x"], 1),
        (["--node", "x", "--reset"], 1),
        (["--node", "a", "--state", "/tmp"], 2),
        (["--state", "/nowhere", "-o", "json"], 2),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    line: list[str], code: int, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["breaker", *line]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_on_a_node_the_enforcer_there_is_asked(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / NAME).write_text("{}")
    assert main(["breaker"]) == 1
    assert "of this node" in capsys.readouterr().out
    assert main(["breaker", "--context", "x", "--node", "a"]) == 0
    assert "closed" in capsys.readouterr().out
