"""What ``gpu-share check`` asks the machine it runs on."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from enforcer.nvml.driver_root import PROGRAM, DriverRoot
from gpushare_cli import node_status
from gpushare_cli.check import node as checks_node
from gpushare_cli.check.arguments import Folders
from gpushare_cli.check.result import failed, warning
from gpushare_cli.main import main


def test_the_kubelets_way_to_the_driver_is_tried(short: Path) -> None:
    registry, plugin = (short / name for name in checks_node.SOCKETS)
    for file in (registry, plugin):
        file.parent.mkdir(parents=True)
    assert "No such file" in checks_node.sockets(short, failed).detail
    with closing(listening(registry)):
        plugin.touch()
        found = checks_node.sockets(short, failed)
        assert (found.level, found.detail) == ("wrong", f"{plugin}: Connection refused")
        plugin.unlink()
        with closing(listening(plugin)):
            assert checks_node.sockets(short, failed).level == "ok"
    assert "Connection refused" in checks_node.sockets(short, warning).detail, "a socket left behind is no socket"


@pytest.fixture(name="short")
def _short() -> Iterator[Path]:
    """Paths of sockets have to be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def listening(file: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(file))
    made.listen()
    return made


def test_prepared_claims_are_counted_in_the_cdi_folder(tmp_path: Path) -> None:
    assert checks_node.cdi(tmp_path / "none", failed).level == "wrong"
    for name in ("gpu-share.io-1.json", "gpu-share.io-2.json", "nvidia.yaml"):
        (tmp_path / name).touch()
    assert checks_node.cdi(tmp_path, failed).detail == f"{tmp_path}, 2 claims prepared"


@pytest.mark.parametrize(
    ("age", "problems", "level", "says"),
    [(0, [], "ok", "0 GPUs"), (60, [], "wrong", "does not run"), (0, ["the disk is full"], "wrong", "disk is full")],
)
def test_the_enforcer_has_to_run_without_problems(
    age: int, problems: list[str], level: str, says: str, tmp_path: Path
) -> None:
    assert checks_node.enforcer(tmp_path, failed).level == "wrong"
    written = (node_status.now() - timedelta(seconds=age)).isoformat()
    (tmp_path / "status.json").write_text(json.dumps({"time": written, "problems": problems}))
    found = checks_node.enforcer(tmp_path, failed)
    assert (found.level, says in found.detail) == (level, True)


def test_the_enforcer_is_asked_for_on_nodes_only(tmp_path: Path) -> None:
    setup = Folders(state=tmp_path, kubelet=tmp_path, cdi=tmp_path)
    laptop, node = (len(checks_node.checkers(setup, required=required)) for required in (False, True))
    assert (laptop, node) == (4, 7)
    (tmp_path / "status.json").touch()
    assert len(checks_node.checkers(setup, required=False)) == node
    assert len(checks_node.checkers(setup, required=True, pre=True)) == 3, "nothing is installed yet"
    options = ["--state", str(tmp_path), "--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path)]
    assert main(["check", "--node", *options]) == 1


def test_this_machine_is_evaluated_by_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    assert checks_node.pid_namespace(tmp_path, warning).level == "warning"
    (tmp_path / "self/ns/pid").touch()
    assert checks_node.pid_namespace(tmp_path, failed).level == "wrong"


def test_the_mps_program_is_looked_for_where_the_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--driver-root (chart value driverRoot)" in checks_node.mps(DriverRoot(tmp_path), failed).detail
    program = tmp_path / "usr/bin" / PROGRAM
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert checks_node.mps(DriverRoot(tmp_path), failed).detail == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks_node.mps(DriverRoot(), failed).detail == f"{PROGRAM} is not on the PATH"


def test_a_driver_that_hangs_is_reported_and_does_not_keep_us(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_node, "NVML_SECONDS", 0.5)
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    os.mkfifo(tmp_path / "usr" / "lib" / "libnvidia-ml.so.1")  # whoever loads it waits for ever
    code = main(["check", "--node", "--driver-root", str(tmp_path), "--state", str(tmp_path), "--color", "never"])
    out, _ = capsys.readouterr()
    assert code == 1
    assert "GPUs through NVML: NVML does not answer request 'gpus' within 0.5 s: the driver hangs" in out


def test_what_the_enforcer_uses_is_taken_from_its_status_unless_given(tmp_path: Path) -> None:
    setup = {
        "driverRoot": "/driver-root",
        "kubeletRoot": "/k0s",
        "cdiRoot": "/etc/cdi",
        "anyPidNamespace": True,
    }
    assert checks_node.folders_of({"state": tmp_path}) == Folders(state=tmp_path), "without a status: defaults"
    (tmp_path / "status.json").write_text(json.dumps({"setup": setup}))
    found = checks_node.folders_of({"state": tmp_path, "cdi": Path("/mine")})
    assert found == Folders(
        state=tmp_path,
        kubelet=Path("/k0s"),
        cdi=Path("/mine"),
        driver=Path("/driver-root"),
        any_pid_namespace=True,
    )
    for junk in ('{"setup": 5}', '{"setup": {"driverRoot": 5}}', "junk"):
        (tmp_path / "status.json").write_text(junk)
        assert checks_node.folders_of({"state": tmp_path}).driver == Path("/")


def config(root: Path, text: str, where: str = checks_node.CONFIGS[0]) -> Path:
    file = root / where
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("where", checks_node.CONFIGS)
@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        (f"{checks_node.SETTING} = false", "ok", ""),
        (
            f"{checks_node.SETTING} = true",
            "wrong",
            "is True: a container that sets NVIDIA_VISIBLE_DEVICES can get every GPU",
        ),
        (f'{checks_node.SETTING} = "false"', "wrong", "is 'false'"),
        ("", "wrong", "is not set"),
        ("= = =", "wrong", "cannot be read"),
    ],
)
def test_the_toolkit_must_not_give_gpus_to_whoever_asks(
    where: str, text: str, level: str, says: str, tmp_path: Path
) -> None:
    file = config(tmp_path, text, where)
    found = checks_node.envvar(tmp_path, failed)
    assert (found.level, says in found.detail, str(file) in found.detail) == (level, True, True)


def test_a_toolkit_without_a_file_has_the_default_and_without_a_toolkit_nothing_is_wrong(tmp_path: Path) -> None:
    assert checks_node.envvar(tmp_path, failed).level == "ok"
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-container-runtime").touch()
    assert checks_node.envvar(tmp_path, failed).level == "wrong"


def test_the_toolkit_is_read_below_the_driver_root_of_the_enforcer(tmp_path: Path, capsys: Any) -> None:
    config(tmp_path / "host", f"{checks_node.SETTING} = true")
    (tmp_path / "status.json").write_text(json.dumps({"setup": {"driverRoot": str(tmp_path / "host")}}))
    assert main(["check", "--node", "--pre", "--state", str(tmp_path), "-o", "json"]) == 1
    found = {each["description"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert (found["container toolkit"]["level"], found["container toolkit"]["hint"]) == (
        "wrong",
        checks_node.SETTING_HINT,
    )
