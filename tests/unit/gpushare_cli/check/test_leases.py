"""Whether kube-scheduler and kube-controller-manager renew their Leases, by the clock of the API server."""

import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.check.connection import ReadOnce
from gpushare_cli.check.result import CheckResult
from gpushare_cli.check.startable import leases
from gpushare_cli.words import moment
from tests.unit.gpushare_cli.check import api

NOW = datetime(2020, 1, 1, tzinfo=UTC)
"""Of the API server. The clock of this machine is years ahead."""


class Api(api.Api):
    def clock(self) -> datetime:
        return NOW


def lease(age: float, seconds: object = 15) -> dict[str, Any]:
    renewed = f"{NOW - timedelta(seconds=age):%Y-%m-%dT%H:%M:%S.%fZ}"
    return {"metadata": {"name": "any"}, "spec": {"renewTime": renewed, "leaseDurationSeconds": seconds}}


def asked(scheduler: Any, manager: Any) -> CheckResult:
    return leases(Api({"kube-scheduler": scheduler, "kube-controller-manager": manager}))  # type: ignore[arg-type] # it reads


def test_a_scheduler_or_a_controller_manager_that_stopped_is_named_before_a_pod_waits() -> None:
    fresh, old = lease(1), lease(200)
    for found, named in (
        (asked(old, fresh), ["kube-scheduler"]),
        (asked(fresh, old), ["kube-controller-manager"]),
        (asked(old, old), ["kube-scheduler", "kube-controller-manager"]),
    ):
        assert found.level == "warning", "an old Lease may be left of one that runs without leader election"
        assert [each for each in ("kube-scheduler", "kube-controller-manager") if each in found.detail] == named
        assert moment(NOW - timedelta(seconds=200)) in found.detail
        assert "kubectl get pods -n kube-system" in found.hint
    assert asked(fresh, fresh).fine


@pytest.mark.parametrize(
    ("age", "seconds", "fine"),
    [
        (59, 15, True), (61, 15, False), (61, 1, False), (59, 1, True), (200, 60, True), (241, 60, False),
        (61, "x", False), (61, 10**12, True), (-500, 15, True),
    ],
)  # fmt: skip
def test_a_lease_is_old_after_several_times_its_duration_and_a_minute(
    age: float, seconds: object, *, fine: bool
) -> None:
    assert asked(lease(age, seconds), 404).fine is fine


@pytest.mark.parametrize("lacking", [404, {"metadata": {}}, {"spec": {"renewTime": "yesterday"}}])
def test_where_there_is_no_lease_to_read_nothing_is_wrong(lacking: Any) -> None:
    assert (asked(lacking, lacking).level, asked(lacking, lacking).detail) == ("ok", "none to read")
    assert asked(lacking, lease(200)).level == "warning"


def test_who_may_not_read_leases_is_told_that_they_were_not_asked_for() -> None:
    with pytest.raises(ClusterError) as refused:
        asked(403, 403)
    assert refused.value.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(("date", "exact"), [(format_datetime(NOW, usegmt=True), True), ("yesterday", False)])
def test_the_time_is_the_api_server_s_where_its_answers_have_one(tmp_path: Path, date: str, *, exact: bool) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", date)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    named = [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}]
    contexts = [{"name": "x", "context": {"cluster": "x", "user": "x"}}]
    users = [{"name": "x", "user": {"token": "secret"}}]
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({"current-context": "x", "clusters": named, "contexts": contexts, "users": users}))
    found = ReadOnce(KubeClient.connect(str(file))).clock()
    thread.join()
    server.server_close()
    assert found == NOW if exact else abs(found - datetime.now(UTC)) < timedelta(minutes=1)
