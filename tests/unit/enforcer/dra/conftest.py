import pytest

from enforcer.dra import driver


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not well at once is not waited for; who tests the waiting says for how long."""
    monkeypatch.setattr(driver, "API_PATIENCE", 0.0)
    monkeypatch.setattr(driver, "CALL_PATIENCE", 0.0)
    monkeypatch.setattr(driver, "PAUSE", 0.02)
