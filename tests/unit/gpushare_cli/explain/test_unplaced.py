"""Why a pod waits for a node: what the real scheduler said of each cause, and the hint for each part of it.

The messages are those that ``tests/integration/controlplane/pending.py`` made a scheduler of Kubernetes 1.37 write.
"""

from typing import Any

import pytest

from gpushare.contract import DEVICE_CLASS, UNHEALTHY
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.obstacles import parts
from gpushare_cli.explain.pod_record import Finding, PodRecord
from gpushare_cli.placement.placing import Cluster
from tests.integration.controlplane import objects
from tests.unit.gpushare_cli.explain.test_pod import load
from webhook.mutation.resourceclaims import model_expression

AFTER = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
OTHER = "1 node(s) didn't match Pod's node affinity/selector"
NO_GPU = "1 cannot allocate all claims"
CPU = "1 Insufficient cpu"
CORDONED = "1 node(s) were unschedulable"
TAINTED = "1 node(s) had untolerated taint(s)"
GATED = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
MODELS = [{"cel": {"expression": model_expression(["l40"])}}]
KEY = "count/resourceclaims.resource.k8s.io"
QUOTA = {"metadata": {"name": "claims"}, "status": {"hard": {KEY: "2"}, "used": {KEY: "2"}}}
Content = dict[str, Any]


def waiting(*said: str, memory: str = "4Gi", cluster: Cluster | None = None, **spec: Any) -> Content:
    """Return a recorded pod that waits, with other words of the scheduler; its node is called gpu-1."""
    content = load("waiting")
    content["pod"]["spec"] |= {"nodeSelector": {objects.HOSTNAME: "gpu-1"}} | spec
    content["pod"]["status"]["conditions"][0]["message"] = f"0/2 nodes are available: {', '.join(said)}. {AFTER}"
    request(content)["capacity"] = {"requests": {"memory": memory}}
    return content | {"cluster": cluster or gpus()}


def request(content: Content) -> Any:
    (claim,) = content["claims"].values()
    return claim["spec"]["devices"]["requests"][0]["exactly"]


def gpus(*claims: Content, taint: str = "", **spec: Any) -> Cluster:
    """Return a cluster of one node with a GPU of 16 GiB, gpu-1, and one without."""
    nodes = [objects.node("gpu-1") | {"spec": spec}, objects.node("other")]
    published = objects.resource_slice("gpu-1", [16384])
    taints = [{"key": UNHEALTHY, "value": taint, "effect": "NoSchedule"}] if taint else []
    published["spec"]["devices"][0]["taints"] = taints
    return Cluster(nodes=nodes, slices=[published], claims=claims)


def holding(mib: int, compute: int = 0) -> Content:
    """Return a claim of somebody else that holds so much of the GPU."""
    consumed = {"memory": f"{mib}Mi", "compute": str(compute), "clients": "1"}
    result = {"driver": DEVICE_CLASS, "pool": "gpu-1", "device": "gpu-0", "consumedCapacity": consumed}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


def of_model(content: Content) -> Content:
    request(content)["selectors"] = MODELS
    return content


def gated(content: Content) -> Content:
    content["pod"]["status"]["conditions"][0] |= GATED
    return content


def without_claim(content: Content) -> Content:
    content["pod"]["status"].update(conditions=[], resourceClaimStatuses=[])
    return content | {"claims": {}}


def unseen(content: Content) -> Content:
    content["pod"]["status"]["conditions"] = []
    return content


def found(content: Content) -> list[Finding]:
    return [each for each in explain(PodRecord(**content)).findings if each.type == "obstacle"]


def hints(content: Content) -> list[str]:
    return [f"{each.message}: {each.hint}" for each in found(content) if not each.reason]


def unread(content: Content) -> Content:
    return content | {"cluster": Cluster()}


CASES: dict[str, tuple[Content, str, str]] = {
    "node selector": (
        waiting("2 node(s) didn't match Pod's node affinity/selector", nodeSelector={"disk": "ssd"}),
        "not placed: 2 node(s) didn't match Pod's node affinity/selector: gpu-1: excluded by spec.nodeSelector",
        "spec.nodeSelector",
    ),
    "cpu": (waiting(CPU, OTHER), f"not placed: {CPU}: the node lacks it, and not a GPU", "resources.requests"),
    "volume": (
        waiting("pod has unbound immediate PersistentVolumeClaims"),
        "not placed: pod has unbound immediate PersistentVolumeClaims: a volume", "kubectl describe persistent",
    ),
    "cordoned": (
        waiting(OTHER, CORDONED, cluster=gpus(unschedulable=True)),
        f"not placed: {CORDONED}: gpu-1: cordoned", "kubectl uncordon",
    ),
    "taint": (
        waiting(OTHER, TAINTED, cluster=gpus(taints=[{"key": "team", "value": "asr", "effect": "NoSchedule"}])),
        f"not placed: {TAINTED}: gpu-1: the pod does not tolerate the taint team=asr:NoSchedule",
        "webhook.shareTolerations",
    ),
    "not ready": (
        waiting(TAINTED, cluster=gpus(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])),
        f"not placed: {TAINTED}: gpu-1: unhealthy", "the node is unhealthy",
    ),
    "unhealthy": (
        waiting(NO_GPU, OTHER, cluster=gpus(taint="CriticalXid")),
        f"not placed: {NO_GPU}: gpu-1: its GPUs get no new shares (CriticalXid)", "unhealthy",
    ),
    "model": (
        of_model(waiting(NO_GPU, OTHER)),
        f"not placed: {NO_GPU}: gpu-1: no GPU is of model l40; there is NVIDIA A100-SXM4-16GB", "model",
    ),
    "full": (
        waiting(NO_GPU, OTHER, cluster=gpus(holding(13312))),
        f"not placed: {NO_GPU}: gpu-1: container main asks for 4Gi, and no GPU has more than 3Gi free", "free memory",
    ),
    "never fits": (
        waiting(NO_GPU, OTHER, memory="2Ti"),
        "container main asks for 2048Gi, and the largest GPU has 16Gi, so the pod never fits", "free memory",
    ),
    "gate": (
        gated(waiting(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])),
        "the pod has a scheduling gate: kueue.x-k8s.io/admission: Kueue removes it", "Kueue",
    ),
    "no claim": (without_claim(waiting()), "the pod's claim is not made yet", "kube-controller-manager does not run"),
    "no scheduler": (unseen(waiting()), "no scheduler has tried to place the pod yet", "kube-scheduler does not run"),
    "quota": (
        without_claim(waiting(cluster=Cluster(quotas=[QUOTA]))),
        f"ResourceQuota claims allows 2 of {KEY}, and 2 are used", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", CASES)
def test_each_cause_has_a_sentence_of_its_own(cause: str) -> None:
    content, says, _ = CASES[cause]
    assert [each for each in hints(content) if each.startswith(says)], hints(content)
    others = [sentence for name, (_, sentence, _) in CASES.items() if name != cause]
    wrong = [each for each in hints(content) for sentence in others if each.startswith(sentence)]
    assert not wrong


@pytest.mark.parametrize("cause", [name for name in CASES if name != "quota"])
def test_who_may_not_read_nodes_is_told_what_a_part_can_mean(cause: str) -> None:
    content, _, says = CASES[cause]
    assert any(says in each for each in hints(unread(content))), hints(unread(content))


@pytest.mark.parametrize("cause", CASES)
def test_no_hint_goes_by_the_words_about_preemption(cause: str) -> None:
    for content in (CASES[cause][0], unread(CASES[cause][0])):
        assert not any("reemption" in each for each in hints(content))


def test_a_pod_that_waits_for_other_reasons_is_told_of_each_and_where_a_gpu_has_room() -> None:
    told = hints(waiting(CPU, "3 node(s) didn't match Pod's node affinity/selector", "5 cannot allocate all claims"))
    assert [each.split(": ")[1] for each in told] == [
        CPU, "3 node(s) didn't match Pod's node affinity/selector", "5 cannot allocate all claims",
    ]  # fmt: skip
    assert told[0].endswith("by its GPUs gpu-1 could take the pod")
    assert told[1].endswith("none of these nodes shares a GPU")
    assert "nodes without a GPU count here" in told[2]


def test_what_no_gpu_can_hold_is_said_once() -> None:
    never = CASES["never fits"][0]
    assert len([each for each in hints(never) if "never fits" in each]) == 1
    assert f"not placed: {NO_GPU}: " in hints(never)


def test_that_no_node_shares_a_gpu_is_said_first() -> None:
    told = hints(waiting(NO_GPU, cluster=Cluster(nodes=[objects.node("other")], slices=[], claims=[])))
    assert told[0].startswith("no node publishes a GPU for sharing now")


def test_selectors_of_others_are_pointed_to_where_the_amounts_would_do() -> None:
    content = waiting(NO_GPU)
    request(content)["selectors"] = [{"cel": {"expression": "false"}}]
    assert any("the selectors of its claim match none" in each for each in hints(content))


@pytest.mark.parametrize(
    ("message", "reasons"),
    [
        ("", [""]),
        ("nothing known", ["nothing known"]),
        ("0/1 nodes are available: a: b, c. d", ["a: b, c"]),
        (f"0/3 nodes are available: 1 a, b, 2 c. {AFTER}", ["1 a, b", "2 c"]),
        ('0/1 nodes are available: pod "a/b.c": ResourceClaim not created yet. not found.',
         ['pod "a/b.c": ResourceClaim not created yet']),
        ("0/1 nodes are available: 1 Too many pods.", ["1 Too many pods"]),
        ("0/1 nodes are available: " + "1 x, " * 1000, ["0/1 nodes are available: 1 x", *["1 x"] * 999, ""]),
    ],
)  # fmt: skip
def test_a_message_is_read_part_by_part(message: str, reasons: list[str]) -> None:
    assert parts(message) == reasons or len(message) > 2048


def test_a_webhook_of_others_that_keeps_the_scheduler_from_writing_is_named() -> None:
    content = waiting()
    refusal = 'failed calling webhook "status.audit.example.org": no endpoints available'
    content["pod"]["status"]["conditions"][0]["message"] = f'running PreBind plugin "DynamicResources": {refusal}'
    (found,) = [each for each in explain(PodRecord(**content)).findings if refusal in each.message]
    assert "status.audit.example.org is not one of gpu-share" in found.hint


def test_who_is_refused_a_claim_does_not_wait_for_kube_controller_manager() -> None:
    content = without_claim(waiting())
    about = {"uid": content["pod"]["metadata"]["uid"]}
    refusal = {"reason": "FailedResourceClaimCreation", "message": "exceeded quota: devices", "involvedObject": about}
    found = [each.message for each in explain(PodRecord(**content | {"events": [refusal]})).findings]
    assert "exceeded quota: devices" in found
    assert "the pod's claim is not made yet" not in found
