import pytest

from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import pod_row
from enforcer.status.messages import DECIDED, NOTE_BYTES, truncate_note, used_amounts
from gpushare.reasons import Reason
from tests.unit.enforcer.made import quota


@pytest.mark.parametrize("note", ["a" * 5000, "\u20ac" * 900, "x\ny\x1b[31m\x00", "\ud800"])
def test_a_note_fits_an_event(note: str) -> None:
    assert len(truncate_note(note).encode()) <= NOTE_BYTES
    assert truncate_note(note).isprintable()


@pytest.mark.parametrize(
    ("decision", "reason"),
    [(Decision.RATE_LIMITED, Reason.KILL_RATE_LIMITED), (Decision.BREAKER_OPEN, Reason.BREAKER_OPEN)],
)
def test_the_kill_rate_limit_and_the_circuit_breaker_have_each_a_reason(decision: Decision, reason: Reason) -> None:
    message = DECIDED[decision](KillDecision(decision=decision, quota=quota(), used_mib=5000, kill_in=4.0))
    assert message.reason is reason


def test_a_message_about_a_whole_pod_says_how_much_is_beyond_its_sum() -> None:
    row = pod_row(quota(), 512)
    note = DECIDED[Decision.WARNED](KillDecision(decision=Decision.WARNED, quota=row, used_mib=300, kill_in=4.0)).note
    assert f"300 MiB on {row.gpu} beyond its 512 MiB" in note
    assert used_amounts(note) is None


@pytest.mark.parametrize("decision", DECIDED)
def test_what_a_container_held_can_be_read_from_every_message(decision: Decision) -> None:
    decided = KillDecision(decision=decision, quota=quota(), used_mib=5000, kill_in=4.0)
    assert used_amounts(DECIDED[decision](decided).note) == (quota().container, 5000, quota().memory_mib)
    assert used_amounts("some other message") is None
