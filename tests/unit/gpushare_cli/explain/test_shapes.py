"""Objects of any shape are explained as far as they go: nothing crashes, and everything can be printed."""

import copy
import json
from typing import Any

import pytest

from gpushare.reasons import Reason
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod import DEPLOYMENT
from gpushare_cli.explain.pod_record import PodRecord
from gpushare_cli.explain.workload_state import WorkloadRecord, explain_workload
from gpushare_cli.inject.workloads import pods
from gpushare_cli.placement.placing import Cluster
from tests.unit.gpushare_cli.explain.test_no_share import OPTED_IN
from tests.unit.gpushare_cli.explain.test_pod import load
from tests.unit.gpushare_cli.explain.test_unplaced import QUOTA, gpus, holding, of_model, waiting
from tests.unit.gpushare_cli.explain.test_workload import EVENT, deployment
from webhook.mutation.mutate import Mutation

VALUES = [None, 3, "x\x1b", [], [None, 3], {}, {"a": [1]}]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths into a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, part in inside for each in places(part, (*path, key)))]


def changed(whole: Any, path: tuple[Any, ...], value: object) -> Any:
    whole = copy.deepcopy(whole)
    *before, last = path
    holder = whole
    for key in before:
        holder = holder[key]
    holder[last] = value
    return whole


def whole_pod() -> dict[str, Any]:
    content = load("killed") | {"namespace": OPTED_IN}
    (claim,) = content["claims"].values()
    result = claim["status"]["allocation"]["devices"]["results"][0]
    same = {key: result.get(key) for key in ("driver", "pool", "device", "shareID")}
    limits = [{"container": "main", "memoryMiB": 4096, "computePercent": 25}]
    condition = {"type": "LimitInForce", "status": "True", "reason": "InForce", "message": "x"}
    data = {"uuid": "GPU-1", "mode": "mps", "memoryMiB": 8192, "limits": limits, "mpsFiles": [{"user": 0, "mode": 384}]}
    claim["status"]["devices"] = [{**same, "data": data, "conditions": [condition]}]
    (status,) = content["pod"]["status"]["containerStatuses"]
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026"}}
    return content


POD = whole_pod()
SINGLE = {"pod", "namespace", "workload"}


CLUSTER = {
    "slices": list(gpus(taint="CriticalXid").slices or ()),
    "nodes": list(gpus(taints=[{"key": "a", "effect": "NoSchedule"}]).nodes or ()),
    "claims": [holding(1024)],
    "quotas": [QUOTA],
}


def inside(content: Any) -> list[tuple[Any, ...]]:
    """Return the paths into each object: lists of the API server hold objects, so these are never replaced."""
    return [each for each in places(content) if len(each) > (1 if each and each[0] in SINGLE else 2)]


WORKLOAD = {"workload": deployment(2, **{"gpu-share.io/memory": "4GB"}), "namespace": OPTED_IN, "refused": [EVENT]}


def admitted(pod: Any, _: str) -> Mutation:
    """What the webhook makes of shapes is tested elsewhere."""
    return Mutation(reason=Reason.APPLIED, pod=pod)


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_any_part_of_a_pods_objects_may_have_another_shape(value: object, phase: str) -> None:
    for path in inside(POD):
        content = changed(POD, path, value)
        if path[-1] != "phase" and isinstance(content["pod"].get("status"), dict):
            content["pod"]["status"]["phase"] = phase
        found = explain(PodRecord(**content), admitted)
        assert found.lines, path
        assert all(line.isprintable() for line in found.lines), path
        json.dumps(found.json())


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_part_of_a_cluster_may_have_another_shape(value: object) -> None:
    content = of_model(waiting("1 cannot allocate all claims"))
    for path in inside(CLUSTER):
        found = explain(PodRecord(**content | {"cluster": Cluster(**changed(CLUSTER, path, value))}))
        assert all(line.isprintable() for line in found.lines), path
    for path in inside({"claims": list(content["claims"].values())}):
        claims = changed({"claims": list(content["claims"].values())}, path, value)["claims"]
        found = explain(PodRecord(**content | {"claims": dict(zip(content["claims"], claims, strict=True))}))
        assert all(line.isprintable() for line in found.lines), path
    for path in inside({"pod": content["pod"]}):
        found = explain(PodRecord(**content | changed({"pod": content["pod"]}, path, value)))
        assert all(line.isprintable() for line in found.lines), path


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_part_of_a_workload_may_have_another_shape(value: object) -> None:
    for path in inside(WORKLOAD):
        content = changed(WORKLOAD, path, value)
        place = next(iter(pods(content["workload"])), None)
        record = WorkloadRecord(kind=DEPLOYMENT, place=place, pods=[], found=0, **content)
        found = explain_workload(record, admitted)
        assert all(line.isprintable() for line in found.lines), path
        json.dumps(found.json())
