"""``kubectl_complete-gpu_share``: kubectl runs it with the words so far, the last of which is to be completed."""

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare import kube_client
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.completion import complete
from gpushare_cli.main import VERBS

ROOT = Path(__file__).parents[3]
NO_FILES = ":4"
FILES = ":0"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([""], [*VERBS, NO_FILES]),
        (["inj"], ["inject", NO_FILES]),
        (["no-such"], [NO_FILES]),
        (["inject", "--templ"], ["--templates", NO_FILES]),
        (["inject", "-o", ""], ["yaml", "json", "patch", "diff", NO_FILES]),
        (["inject", "-f", "a.yaml", "-o", "y"], ["yaml", NO_FILES]),
        (["inject", "--output=p"], ["--output=patch", NO_FILES]),
        (["inject", "-f", ""], [FILES]),
        (["inject", "--filename="], [FILES]),
        (["inject", "--pod-at", ""], [NO_FILES]),
        (["migrate", "--ca"], ["--card", NO_FILES]),
        (["migrate", "-f", ""], [FILES]),
        (["audit", "ver"], ["verify", NO_FILES]),
        (["audit", "verify", "--stat"], ["--state", NO_FILES]),
        (["audit", "verify", "--state", "/v"], [FILES]),
        (["completion", ""], ["bash", "fish", "zsh", NO_FILES]),
        (["completion", "b"], ["bash", NO_FILES]),
        (["resize", "--dry"], ["--dry-run", NO_FILES]),
        (["resize", "po"], [NO_FILES]),
        (["top", "--sort", "kill"], ["kill-in", "kills", NO_FILES]),
        (["bundle", "--to", ""], [FILES]),
        ([], [*VERBS, NO_FILES]),
    ],
)
def test_verbs_options_and_values_are_completed_for_kubectl(
    words: list[str], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == found


class Cluster:
    """Lists that a prompt is answered from, by path."""

    LISTS: Final = {
        "/api/v1/namespaces": ["asr", "tts"], "/api/v1/nodes": ["gpu-1"],
        "/api/v1/namespaces/asr/pods": ["train", "trial"], "/api/v1/namespaces/here/pods": ["serve"],
    }  # fmt: skip

    def get(self, where: str, **query: Any) -> Any:
        assert query["timeout"] <= 2, "somebody waits at a prompt"
        if where not in self.LISTS:
            raise ClusterError("forbidden", 403)
        return {"items": [{"metadata": {"name": name}} for name in self.LISTS[where]]}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["resize", ""], ["serve"]),
        (["resize", "-n", "asr", "tri"], ["trial"]),
        (["resize", "--namespace", "asr", "--timeout", "3", ""], ["train", "trial"]),
        (["explain", "asr/tra"], ["asr/train"]),
        (["explain", "deploy/"], []),
        (["resize", "serve", ""], []),
        (["top", "-n", ""], ["asr", "tts"]),
        (["check", "--namespace=t"], ["--namespace=tts"]),
        (["breaker", "--reset", "--node", "g"], ["gpu-1"]),
    ],
)
def test_pods_namespaces_and_nodes_of_the_cluster_are_completed(
    words: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(KubeClient, "connect", lambda *_: Cluster())
    monkeypatch.setattr(kube_client, "namespace_of", lambda *_: "here")
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == [*found, NO_FILES]


def test_without_a_cluster_nothing_is_completed_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert complete(["top", "-n", ""]) == 0
    assert capsys.readouterr() == (f"{NO_FILES}\n", "")


def test_kubectl_finds_the_program_beside_the_plugin() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"kubectl-gpu_share", "kubectl_complete-gpu_share"} <= scripts.keys()
    module, _, function = scripts["kubectl_complete-gpu_share"].partition(":")
    assert (module, function) == (complete.__module__, complete.__name__)
