"""What ``gpu-share explain`` is asked about."""

from pathlib import Path

import pytest

from gpushare.errors import ConfigError
from gpushare_cli.explain.pod import POD, target
from gpushare_cli.main import main


@pytest.mark.parametrize(
    ("words", "namespace", "found"),
    [
        ("x", None, ("Pod", "", "x")),
        ("asr/x", None, ("Pod", "asr", "x")),
        ("po/x", "asr", ("Pod", "asr", "x")),
        ("deploy/x", "asr", ("Deployment", "asr", "x")),
        ("Deployment/x", None, ("Deployment", "", "x")),
        ("deployments.apps/x", None, ("Deployment", "", "x")),
        ("sts/x", None, ("StatefulSet", "", "x")),
        ("ds/x", None, ("DaemonSet", "", "x")),
        ("rs/x", None, ("ReplicaSet", "", "x")),
        ("rc/x", None, ("ReplicationController", "", "x")),
        ("job/x", None, ("Job", "", "x")),
        ("jobs/x", None, ("Job", "", "x")),
        ("cj/x", None, ("CronJob", "", "x")),
        ("job", "asr", ("Pod", "asr", "job")),
    ],
)
def test_kubectls_words_for_workloads_are_known(words: str, namespace: str | None, found: tuple[str, str, str]) -> None:
    kind, where, name = target(words, namespace)
    assert (kind.name, where, name) == found


@pytest.mark.parametrize("words", ["deploy/", "deploy/a/b", "a/b/c", "/x", ""])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="write"):
        target(words, None)


@pytest.mark.parametrize("where", ["--state", "-f"])
def test_json_is_of_the_cluster_only(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x", "--state", str(tmp_path)] if where == "--state" else ["-f", str(tmp_path)]
    assert main(["explain", *words, "-o", "json"]) == 2
    assert "-o json is for pods and workloads of the cluster" in capsys.readouterr().err


def test_a_word_that_is_no_kind_is_named_beside_the_namespace() -> None:
    with pytest.raises(ConfigError, match=r"'svc' is neither a kind .* nor the namespace that -n names \(asr\)"):
        target("svc/worker", "asr")
    assert target("asr/worker", "asr") == (POD, "asr", "worker")
