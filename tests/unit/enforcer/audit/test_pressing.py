"""Which records are anchored at once."""

from pathlib import Path

from enforcer.audit.log import AuditLog
from enforcer.audit.record import Kind


def test_kills_wake_the_publisher_and_warnings_do_not(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        for kind in Kind:
            log.pressing.wake.clear()
            log.pressing.noted.clear()
            log.append(kind, {})
            expected = kind in {Kind.OUTCOME, Kind.RECOVERED}
            assert (log.pressing.wake.is_set(), log.pressing.noted.is_set()) == (expected, expected), kind
