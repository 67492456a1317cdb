"""The command line: outputs, exit codes, folders, and what is said of what was not converted."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_cli.main import main
from tests.unit.gpushare_cli.migrate.golden import FOLDER, NEW, SAID, answer, sources

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
  - name: a
    resources:
      limits: {%s}
"""
HAMI = POD % "nvidia.com/gpumem: 4096"
PART = POD % "nvidia.com/gpumem-percentage: 50"
OTHERS = "kind: ConfigMap\napiVersion: v1\ndata: {a:   b}  # not ours\n"


@pytest.mark.parametrize("source", sources(), ids=lambda each: each.stem)
def test_manifests_of_each_dialect_are_written_as_they_were_read_by_a_person(source: Path) -> None:
    assert answer(source) == tuple((FOLDER / f"{source.stem}{end}").read_text(encoding="utf-8") for end in (NEW, SAID))


def test_diff_is_one_that_patch_applies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"{OTHERS}---\n{HAMI}# end of {name}\n")
    assert main(["migrate", "-f", str(tmp_path)]) == 0
    new = capsys.readouterr().out
    assert main(["migrate", "-f", str(tmp_path), "--diff"]) == 0
    patch = capsys.readouterr().out
    subprocess.run(["patch", "-p1", "-d", "/"], input=patch, text=True, check=True, stdout=subprocess.DEVNULL)
    assert "".join((tmp_path / f"{name}.yaml").read_text() for name in ("a", "b")) == new.replace("a\n---\n", "a\n")


@pytest.mark.parametrize(("text", "code"), [(HAMI, 1), (OTHERS, 0), (POD % "nvidia.com/gpu: 1", 0), (PART, 1)])
def test_check_is_for_ci(text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert main(["migrate", "-f", str(tmp_path / "a.yaml"), "--check"]) == code
    assert capsys.readouterr().out == ""


def test_nothing_is_written_where_one_pod_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(f"{HAMI}---\n{PART}---\n{PART}")
    assert main(["migrate", "-f", str(tmp_path / "a.yaml")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("--card") == 2
    assert "document 2 (Pod p, line 11): spec.containers[a].resources.limits[nvidia.com/gpumem-percentage]: 50" in err


def test_standard_input_comes_out_as_it_went_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OTHERS.encode())))
    assert main(["migrate", "-f", "-"]) == 0
    assert capsys.readouterr() == (OTHERS, "")


@pytest.mark.parametrize("words", [["--card", "80"], ["--unit", "a"], ["--replicas", "a=1"], ["--diff", "--check"]])
def test_options_are_checked(words: list[str]) -> None:
    assert main(["migrate", "-f", "-", *words]) == 2


def test_pods_of_other_objects_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (FOLDER / "volcano.yaml").read_text().partition("---\n")[0]
    (tmp_path / "a.yaml").write_text(text)
    assert main(["migrate", "-f", str(tmp_path / "a.yaml")]) == 0
    out, err = capsys.readouterr()
    assert out == text
    assert "Job: has volcano.sh/vgpu-" in err
    assert "--pod-at" in err


def test_what_is_loses_its_comments_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that are merged in cannot be taken out of the text."""
    text = HAMI.replace("limits: {", "limits: {cpu: 1, <<: {nvidia.com/gpucores: 30}, ") + "# a comment\n"
    (tmp_path / "a.yaml").write_text(text)
    assert main(["migrate", "-f", str(tmp_path / "a.yaml")]) == 0
    out, err = capsys.readouterr()
    assert "gpu-share.io/compute: 30%" in out
    assert "without its comments" in err


def test_json_is_migrated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"containers": [{"name": "a", "resources": {"limits": {"volcano.sh/vgpu-memory": 1}}}]}
    (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}))
    assert main(["migrate", "-f", str(tmp_path / "a.json")]) == 0
    assert '"gpu-share.io/memory": "1Mi"' in capsys.readouterr().out
