"""promtool finds nothing to say about the metrics of any process."""

from collections.abc import Callable

import pytest

from gpushare.metrics_server import pages
from tests.support.promtool import promtool
from tests.unit.enforcer.status.test_metrics import enforcer_page, sidecar_page
from webhook.metrics import Metrics

pytestmark = pytest.mark.controlplane  # promtool, which make integration brings


def webhook_page() -> str:
    return pages(Metrics().registry, lambda: None)("/metrics").body.decode()


@pytest.mark.parametrize("page", [webhook_page, enforcer_page, sidecar_page])
def test_promlint_has_no_problem(page: Callable[[], str]) -> None:
    assert promtool("check", "metrics", stdin=page().encode()) == ""


def test_promlint_is_asked_indeed() -> None:
    assert "exit code" in promtool("check", "metrics", stdin=b"# HELP a_total x\n# TYPE a_total gauge\na_total 1\n")
