"""Several manifests in one call of ``inject``: files, folders, and what a folder's own folders hold."""

import json
from pathlib import Path

import pytest
import yaml

from gpushare_cli.inject.manifest import split
from gpushare_cli.main import main
from tests.unit.gpushare_cli.injecting import NAMESPACE
from tests.unit.gpushare_cli.streams import FOREIGN, pod, text, wrapped

Run = pytest.CaptureFixture[str]


def inject(capsys: Run, *options: str | Path) -> tuple[int, str, str]:
    code = main(["inject", *map(str, options)])
    out, err = capsys.readouterr()
    return code, out, err


def written(folder: Path, **contents: str) -> list[Path]:
    """Write ``a="text"`` as a.yaml, and so on; return the files."""
    files = [folder / f"{name}.yaml" for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        file.write_text(content)
    return files


def names(out: str) -> list[str]:
    return [each["metadata"]["name"] for each in yaml.safe_load_all(out) if each]


def test_every_file_that_is_named_is_written(tmp_path: Path, capsys: Run) -> None:
    a, b = written(tmp_path, a=text(wrapped("Pod", pod())), b=text(wrapped("Job", pod())))
    code, out, _ = inject(capsys, "-f", a, "-f", b)
    assert (code, names(out)) == (0, ["pod-1", "job-1"])
    assert out.count("resourceClaimTemplateName") == 2


@pytest.mark.parametrize("ending", ["", "\n"])
def test_files_that_ask_for_nothing_come_out_byte_for_byte(tmp_path: Path, capsys: Run, ending: str) -> None:
    first = FOREIGN[0].rstrip("\n") + ending
    a, b = written(tmp_path, a=first, b=FOREIGN[1])
    code, out, _ = inject(capsys, "-f", a, "-f", b)
    assert (code, out) == (0, f"{FOREIGN[0]}---\n{FOREIGN[1]}")


@pytest.mark.parametrize("kept_as_yaml", [0, 1, 2, None])
def test_json_and_yaml_may_follow_each_other(tmp_path: Path, capsys: Run, kept_as_yaml: int | None) -> None:
    values = [wrapped("Pod", pod(), "a"), wrapped("Job", pod(), "b"), wrapped("CronJob", pod(), "c")]
    files = written(tmp_path, **{f"f{n}": text(each, as_json=n != kept_as_yaml) for n, each in enumerate(values)})
    code, out, _ = inject(capsys, *(f"--filename={each}" for each in files))
    (tmp_path / "all").write_text(out)
    assert (code, inject(capsys, "-f", tmp_path / "all")[1]) == (0, out)
    assert [each.top("kind") for each in split(out)] == ["Pod", "Job", "CronJob"]


def test_a_file_that_is_named_twice_is_written_once(tmp_path: Path, capsys: Run) -> None:
    (a,) = written(tmp_path, a=text(wrapped("Pod", pod())))
    assert inject(capsys, "-f", a, "-f", tmp_path)[1] == inject(capsys, "-f", a)[1]


def test_a_namespace_in_one_file_decides_about_pods_in_another(tmp_path: Path, capsys: Run) -> None:
    bound = NAMESPACE % ("max-memory", "1Gi")
    a, b = written(tmp_path, a=text(wrapped("Pod", pod(), "a")), b=bound)
    code, out, err = inject(capsys, "-f", a, "-f", b)
    assert (code, out) == (1, "")
    assert f"{a}: document 1 " in err


def test_a_file_that_cannot_be_read_is_named_beside_its_line(tmp_path: Path, capsys: Run) -> None:
    a, b = written(tmp_path, a=text(wrapped("Pod", pod())), b="a: b\nc: [\n")
    code, out, err = inject(capsys, "-f", a, "-f", b)
    assert (code, out) == (1, "")
    assert f"{b}: line 2" in err


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    inner = tmp_path / "inner"
    inner.mkdir()
    written(tmp_path, b=text(wrapped("Job", pod())), a=text(wrapped("Pod", pod())))
    (tmp_path / "c.json").write_text(text(wrapped("CronJob", pod()), as_json=True))
    (tmp_path / "readme.md").write_text("[")
    (inner / "d.yml").write_text(text(wrapped("DaemonSet", pod())))
    return tmp_path


def test_of_a_folder_all_manifests_are_written_in_order(folder: Path, capsys: Run) -> None:
    code, out, _ = inject(capsys, "-f", folder)
    assert (code, names(out)) == (0, ["pod-1", "job-1", "cronjob-1"])


@pytest.mark.parametrize("option", ["-R", "--recursive"])
def test_those_of_its_folders_are_written_where_that_is_wanted(folder: Path, capsys: Run, option: str) -> None:
    code, out, _ = inject(capsys, option, "-f", folder)
    assert (code, names(out)) == (0, ["pod-1", "job-1", "cronjob-1", "daemonset-1"])


def test_a_folder_without_manifests_is_refused(tmp_path: Path, capsys: Run) -> None:
    (tmp_path / "inner").mkdir()
    code, out, err = inject(capsys, "-f", tmp_path)
    assert (code, out) == (2, "")
    assert "-R" in err


def test_a_patch_names_the_file_of_its_document(tmp_path: Path, capsys: Run) -> None:
    a, b = written(tmp_path, a=text(wrapped("Pod", pod())), b=text(wrapped("Job", pod())))
    code, out, _ = inject(capsys, "-f", a, "-f", b, "-o", "patch")
    assert code == 0
    assert [(each["file"], each["document"]) for each in json.loads(out)] == [(str(a), 1), (str(b), 1)]
