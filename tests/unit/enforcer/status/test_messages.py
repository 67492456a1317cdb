import pytest

from enforcer.status.messages import NOTE_BYTES, cut


@pytest.mark.parametrize("note", ["a" * 5000, "\u20ac" * 900, "x\ny\x1b[31m\x00", "\ud800"])
def test_a_note_fits_an_event(note: str) -> None:
    assert len(cut(note).encode()) <= NOTE_BYTES
    assert cut(note).isprintable()
