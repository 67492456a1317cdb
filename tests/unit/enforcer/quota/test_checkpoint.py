import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.quota.checkpoint import NAME, Checkpoint, decode, encode
from enforcer.quota.types import OnExceed
from gpushare import files
from gpushare.errors import ConfigError
from tests.unit.enforcer.made import neighbour, quota

BOTH = (
    quota(reserved_mib=4096),
    neighbour(on_exceed=OnExceed.WARN, container_id=None, compute_percent=25, tolerance_mib=None),
)


def test_quotas_survive_the_disk() -> None:
    assert decode(encode(BOTH)) == BOTH
    assert decode(encode(())) == ()


def test_the_file_is_written_in_lower_camel_case() -> None:
    row = json.loads(encode(BOTH))["quotas"][0]
    assert set(row) == {
        "claimUid", "namespace", "pod", "podUid", "container", "containerId", "gpu", "memoryMib", "computePercent",
        "onExceed", "graceSeconds", "toleranceMib", "reservedMib", "clients", "resized", "limitMib",
    }  # fmt: skip


def test_what_may_be_left_out_has_its_default_and_what_is_new_is_passed_over() -> None:
    row = {"claimUid": "c", "namespace": "n", "pod": "p", "podUid": "u", "container": "x", "gpu": "g", "memoryMib": 5}
    (found,) = decode(json.dumps({"version": 1, "quotas": [row | {"future": True, "lowPriority": True}]}).encode())
    assert (found.container_id, found.on_exceed, found.grace_seconds, found.tolerance_mib) == (None, "kill", 5.0, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memoryMib", -1), ("memoryMib", "4096"), ("memoryMib", 1.5), ("memoryMib", True), ("memoryMib", None),
        ("graceSeconds", -1), ("graceSeconds", float("inf")), ("graceSeconds", True), ("onExceed", "explode"),
        ("gpu", ""), ("podUid", None), ("containerId", 5), ("toleranceMib", "1Gi"),
        ("reservedMib", -1), ("reservedMib", True),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_with_its_field(key: str, value: Any) -> None:
    content = json.loads(encode(BOTH))
    content["quotas"][1][key] = value
    with pytest.raises(ConfigError, match=rf"quotas\[1\]\.{key}: {re.escape(repr(value))} is "):
        decode(json.dumps(content).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"version":2,"quotas":[]}', b'{"version":1}', b"\xff",
                                  b'{"version":1,"quotas":[5]}', b"[" * 100_000])  # fmt: skip
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=NAME):
        decode(data)


@given(st.binary(max_size=200))
def test_rubbish_never_becomes_an_accident(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode(data)


def test_a_change_is_seen_and_the_last_good_one_stays(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.read() == ()
    Checkpoint(tmp_path).write(BOTH)
    assert checkpoint.read() == BOTH
    checkpoint.path.write_text("{")
    assert checkpoint.read() == BOTH
    assert checkpoint.problem is not None
    checkpoint.path.unlink()
    assert checkpoint.read() == BOTH
    checkpoint.write(BOTH[:1])
    assert checkpoint.read() == BOTH[:1]
    assert checkpoint.problem is None


def test_what_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(BOTH)
    before = checkpoint.path.stat().st_ino
    checkpoint.write(BOTH)
    assert checkpoint.path.stat().st_ino == before
    checkpoint.write(())
    assert checkpoint.read() == ()


def test_nothing_but_whole_files_is_ever_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(BOTH)

    def broken(_: int) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk gone"):
        checkpoint.write(())
    assert Checkpoint(tmp_path).read() == BOTH


def test_a_disk_that_refuses_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(BOTH)

    def refused(*_: object) -> bytes:
        raise OSError("Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(files, "read_regular_file", refused)
        assert checkpoint.read() == ()
        assert "Too many" in (checkpoint.problem or "")
    assert (checkpoint.read(), checkpoint.problem) == (BOTH, None)


def test_a_thread_that_comes_late_with_an_older_file_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(BOTH)
    usual, read, go = files.read_regular_file, threading.Event(), threading.Event()

    def slow(path: Path, most: int) -> bytes:
        data = usual(path, most)
        if threading.current_thread() is late:
            read.set()
            go.wait(30)
        return data

    late = threading.Thread(target=checkpoint.read)
    monkeypatch.setattr(files, "read_regular_file", slow)
    late.start()
    assert read.wait(30)
    Checkpoint(tmp_path).write(BOTH[:1])
    assert checkpoint.read() == BOTH[:1]
    go.set()
    late.join(30)
    assert checkpoint.read() == BOTH[:1]


def test_a_decision_that_took_back_a_loan_is_compared_with_the_quota_without_it(tmp_path: Path) -> None:
    lent, known = quota(limit_mib=16_384, tolerance_mib=None), Checkpoint(tmp_path)
    known.write([lent])
    assert known.in_force(lent) == lent
    assert known.in_force(lent.without_loan()) == lent.without_loan()
