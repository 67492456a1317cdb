"""The enforcer verifies its own log: an altered, shortened or removed record is found, and a running writer is not."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from enforcer.audit import verification
from enforcer.audit.log import AuditLog, segment_name, segments
from enforcer.audit.record import ChainHead, Kind
from enforcer.audit.reserved_space import NAME
from enforcer.audit.retention import Retention
from enforcer.audit.verification import LogVerifier
from enforcer.status.metrics import VerificationCollector
from tests.support.clock import FakeClock


@pytest.fixture(name="written")
def _written(tmp_path: Path) -> AuditLog:
    """A log of eight records in several segments."""
    written = AuditLog(tmp_path / "audit", segment_bytes=600, reserve_bytes=0)
    written.open()
    for number in range(8):
        written.append(Kind.WARNED, {"note": f"number {number}"})
    assert len(segments(tmp_path / "audit")) > 2
    return written


def verified(folder: Path, head: ChainHead) -> LogVerifier:
    log = AuditLog(folder / "audit")
    log._head = head
    found = LogVerifier(folder / "audit", log, FakeClock(lambda: 1700.0))
    found.run_once()
    return found


def page(verifier: LogVerifier) -> list[str]:
    registry = CollectorRegistry()
    registry.register(VerificationCollector(verifier))
    return [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]


def test_an_intact_log_is_verified_up_to_its_head(written: AuditLog, tmp_path: Path) -> None:
    found = verified(tmp_path, written.head)
    assert (found.finished, found.problem, found.unwritable) == (1700.0, None, None)
    assert page(found) == ["gpu_share_audit_verification_timestamp_seconds 1700.0", "gpu_share_audit_intact 1.0"]
    with segments(tmp_path / "audit")[-1].open("ab") as file:
        file.write(b'{"half of a rec')
    assert verified(tmp_path, written.head).problem is None, "what comes after the head is being written"


def change(file: Path) -> None:
    content, before = file.read_bytes().replace(b"number", b"nimber", 1), file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:  # the clock of a file system has steps of some milliseconds
        file.write_bytes(content)


def replace(file: Path) -> None:
    """As ``sed -i`` does."""
    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(b"number", b"nimber", 1))
    other.rename(file)


def add_garbage(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"garbage\n")


def cut(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("damage", [change, cut, Path.unlink])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_what_was_altered_cut_or_removed_is_found(
    written: AuditLog, tmp_path: Path, damage: Callable[[Path], None], which: int
) -> None:
    damage(segments(tmp_path / "audit")[which])
    with capture_logs() as logs:
        found = verified(tmp_path, written.head)
    assert (found.finished, [each["reason"] for each in logs]) == (1700.0, ["AuditBroken"])
    assert found.problem is not None
    assert "broken at line " in found.problem
    assert "gpu_share_audit_intact 0.0" in page(found)


def test_a_log_that_cannot_be_read_stays_unverified(tmp_path: Path) -> None:
    with capture_logs() as logs:
        found = verified(tmp_path, ChainHead(3, "sha256:x"))
    assert (found.finished, len(logs)) == (None, 1)
    assert str(tmp_path / "audit") in logs[0]["error"]
    assert "cannot be read" in str(found.problem)
    assert page(found) == ["gpu_share_audit_verification_timestamp_seconds 0.0"]


def test_a_log_whose_writer_has_not_read_it_stays_unverified(written: AuditLog, tmp_path: Path) -> None:
    assert written.head.seq == 8
    assert verified(tmp_path, ChainHead(0, "sha256:" + "0" * 64)).finished is None


def test_an_empty_log_is_intact(tmp_path: Path) -> None:
    empty = AuditLog(tmp_path / "audit", reserve_bytes=0)
    empty.open()
    assert verified(tmp_path, empty.head).problem is None


def test_a_segment_that_cannot_be_read_is_logged_at_once(written: AuditLog, tmp_path: Path) -> None:
    first = segments(tmp_path / "audit")[0]
    first.unlink()
    first.mkdir()
    with capture_logs() as logs:
        found = verified(tmp_path, written.head)
    assert (found.finished, len(logs)) == (None, 1)
    assert str(first) in logs[0]["error"]
    assert "cannot be read" in str(found.problem)


@pytest.mark.parametrize(("missed", "warnings"), [(2, 0), (3, 0), (4, 1)])
def test_a_log_whose_segments_are_removed_meanwhile_is_read_three_times(
    written: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: int, warnings: int
) -> None:
    reads: list[Path] = []

    def found_in(folder: Path) -> list[Path]:
        reads.append(folder)
        if len(reads) <= missed:
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return segments(folder)

    monkeypatch.setattr(verification, "segments", found_in)
    with capture_logs() as logs:
        found = verified(tmp_path, written.head)
    assert (found.finished, len(logs)) == (None if warnings else 1700.0, warnings)


def test_of_a_log_without_its_first_segments_no_more_is_verified_than_up_to_its_head(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with AuditLog(folder, segment_bytes=10, reserve_bytes=0, retention=Retention(segments=2)) as log:
        for _ in range(6):
            log.append(Kind.WARNED, {})
    assert segments(folder)[0].name > segment_name(2)
    with segments(folder)[-1].open("ab") as file:
        file.write(b'{"half of a rec')
    assert (verified(tmp_path, log.head).finished, verified(tmp_path, log.head).problem) == (1700.0, None)


def test_a_log_that_begins_after_its_head_is_broken_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "audit" / segment_name(5)
    file.parent.mkdir()
    file.write_bytes(b'{"half of a rec')
    assert "the log ends at record 0, but the anchor is record 2" in str(
        verified(tmp_path, ChainHead(2, "sha256:x")).problem
    )


def test_a_segment_that_somebody_renamed_is_verified_whole(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit", reserve_bytes=0) as log:
        log.append(Kind.WARNED, {})
        log.append(Kind.WARNED, {})
    (only,) = segments(tmp_path / "audit")
    only.rename(only.with_name("kills-1.jsonl"))
    found = verified(tmp_path, log.head)
    assert (found.finished, found.problem) == (1700.0, None)


@pytest.mark.parametrize("damage", [change, replace, add_garbage, cut, Path.unlink])
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("then_written", [False, True])
def test_what_somebody_changes_beside_the_running_writer_is_found_at_the_next_look(
    written: AuditLog, tmp_path: Path, damage: Callable[[Path], None], which: int, *, then_written: bool
) -> None:
    found = LogVerifier(tmp_path / "audit", written, FakeClock(lambda: 1700.0))
    found.run_once()
    assert found.problem is None
    damage(segments(tmp_path / "audit")[which])
    if then_written:
        written.append(Kind.WARNED, {"note": "after it"})
        assert "after it" in segments(tmp_path / "audit")[-1].read_text(), "it is not lost with the file"
    with capture_logs():
        found.run_once()
    assert found.problem is not None


def test_an_unchanged_log_and_one_that_its_writer_adds_to_are_verified_once_a_day(tmp_path: Path) -> None:
    now = 0.0
    with AuditLog(tmp_path / "audit", reserve_bytes=0) as log:
        found = LogVerifier(tmp_path / "audit", log, FakeClock(lambda: now))
        for now in (10.0, 20.0, 86400.0, 86410.0):
            log.append(Kind.WARNED, {})
            found.run_once()
            assert found.finished == (10.0 if now < 86410.0 else 86410.0)


@pytest.mark.parametrize("which", ["audit", "audit/kills-000000000001.jsonl"])
def test_what_may_not_be_written_is_named_before_a_record_has_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    with AuditLog(tmp_path / "audit", reserve_bytes=0) as log:
        log.append(Kind.WARNED, {})
        found = LogVerifier(tmp_path / "audit", log, FakeClock(lambda: 1700.0))
        found.run_once()
        assert found.unwritable is None
        with monkeypatch.context() as patched:  # root may write what is not immutable or on a read-only disk
            patched.setattr(os, "access", lambda file, mode: mode == os.F_OK or file != tmp_path / which)
            found.run_once()
        assert str(tmp_path / which) in str(found.unwritable)
        found.run_once()
        assert (found.unwritable, found.problem) == (None, None)


def test_a_log_that_is_taken_away_whole_is_missed_at_the_next_look(written: AuditLog, tmp_path: Path) -> None:
    found = LogVerifier(tmp_path / "audit", written, FakeClock(lambda: 1700.0))
    found.run_once()
    (tmp_path / "audit").rename(tmp_path / "elsewhere")
    with capture_logs():
        found.run_once()
    assert "cannot be read" in str(found.problem)


def test_each_look_reserves_space_again_where_there_is_none(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        (tmp_path / "audit" / NAME).unlink()
        log._reserve.probe()
        LogVerifier(tmp_path / "audit", log).run_once()
        assert (tmp_path / "audit" / NAME).stat().st_blocks > 0


def test_before_the_first_look_nothing_is_wrong(written: AuditLog, tmp_path: Path) -> None:
    found = LogVerifier(tmp_path / "audit", written)
    assert (found.finished, found.problem, found.unwritable) == (None, None, None)


def test_bytes_after_the_last_record_are_found_also_where_other_files_follow(written: AuditLog, tmp_path: Path) -> None:
    found = LogVerifier(tmp_path / "audit", written, FakeClock(lambda: 1700.0))
    found.run_once()
    add_garbage(segments(tmp_path / "audit")[-1])
    (tmp_path / "audit" / segment_name(999)).touch()
    with capture_logs():
        found.run_once()
    assert str(found.problem).startswith("the audit log ")


def touch(file: Path) -> None:
    """Change its owner's bits back and forth: its ctime differs, and nothing else."""
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.chmod(0o600)


def test_a_segment_that_was_touched_is_verified_again_and_intact(written: AuditLog, tmp_path: Path) -> None:
    now = [1700.0]
    found = LogVerifier(tmp_path / "audit", written, FakeClock(lambda: now[-1]))
    found.run_once()
    touch(segments(tmp_path / "audit")[-1])
    now.append(1710.0)
    found.run_once()
    assert (found.finished, found.problem) == (1710.0, None)
