"""What is kept of lists: large objects of tenants take no memory, and the pages that read them stay as they are."""

from typing import Any

import pytest

from gpushare_cli.ui.cache import slim
from tests.unit.gpushare_cli.ui.fleets import claim, fleet, pod

LARGE = "x" * 100_000


@pytest.mark.parametrize("kind", ["pods", "resourceclaims", "events"])
def test_little_is_kept_of_large_objects(kind: str) -> None:
    event = {"metadata": {"namespace": "asr", "name": "e"}, "message": LARGE, "involvedObject": {"uid": "u"}}
    whole = {"pods": pod("asr", "a", "one"), "resourceclaims": claim("asr", "a", "one", 0, 1024), "events": event}[kind]
    kept = slim(kind, whole | {"more": LARGE, "metadata": whole["metadata"] | {"more": LARGE}})
    assert len(str(kept)) < 5000
    if kind == "pods":
        container = {"name": "model", "env": [{"name": "A", "value": LARGE}], "command": [LARGE]}
        annotations = {"gpu-share.io/memory": "4Gi", "other": LARGE}
        made = {"metadata": whole["metadata"] | {"annotations": annotations}, "spec": {"containers": [container]}}
        assert len(str(slim(kind, made))) < 5000
        assert slim(kind, made)["metadata"]["annotations"] == {"gpu-share.io/memory": "4Gi"}


def test_nodes_and_slices_lose_only_what_nothing_reads() -> None:
    (item,) = fleet().lists["resourceslices"][:1]
    assert slim("resourceslices", item) == item
    node = {"metadata": {"name": "a", "managedFields": [1]}, "status": {"images": [1], "conditions": [2]}}
    assert slim("nodes", node) == {"metadata": {"name": "a"}, "status": {"conditions": [2]}}


@pytest.mark.parametrize("kind", ["pods", "resourceclaims", "events", "nodes"])
@pytest.mark.parametrize("garbage", [{}, {"spec": 1, "status": "x"}, {"spec": {"containers": [1, {}]}}])
def test_objects_of_another_shape_are_kept_as_far_as_they_go(kind: str, garbage: Any) -> None:
    assert slim(kind, {"metadata": {"name": "a"}, **garbage})["metadata"]["name"] == "a"
