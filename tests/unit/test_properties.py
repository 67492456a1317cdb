"""Property tests on a machine that is busy."""

from hypothesis import HealthCheck, settings


def test_an_example_may_take_as_long_as_a_busy_machine_needs_for_it() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
