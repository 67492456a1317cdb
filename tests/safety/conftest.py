import pytest


@pytest.fixture(autouse=True)
def _disk_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look waits for the disk, however busy the machine is. Enforcers that are processes of their own keep theirs."""
    monkeypatch.setattr("enforcer.runtime.background.WAIT_SECONDS", 60.0)
