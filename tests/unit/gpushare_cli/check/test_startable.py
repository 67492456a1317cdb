"""Whether a share could start, by what a cluster's nodes, ResourceSlices and ResourceQuotas say."""

from typing import Any

import pytest

from gpushare import contract
from gpushare_cli.check import startable
from gpushare_cli.check.result import Level
from gpushare_cli.placement.placing import CLAIMS, TEMPLATES
from tests.unit.gpushare_cli.check.api import Api

CORDONED = {"unschedulable": True}
TAINTED = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
OURS = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def gpu(name: str, *, kind: str = contract.KIND_GPU, mib: int = 16384, **more: Any) -> dict[str, Any]:
    device = {
        "name": "gpu-0", "attributes": {"kind": {"string": kind}, "model": {"string": "T4"}},
        "capacity": {contract.CAPACITY_MEMORY: {"value": f"{mib}Mi"}}, "allowMultipleAllocations": True, **more,
    }  # fmt: skip
    return {"spec": {"nodeName": name, "pool": {"name": name}, "devices": [device]}}


def asked(*nodes: dict[str, Any], slices: list[dict[str, Any]] | None = None) -> Any:
    published = [gpu(each["metadata"]["name"]) for each in nodes] if slices is None else slices
    none: dict[str, Any] = {"mutatingwebhookconfigurations": [], "deployments": []}
    return startable.on_nodes(Api({"nodes": nodes, "resourceslices": published, **none}))  # type: ignore[arg-type] # it only lists


def test_a_node_that_takes_a_share_is_enough() -> None:
    found = asked(node("a"), node("b", **OURS), node("c", **CORDONED))
    assert (found.level, found.detail) == (Level.OK, "2 nodes; not c: cordoned, so it takes no new pods")


@pytest.mark.parametrize(("spec", "hint"), [(CORDONED, "kubectl uncordon a"), (TAINTED, "webhook.shareTolerations")])
def test_where_each_node_keeps_shares_away_it_is_no_longer_green(spec: dict[str, Any], hint: str) -> None:
    found = asked(node("a", **spec), node("b", **spec))
    assert found.level is Level.WARNING
    assert hint in found.hint


def test_gpus_that_get_no_new_shares_are_named() -> None:
    taints = [{"key": "gpu-share.io/unhealthy", "value": "XidError", "effect": "NoSchedule"}]
    found = asked(node("a"), slices=[gpu("a", taints=taints)])
    assert found.level is Level.WARNING
    assert "XidError" in found.detail


def test_instances_alone_are_no_fault_and_no_gpu_is_one() -> None:
    assert asked(node("a"), slices=[gpu("a", kind=contract.KIND_MIG)]).level is Level.OK
    none = asked(node("a"), slices=[])
    assert none.level is Level.WARNING
    assert "gpu-share check" not in none.hint, "that is the command that says it"


def quota(namespace: str, hard: int, used: int, key: str = CLAIMS) -> dict[str, Any]:
    status = {"hard": {key: str(hard)}, "used": {key: str(used)}}
    return {"metadata": {"name": "most", "namespace": namespace}, "status": status}


@pytest.mark.parametrize(
    ("quotas", "detail"),
    [
        ([], "in 2 namespaces"),
        ([quota("asr", 4, 3), quota("stranger", 0, 0)], "in 2 namespaces"),
        ([quota("asr", 4, 3), quota("tts", 4, 4)], "not in 1 of 2 namespaces: tts: ResourceQuota most allows 4 of"),
        ([quota("tts", 0, 0, TEMPLATES)], "not in 1 of 2 namespaces: tts: ResourceQuota most allows 0 of"),
    ],
)  # fmt: skip
def test_each_namespace_without_room_for_a_claim_is_named(quotas: list[dict[str, Any]], detail: str) -> None:
    names = [{"metadata": {"name": name}} for name in ("asr", "tts")]
    found = startable.in_namespaces(Api({"namespaces": names, "resourcequotas": quotas}))  # type: ignore[arg-type] # it only lists
    assert found.detail.startswith(detail)
    assert found.fine == (not detail.startswith("not"))


@pytest.mark.parametrize(
    ("annotations", "used", "level", "hint"),
    [
        ({contract.COUNT_AMOUNTS: "true"}, "4095", Level.OK, ""),
        ({contract.COUNT_AMOUNTS: "true"}, "4096", Level.WARNING, "an operator raises"),
        ({}, "0", Level.WARNING, contract.COUNT_AMOUNTS),
    ],
)
def test_a_quota_on_amounts_needs_room_and_claims_that_state_them(
    annotations: dict[str, str], used: str, level: Level, hint: str
) -> None:
    hard, taken = ({f"{contract.MEMORY_COUNT_CLASS}{contract.DEVICE_QUOTA}": each} for each in ("4096", used))
    quotas = [{"metadata": {"name": "total", "namespace": "asr"}, "spec": {"hard": hard}}]
    quotas[0] |= {"status": {"hard": hard, "used": taken}}
    names = [{"metadata": {"name": "asr", "annotations": annotations}}, {"metadata": {"name": "tts"}}]
    found = startable.in_namespaces(Api({"namespaces": names, "resourcequotas": quotas}))  # type: ignore[arg-type] # it only lists
    assert found.level is level
    assert hint in (found.hint or "")
