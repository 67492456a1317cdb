"""Whether a share could start, and where."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.contract import DEVICE_CLASS, DEVICE_QUOTA, DRIVER, MEMORY_COUNT_CLASS, MIG_DEVICE_CLASS
from gpushare_cli.placement.gpus import gpus, models_of, selects
from gpushare_cli.placement.placing import Cause, Cluster, Placement, is_cordoned, is_selected, place, untolerated
from tests.integration.controlplane import objects
from webhook.mutation.resourceclaims import Request, model_expression, template_spec

NO_POD: dict[str, Any] = {"spec": {}}
WHOLE = {"one": (16384,), "two": (8192, 15872)}


def cluster(claims: Any = (), **nodes: tuple[int, ...]) -> Cluster:
    slices = [objects.resource_slice(name, memories) for name, memories in nodes.items()]
    return Cluster(nodes=[objects.node(name) for name in nodes], slices=slices, claims=claims)


def claim(*requests: Request, models: tuple[str, ...] = (), same_gpu: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = template_spec(requests, models, same_gpu=same_gpu)
    return {"spec": made["spec"]}


def asking(*mib: int, same_gpu: bool = False, **more: Any) -> dict[str, Any]:
    return claim(*(Request(f"c{number}", each, 0, **more) for number, each in enumerate(mib)), same_gpu=same_gpu)


def holding(node: str, gpu: int, mib: int, compute: int = 0, times: int = 1) -> dict[str, Any]:
    consumed = {"memory": f"{mib}Mi", "compute": str(compute)}
    result = {"driver": DRIVER, "pool": node, "device": f"gpu-{gpu}", "consumedCapacity": consumed}
    return {"status": {"allocation": {"devices": {"results": [result] * times}}}}


def causes(found: Placement) -> list[Cause]:
    return [each.cause for each in found.hindrances]


def test_the_slices_of_a_removed_node_hold_no_share() -> None:
    there = cluster(one=(8192,), gone=(16384,))
    left = replace(there, nodes=[objects.node("one")])
    assert place(NO_POD, [asking(4096)], left).nodes == ("one",)
    assert causes(place(NO_POD, [asking(12288)], left)) == [Cause.TOO_LARGE]
    assert place(NO_POD, [asking(4096)], replace(there, nodes=None)).nodes == ("one", "gone")


@pytest.mark.parametrize(
    ("wanted", "held", "nodes"),
    [
        (asking(4096), (), ("one", "two")),
        (asking(16384), (), ("one",)),
        (asking(4096), [holding("one", 0, 13000)], ("two",)),
        (asking(15000), [holding("two", 0, 8000)], ("one", "two")),
        (asking(4096), [holding("one", 0, 1, times=48)], ("two",)),
        (claim(Request("c", 512, 60)), [holding("one", 0, 512, 50)], ("two",)),
        (claim(Request("c", 512, 50)), [holding("one", 0, 512, 50)], ("one", "two")),
        (asking(10240, 6144), (), ("one", "two")),
        (asking(10240, 6144, same_gpu=True), (), ("one",)),
        (claim(Request("c", 512, 0), models=("a100",)), (), ("one", "two")),
        (claim(Request("c", 512, 0), models=("a10",)), (), ()),
        (claim(Request("c", 512, 0, gpus=2)), (), ()),
        (claim(Request("c", 0, 0, profile="1g.10gb")), (), ()),
    ],
)
def test_the_nodes_whose_gpus_could_take_a_share_are_named(wanted: Any, held: Any, nodes: tuple[str, ...]) -> None:
    assert place(NO_POD, [wanted], cluster(held, **WHOLE)).nodes == nodes


def test_what_a_node_lacks_is_named_for_it_alone_and_what_all_lack_once() -> None:
    found = place(NO_POD, [asking(10240)], cluster([holding("two", 1, 8000)], **WHOLE))
    assert (found.nodes, causes(found)) == (("one",), [Cause.FULL])
    assert (found.hindrances[0].nodes, "7.7Gi" not in found.hindrances[0].message) == (("two",), True)
    never = place(NO_POD, [asking(10240, 8192, same_gpu=True)], cluster(**WHOLE))
    assert (never.nodes, causes(never)) == ((), [Cause.TOO_LARGE])
    assert never.hindrances[0].message.startswith(
        "containers c0, c1 together ask for 18Gi, and the largest GPU has 16Gi"
    )
    small = place(NO_POD, [asking(12288)], cluster(one=(16384,), small=(8192,)))
    assert (small.nodes, small.hindrances[0].message) == (
        ("one",), "small: container c0 asks for 12Gi, and the largest GPU there has 8Gi",
    )  # fmt: skip


@pytest.mark.parametrize(("asked", "says"), [(4096, "than 3Gi free"), (512, "than 50% of compute"), (0, "MPS clients")])
def test_the_amount_that_is_short_is_named(asked: int, says: str) -> None:
    held = holding("one", 0, 13312, 50) if asked else holding("one", 0, 0, times=48)
    found = place(NO_POD, [claim(Request("c", asked, 60 if asked else 0))], cluster([held], one=(16384,)))
    assert (causes(found), says in found.hindrances[0].message) == ([Cause.FULL], True), found


def test_without_slices_the_nodes_are_not_known_and_what_the_pod_says_is() -> None:
    gated = {"metadata": {"namespace": "asr"}, "spec": {"schedulingGates": [{"name": "mine"}]}}
    found = place(gated, [asking(4096)], Cluster())
    assert (found.nodes, causes(found)) == (None, [Cause.GATED])
    assert "Kueue" not in found.hindrances[0].hint


@pytest.mark.parametrize(
    ("hard", "used", "short"),
    [
        ({"count/resourceclaims.resource.k8s.io": "3"}, {"count/resourceclaims.resource.k8s.io": "2"}, False),
        ({"count/resourceclaims.resource.k8s.io": "3"}, {"count/resourceclaims.resource.k8s.io": "3"}, True),
        ({f"{DEVICE_CLASS}.deviceclass.resource.k8s.io/devices": "2"}, {}, False),
        ({f"{DEVICE_CLASS}.deviceclass.resource.k8s.io/devices": "1"}, {}, True),
        ({f"{MIG_DEVICE_CLASS}.deviceclass.resource.k8s.io/devices": "0"}, {}, False),
        ({"pods": "0"}, {}, False),
    ],
)
def test_a_quota_counts_claims_and_devices(hard: Any, used: Any, *, short: bool) -> None:
    quotas = [{"metadata": {"name": "q"}, "status": {"hard": hard, "used": used}}]
    found = place(NO_POD, [asking(512, 512)], Cluster(quotas=quotas))
    assert causes(found) == [Cause.QUOTA] * short


@pytest.mark.parametrize(("hard", "taken", "short"), [("4Ki", "0", False), ("4095", "0", True), ("8192", "4097", True)])
def test_a_quota_adds_up_the_amounts_that_a_claim_states(hard: str, taken: str, *, short: bool) -> None:
    key = f"{MEMORY_COUNT_CLASS}{DEVICE_QUOTA}"
    made = template_spec((Request("a", 1024, 0), Request("b", 1536, 0, gpus=2)), (), same_gpu=False, counted=True)
    quotas = [{"metadata": {"name": "q"}, "status": {"hard": {key: hard}, "used": {key: taken}}}]
    found = place(NO_POD, [{"spec": made["spec"]}], Cluster(quotas=quotas))
    assert causes(found) == [Cause.QUOTA] * short


def test_mig_instances_have_one_user_and_no_percentage() -> None:
    cut = objects.resource_slice("one", [10240])
    device = cut["spec"]["devices"][0]
    device["attributes"] |= {"kind": {"string": "mig"}, "profile": {"string": "1g.10gb"}}
    device.pop("allowMultipleAllocations")
    device["capacity"] = {"memory": device["capacity"]["memory"]}
    wanted = claim(Request("c", 0, 0, profile="1g.10gb"))
    for held, nodes in (((), ("one",)), ([holding("one", 0, 0)], ())):
        assert place(NO_POD, [wanted], Cluster(slices=[cut], claims=held)).nodes == nodes
    other = place(NO_POD, [claim(Request("c", 0, 0, profile="2g.20gb"))], Cluster(slices=[cut]))
    assert causes(other) == [Cause.OTHER_GPU]


@pytest.mark.parametrize(
    ("tolerations", "tolerated"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "a", "operator": "Exists"}], True),
        ([{"key": "a", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "a", "value": "b", "effect": "NoSchedule"}], True),
        ([{"key": "a", "value": "c"}], False),
        ([{"key": "b", "operator": "Exists"}], False),
    ],
)
def test_taints_are_tolerated_as_the_scheduler_does(tolerations: Any, *, tolerated: bool) -> None:
    soft = {"key": "soft", "effect": "PreferNoSchedule"}
    node = {"spec": {"taints": [soft, {"key": "a", "value": "b", "effect": "NoSchedule"}]}}
    said = untolerated(node, {"spec": {"tolerations": tolerations}})
    assert said == ("" if tolerated else "a=b:NoSchedule")


def test_a_cordon_is_seen_unless_the_pod_makes_an_exception() -> None:
    key = "node.kubernetes.io/unschedulable"
    exception = {"spec": {"tolerations": [{"key": key, "operator": "Exists"}]}}
    cordoned = {"spec": {"unschedulable": True}}
    assert is_cordoned(cordoned, NO_POD)
    assert not is_cordoned(cordoned, exception)
    assert not is_cordoned({"spec": {}}, NO_POD)


@pytest.mark.parametrize(
    ("terms", "selected"),
    [
        ([], True),
        ([{}], False),
        ([{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}], True),
        ([{"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}], False),
        ([{"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["c"]}]}], True),
        ([{"matchExpressions": [{"key": "x", "operator": "Exists"}]}], False),
        ([{"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}], True),
        ([{"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "x", "operator": "Exists"}]}], False),
        ([{"matchExpressions": [{"key": "x", "operator": "Exists"}]}, {"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n"]}]}], True),
    ],
)  # fmt: skip
def test_nodes_are_selected_as_the_scheduler_does(terms: Any, *, selected: bool) -> None:
    node = {"metadata": {"name": "n", "labels": {"a": "b"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = {"spec": {"nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": required}}}
    assert is_selected(node, pod) is selected
    assert not is_selected(node, {"spec": {"nodeSelector": {"a": "c"}}})


def test_only_expressions_of_the_webhook_are_read() -> None:
    (gpu,) = gpus([objects.resource_slice("one", [16384])], ())
    ours = model_expression(["a100-sxm4", "l4"])
    assert (models_of(ours), selects(ours, gpu)) == (("a100-sxm4", "l4"), True)
    assert selects(model_expression(["l4"]), gpu) is False
    for other in ("false", "", f"{ours} && true", ours.replace("l4", "(l+)+")):
        assert (models_of(other), selects(other, gpu)) == ((), None)
