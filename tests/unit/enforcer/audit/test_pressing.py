"""Which records are anchored at once."""

from pathlib import Path

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind
from enforcer.audit.retention import Retention


def test_kills_wake_the_publisher_and_warnings_do_not(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        for kind in Kind:
            log.pressing.wake.clear()
            log.pressing.noted.clear()
            log.append(kind, {})
            expected = kind in {Kind.OUTCOME, Kind.RECOVERED}
            assert (log.pressing.wake.is_set(), log.pressing.noted.is_set()) == (expected, expected), kind


def test_a_repaired_line_wakes_the_publisher_and_removed_segments_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with AuditLog(folder, segment_bytes=10) as log:
        for _ in range(5):
            log.append(Kind.WARNED, {})
    with AuditLog(folder, retention=Retention(segments=2)) as log:
        assert log.head.seq == 6, "one record that segments were removed"
        assert not log.pressing.noted.is_set()
    with segments(folder)[-1].open("ab") as file:
        file.write(b"torn")
    with AuditLog(folder) as log:
        assert (log.pressing.wake.is_set(), log.pressing.noted.is_set()) == (True, True)
