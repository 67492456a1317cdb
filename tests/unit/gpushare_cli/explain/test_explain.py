from pathlib import Path

import pytest

from gpushare_cli.main import main
from tests.unit.gpushare_cli.streams import pod, text, wrapped


def explained(source: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    (folder / "in.yaml").write_text(source)
    code = main(["explain", "-f", str(folder / "in.yaml")])
    return code, capsys.readouterr().out.splitlines()


def test_a_share_is_explained_container_by_container(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = wrapped("Deployment", pod(**{"gpu-share.io/compute": "25%"}), "a")
    value["spec"]["template"]["spec"]["containers"].append({"name": "helper", "image": "x"})
    code, lines = explained(text(value), tmp_path, capsys)
    assert code == 0
    assert lines[0].startswith("Deployment a/deployment-1: Applied: ")
    assert [line.split() for line in lines[1:4]] == [
        ["CONTAINER", "MEMORY", "COMPUTE", "REQUEST"],
        ["main", "4Gi", "25%", "main"],
        ["helper", "no", "GPU", "N/A", "N/A"],
    ]


def test_a_request_that_reserves_more_than_its_container_has_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = wrapped("Pod", pod(**{"memory.gpu-share.io/warm": "6Gi"}), "a")
    value["spec"]["initContainers"] = [{"name": "warm", "image": "x"}]
    _, lines = explained(text(value), tmp_path, capsys)
    assert [" ".join(line.split()) for line in lines[2:4]] == [
        "warm 6Gi no cap main",
        "main 4Gi no cap main (6Gi reserved)",
    ]


def test_every_pod_is_notified_about_also_after_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [wrapped("Job", pod(memory="1Mi")), wrapped("Pod", pod(memory=None)), wrapped("Pod", pod())]
    code, lines = explained("---\n".join(map(text, pods)), tmp_path, capsys)
    assert code == 1
    assert lines[0] == "Job job-1: BelowMinimum: would be refused"
    assert lines[1].startswith("  spec.template.metadata.annotations[gpu-share.io/memory]: 1Mi")
    assert lines[2].startswith("Pod pod-1: NoShare: ")
    assert lines[3].startswith("Pod pod-1: Applied: ")


def test_a_manifest_without_pods_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained("a: 1\n", tmp_path, capsys) == (0, ["no pod in this manifest"])


def test_a_tag_at_a_value_that_is_none_is_reported_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.yaml").write_text("apiVersion: v1\nkind: Pod\nspec:\n  x: !!bool abc\n")
    assert main(["explain", "-f", str(tmp_path / "in.yaml")]) == 1
    out, err = capsys.readouterr()
    told = "gpu-share: document 1, line 4: 'abc' cannot be read as !!bool; put it in quotes, without a tag\n"
    assert (out, err) == ("", told)
