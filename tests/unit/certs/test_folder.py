"""The folder: pairs switch whole, keys are their owner's, two runners wait for each other, readers never see half."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from certs import store as store_module
from certs.main import main, watch
from certs.store import ConflictError, DirectoryStore
from tests.unit.certs.world import handshake

COMMAND = ["--dns", "localhost", "--ip", "127.0.0.1"]


def pair(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()


def test_the_command_makes_a_folder_that_serves_and_a_second_run_leaves_it(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    assert main(["--dir", str(folder), *COMMAND]) == 0
    assert handshake((folder / "ca.crt").read_bytes(), pair(folder), "localhost")
    assert handshake((folder / "ca.crt").read_bytes(), pair(folder), "127.0.0.1")
    before = pair(folder), (folder / "..data").readlink()
    assert main(["--dir", str(folder), *COMMAND]) == 0
    assert (pair(folder), (folder / "..data").readlink()) == before


def test_keys_are_readable_by_their_owner_alone_and_the_authoritys_lies_apart(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        main(["--dir", str(tmp_path / "tls"), *COMMAND])
    finally:
        os.umask(old)
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "tls").rglob("*.key")}
    assert modes == {"tls.key": 0o600, "ca.key": 0o600}
    assert stat.S_IMODE((tmp_path / "tls" / "ca").stat().st_mode) == 0o700
    assert not (tmp_path / "tls" / "ca.key").exists()


def test_a_generation_switches_whole_and_the_former_is_removed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "v")
    store.write({"a": b"1", "b": b"1"}, "")
    store.write({"a": b"2", "c": b"2"}, store.read()[1])
    assert store.read()[0] == {"a": b"2", "c": b"2"}
    assert sorted(f.name for f in (tmp_path / "v").iterdir() if not f.name.startswith("..")) == ["a", "c"]
    assert len([f for f in (tmp_path / "v").iterdir() if f.name.startswith("..")]) == 2


def test_a_generation_removed_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, writer = DirectoryStore(tmp_path / "v"), DirectoryStore(tmp_path / "v")
    directory.write({"a": b"1", "b": b"1"}, "")
    read, switched = store_module._bounded, list[int]()

    def slow(file: Path) -> bytes | None:
        found = read(file)
        if not switched:
            switched.append(1)
            writer.write({"a": b"2", "b": b"2"}, directory._generation_now())
        return found

    monkeypatch.setattr(store_module, "_bounded", slow)
    assert directory.read()[0] == {"a": b"2", "b": b"2"}


def test_a_write_upon_an_older_version_is_a_conflict(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "v")
    store.write({"a": b"1"}, "")
    version = store.read()[1]
    store.write({"a": b"2"}, version)
    with pytest.raises(ConflictError):
        store.write({"a": b"3"}, version)
    assert store.read()[0] == {"a": b"2"}


def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "v")
    store.write({"a": b"1"}, "")
    generation = tmp_path / "v" / store.read()[1]
    os.mkfifo(generation / "pipe")
    (generation / "folder").mkdir()
    (generation / "link").symlink_to("/etc/passwd")
    (generation / "huge").write_bytes(b"x" * 70_000)
    assert store.read()[0] == {"a": b"1"}


def test_many_runners_at_once_end_with_one_pair(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpushare_cli", "certs", "--dir", str(tmp_path / "tls"), *COMMAND]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    logs = [process.communicate(timeout=60)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sum("CertificateRenewed" in log for log in logs) == 1
    assert handshake((tmp_path / "tls" / "ca.crt").read_bytes(), pair(tmp_path / "tls"), "localhost")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --dir DIR and --secret"),
        (["--dir", "a", "--secret", "a/b"], "one of --dir DIR and --secret"),
        (["--dir", "a"], "--dns and --ip are empty"),
        (["--dir", "a", "--dns", "*"], "'*' is not a DNS name"),
        (["--dir", "a", "--dns", "a,b c"], "'b c' is not a DNS name"),
        (["--dir", "a", "--dns", "ä"], "is not a DNS name"),
        (["--dir", "a", "--ip", "1.2.3"], "'1.2.3' is not an IP address"),
        (["--secret", "b", "--dns", "a"], "NAMESPACE/NAME"),
        (["--secret", "a/b/c", "--dns", "a"], "NAMESPACE/NAME"),
        (["--dir", "a", "--dns", "a", "--leaf-days", "31"], "--leaf-days 31"),
        (["--dir", "a", "--dns", "a", "--leaf-days", "-1"], "--leaf-days -1"),
        (["--dir", "a", "--dns", "a", "--ca-days", "30"], "--ca-days 30"),
    ],
)
def test_wrong_use_is_reported_in_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "x", "1e9"])
def test_intervals_that_are_none_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--dir", "a", "--dns", "a", "--interval", seconds])
    assert ended.value.code == 2
    assert "--interval" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--dir", str(tmp_path / "file" / "x"), *COMMAND]) == 2
    assert "give a folder that this user can write" in capsys.readouterr().err


def test_watching_looks_again_until_asked_to_stop() -> None:
    stopping, runs = threading.Event(), list[int]()

    def run() -> int:
        runs.append(1)
        if len(runs) == 3:
            stopping.set()
        return 0 if len(runs) == 3 else 1

    assert watch(run, stopping, 0.01) == 0
    assert len(runs) == 3


def test_the_ready_file_is_touched_after_a_run_that_left_all_in_order_and_after_no_other(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = ["--dir", str(tmp_path / "tls"), f"--ready-file={ready}", *COMMAND]
    (tmp_path / "tls").write_text("no folder")
    assert main(command) != 0
    assert not ready.exists()
    (tmp_path / "tls").unlink()
    assert main(command) == 0
    os.utime(ready, (0, 0))
    assert main(command) == 0
    assert ready.stat().st_mtime > 0, "each run touches it"
