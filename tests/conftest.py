"""What holds for all tests: patience on a busy machine, and what runs in full only."""

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.extent import full, trials

pytest_plugins = ["tests.e2e.fixtures"]
"""The real node, which tests of several folders share; it starts when a test asks for it."""

settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=trials(50, 200)
)
settings.load_profile("busy")

structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
"""With rich, which mutmut brings along, a logged traceback takes seconds."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where pytest-xdist does not keep groups together: each of its workers would make what one makes for all."""
    if getattr(session.config.option, "loadgroup", False):
        lost = [
            item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if lost:
            raise pytest.UsageError(f"pytest-xdist does not keep groups together: {lost[0]} has no group in its name")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked ``full``; ``make release-check`` runs them."""
    if full():
        return
    left = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)
