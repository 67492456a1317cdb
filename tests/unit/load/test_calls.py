"""Writes by the API server's own count."""

from tests.load.scale.calls import counted

TEXT = """# HELP apiserver_request_total Counter
apiserver_request_total{code="201",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 3
apiserver_request_total{code="409",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1
apiserver_request_total{code="200",resource="pods",scope="resource",subresource="status",verb="PATCH"} 1.2e+01
apiserver_request_total{code="200",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 50
apiserver_request_total{code="200",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 50
apiserver_request_duration_seconds_sum{resource="pods",verb="POST"} 9
"""


def test_writes_are_counted_by_resource_refused_ones_too_and_reads_and_leases_are_not() -> None:
    assert counted(TEXT) == {"pods": 4, "pods/status": 12}
