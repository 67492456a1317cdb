"""The Deployment that keeps the certificates is Ready while it does, and its account creates its own Secrets alone."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import helm
from tests.unit.deploy.test_chart import of


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


def container() -> Any:
    (found,) = (each for each in of((), "Deployment") if each["metadata"]["name"] == "gpu-share-certs")
    return found["spec"]["template"]["spec"]["containers"][0]


def test_the_probe_finds_a_file_of_the_last_minute_and_no_older_or_missing_one(tmp_path: Path) -> None:
    assert shutil.which("find"), "the image has it as well: Debian's findutils are essential"
    (option,) = (each for each in container()["args"] if each.startswith("--ready-file="))
    file = option.partition("=")[2]
    assert any(file.startswith(f"{each['mountPath']}/") for each in container()["volumeMounts"]), (
        "the rest is read-only"
    )
    command = container()["readinessProbe"]["exec"]["command"]
    here = tmp_path / "ready"

    def ready() -> bool:
        return subprocess.run([each.replace(file, str(here)) for each in command], check=False).returncode == 0

    assert not ready()
    here.touch()
    assert ready()
    assert container()["startupProbe"]["exec"]["command"] == ["test", "-e", file]
    past = here.stat().st_mtime - 70
    os.utime(here, (past, past))
    assert not ready()


def test_with_cert_manager_there_is_neither_the_account_nor_its_policy() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in helm.objects("--set=certs.certManager.enabled=true")}
    assert not {name for _, name in names} & {"gpu-share-certs"}
