"""What ``gpu-share explain`` says of pods that other schedulers and webhooks had to do with."""

import pytest

from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod_record import PodRecord
from tests.unit.gpushare_cli.explain.test_pod import load, told


@pytest.mark.parametrize(
    ("scheduler", "schedulers", "named"),
    [
        ("volcano", ["default-scheduler"], True),
        ("packing", ["default-scheduler", "packing"], False),
        ("default-scheduler", ["default-scheduler"], False),
        (None, ["default-scheduler"], False),
    ],
)
def test_a_scheduler_that_places_no_shares_is_named(
    scheduler: str | None, schedulers: list[str], *, named: bool
) -> None:
    content = load("waiting")
    content["pod"]["spec"]["schedulerName"] = scheduler
    lines = explain(PodRecord(**content, schedulers=schedulers)).lines
    assert any("schedulerName is" in line for line in lines) is named
    content["pod"]["spec"]["nodeName"] = "n1"
    lines = explain(PodRecord(**content, schedulers=schedulers)).lines
    assert not any("schedulerName is" in line for line in lines)


def test_what_was_asked_is_shown_for_the_container_behind_a_proxy() -> None:
    content = load("running")
    before = told(content)[1]
    content["pod"]["spec"]["containers"].insert(0, {"name": "linkerd-proxy", "image": "a"})
    after = told(content)[1]
    assert [line.split() for line in after if "linkerd-proxy" not in line] == [line.split() for line in before]


def test_a_mig_instance_is_shown_with_its_memory_and_how_it_is_shared() -> None:
    """It was asked for as a whole, so the allocation names no amounts."""
    content = load("running")
    (claim,) = content["claims"].values()
    for result in claim["status"]["allocation"]["devices"]["results"]:
        result.pop("consumedCapacity", None)
    for entry in claim["status"]["devices"]:
        if "data" in entry:
            entry["data"] |= {"mode": "mig", "uuid": "MIG-5"}
    _, lines = told(content)
    assert any("MIG-5 (mig)" in line for line in lines), lines


def test_a_pod_that_its_kubelet_has_not_looked_at_is_not_called_fine() -> None:
    content = load("running")
    content["pod"]["status"] = {"phase": "Pending"}
    fine, lines = told(content)
    assert not fine
    assert any("kubectl describe node explained" in line for line in lines)
