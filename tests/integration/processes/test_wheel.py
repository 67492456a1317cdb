"""The wheel, installed from a package index in a fresh virtual environment, without its extras."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare_cli.main import VERBS
from tests.support import release
from tests.support.need import missing
from tests.unit.gpushare_cli.audit_logs import write

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]  # one installation for all of them
OTHERS: Final = ("certs", "enforcer", "gpushare", "sidecar", "webhook")
"""Import packages that other projects install, or may."""
POD: Final = """
apiVersion: v1
kind: Pod
metadata: {name: tts, annotations: {gpu-share.io/memory: 4Gi}}
spec: {containers: [{name: model, image: tts}]}
"""
OF_UI: Final = ("gpushare_cli.ui.server",)
"""Serve pages, for which the extra ``ui`` brings Flask; the verb loads them last."""
LOAD_ALL: Final = f"""
OF_UI = {OF_UI!r}
import importlib, pkgutil, sys
import gpushare_cli, certs, sidecar
for package in (gpushare_cli, certs, sidecar):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith(("gpushare_cli.parts", *OF_UI)) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    release.packages(folder, "wheel")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """Its folder of packages. Those of other projects are there too, and cannot be imported."""
    place = wheel.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    try:
        release.run(*release.PIP, f"--python={place}/bin/python", "install", "--no-compile", str(wheel))
    except release.ReleaseError as error:
        missing(f"the wheel's dependencies cannot be installed: {error}")
    folder = next(place.glob("lib/python3*/site-packages"))
    for name in OTHERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    return folder


def run(site: Path, program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(site.parents[2] / "bin" / program), *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, cwd=site.parents[2], env={"PATH": "/usr/bin"}
    )


def extras(wheel: Path) -> Iterator[str]:
    """The distributions that only extras ask for, as folders of their metadata begin."""
    with zipfile.ZipFile(wheel) as archive:
        about = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    for name in re.findall(r"^Requires-Dist: ([\w.-]+).*; extra ==", about, re.MULTILINE):
        yield name.replace("-", "_")


def test_the_wheel_installs_one_import_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {name.partition("/")[0].partition("-")[0] for name in archive.namelist()} == {
            "gpushare_cli",
            "gpu_share",
        }


def test_the_same_sources_give_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    release.packages(tmp_path, "wheel")
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_help_names_every_verb(site: Path) -> None:
    done = run(site, "gpu-share", "--help")
    assert done.returncode == 0, done.stderr
    assert set(VERBS) <= set(re.findall(r"^ +([a-z]+)\b", done.stdout, re.MULTILINE))


def test_inject_rewrites_a_pod(site: Path) -> None:
    done = run(site, "gpu-share", "inject", "-f", "-", text=POD)
    assert done.returncode == 0, done.stderr
    assert "resourceClaimTemplateName: gpu-share-" in done.stdout


def test_audit_verifies_a_log_and_finds_a_change(site: Path, tmp_path: Path) -> None:
    write(tmp_path)
    assert run(site, "gpu-share", "audit", "verify", "--state", str(tmp_path)).returncode == 0
    file = min((tmp_path / "audit").iterdir())
    file.write_text(file.read_text().replace("9216", "9217", 1))
    assert run(site, "gpu-share", "audit", "verify", "--state", str(tmp_path)).returncode == 1


def test_the_command_line_loads_nothing_of_the_extras(site: Path, wheel: Path) -> None:
    unwanted = set(extras(wheel))
    assert {"flask", "gunicorn", "grpcio", "nvidia_ml_py"} <= unwanted
    assert not [each.name for each in site.iterdir() if each.name.lower().partition("-")[0] in unwanted]
    done = run(site, "python", "-c", LOAD_ALL)
    assert done.returncode == 0, done.stderr
    assert {"gpushare_cli.check.node", "certs.main", "sidecar.main"} <= set(done.stdout.split())


@pytest.mark.parametrize(("process", "extra"), [("webhook", "webhook"), ("enforcer", "enforcer"), ("mps", "enforcer")])
def test_a_process_names_the_extra_that_it_lacks(site: Path, process: str, extra: str) -> None:
    done = run(site, "gpu-share", process, "--help")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"pip install 'gpu-share[{extra}]'" in done.stderr


def test_the_web_view_names_its_extra_and_its_files_are_there(site: Path) -> None:
    done = run(site, "gpu-share", "ui")
    assert (done.returncode, "pip install 'gpu-share[ui]'" in done.stderr) == (2, True), done.stderr
    here, there = (each / "gpushare_cli" / "ui" for each in (Path(__file__).parents[3], site))
    for folder in ("templates", "static"):
        assert {each.name for each in (here / folder).iterdir()} == {each.name for each in (there / folder).iterdir()}


def test_check_names_the_extra_that_reads_gpus(site: Path) -> None:
    done = run(site, "gpu-share", "check", "--node", "-o", "json")
    gpus = next(each for each in json.loads(done.stdout)["checks"] if each["description"] == "GPUs through NVML")
    assert "pip install 'gpu-share[enforcer]'" in gpus["detail"], done.stderr
