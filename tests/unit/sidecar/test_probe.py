"""The start-up probe as the kubelet runs it: a shell that reads the pod's status file."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from enforcer.status import pod_status as podstatus
from gpushare.contract import STATUS_PATH
from sidecar import pod_status as status
from webhook.mutation import sidecar_spec
from webhook.mutation.settings import Settings

CALM: dict[str, Any] = {"version": 1, "time": "2026-11-20T22:16:05Z", "ready": True, "waiting": "", "messages": []}
QUOTED = 'container "x": {"ready": true, "waiting": ""}'


def probe(file: Path, sleep: str = "") -> tuple[bool, str]:
    """Whether it passes, and what it says; ``sleep`` is what it does where it would wait."""
    programs = file.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "sleep").write_text(f"#!/bin/sh\n{sleep}\n")
    (programs / "sleep").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    started = sidecar_spec.container(Settings())["startupProbe"]["exec"]["command"]
    command = [str(file) if word == sidecar_spec.STATUS else word for word in started]
    assert command != started, "it reads the status file"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def written(folder: Path, content: object) -> Path:
    file = folder / status.FILE
    file.write_text(json.dumps(content) + "\n")
    return file


def test_it_reads_the_file_that_the_enforcer_writes_and_the_sidecar_reads() -> None:
    assert sidecar_spec.STATUS == f"{STATUS_PATH}/{status.FILE}" == f"{STATUS_PATH}/{podstatus.NAME}"


@pytest.mark.parametrize("separators", [None, (",", ":")], ids=["as the enforcer writes", "dense"])
def test_it_passes_without_a_word_once_the_share_is_ready(tmp_path: Path, separators: tuple[str, str] | None) -> None:
    file = tmp_path / status.FILE
    file.write_text(json.dumps(CALM, separators=separators))
    assert probe(file) == (True, "")


def test_it_waits_a_moment_for_a_share_that_is_about_to_be_ready(tmp_path: Path) -> None:
    ready = written(tmp_path, CALM).rename(tmp_path / "ready")
    written(tmp_path, {**CALM, "ready": False})
    assert probe(tmp_path / status.FILE, f"cp {ready} {tmp_path}/{status.FILE}") == (True, "")


def test_it_gives_up_before_the_kubelet_does(tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    assert not probe(tmp_path / status.FILE, f"echo $1 >> {waits}")[0]
    asked = [float(each) for each in waits.read_text().split()]
    assert 5 <= sum(asked) <= sidecar_spec.container(Settings())["startupProbe"]["timeoutSeconds"] / 2


def test_without_a_status_file_it_fails_and_says_so(tmp_path: Path) -> None:
    passed, said = probe(tmp_path / status.FILE)
    assert not passed
    assert said == "the share of the GPU is not ready: the enforcer has not written a status yet\n"


def test_while_the_share_is_not_ready_it_fails_and_says_why(tmp_path: Path) -> None:
    waiting = "the MPS daemon of GPU-1 does not accept clients at the moment"
    passed, said = probe(written(tmp_path, {**CALM, "ready": False, "waiting": waiting}))
    assert not passed
    assert said == f"the share of the GPU is not ready: {waiting}\n"


@pytest.mark.parametrize(
    "content",
    [
        {**CALM, "ready": False, "waiting": QUOTED},
        {**CALM, "ready": False, "messages": [{"time": "", "text": QUOTED}]},
        {**CALM, "ready": False, "containers": [{"container": 'ready": true'}]},
        {**CALM, "ready": "true"},
        {**CALM, "ready": 1},
        {key: value for key, value in CALM.items() if key != "ready"},
        {},
        "ready",
    ],
    ids=json.dumps,
)
def test_nothing_but_the_key_itself_makes_it_pass(tmp_path: Path, content: object) -> None:
    assert not probe(written(tmp_path, content))[0]


def test_a_torn_file_or_a_folder_in_its_place_is_not_ready(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_text(json.dumps(CALM).partition("true")[0])
    assert not probe(torn)[0]
    assert not probe(tmp_path)[0]
