"""Webhook replicas, enforcers of labelled nodes, and what enforcers report."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpushare import contract
from gpushare.kube_client import KubeClient
from gpushare_cli.check import workloads
from gpushare_cli.check.result import CheckResult
from gpushare_cli.words import moment
from tests.unit.gpushare_cli.check.api import Api

Ask = Callable[[KubeClient], CheckResult]


CONFIGURATION = {"webhooks": [{"clientConfig": {"service": {"namespace": "elsewhere"}}}]}


def deployment(replicas: int = 2, version: str = "0.1.0", of: str = "webhook") -> dict[str, Any]:
    labels = {"app.kubernetes.io/version": version, "app.kubernetes.io/name": f"gpu-share-{of}"}
    metadata = {"name": f"gpu-share-{of}", "namespace": "elsewhere", "labels": labels}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


NOW = datetime(2026, 11, 21, tzinfo=UTC)


def certificates(api: KubeClient) -> CheckResult:
    return workloads.certificates(api, NOW)


DAEMONSETS = [{"metadata": {"labels": {"app.kubernetes.io/name": f"gpu-share-{name}"}}} for name in ("enforcer", "mps")]


def item(
    name: str, *, ready: bool = True, node: str = "", version: str = "0.1.0", of: str = "webhook"
) -> dict[str, Any]:
    """A node, or a pod of a workload."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {"app.kubernetes.io/version": version, "app.kubernetes.io/name": f"gpu-share-{of}"}
    metadata = {"name": name, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": conditions}}


def report(node: str, **said: Any) -> dict[str, Any]:
    body = {"version": "0.1.0", "enforcing": True, "breaker": None, "auditLog": "", "problems": [], **said}
    return {
        "metadata": {"annotations": {contract.ENFORCER: json.dumps(body)}},
        "spec": {"nodeName": node, "devices": [{"name": "status"}]},
    }


def asked(ask: Ask, **answers: Any) -> tuple[str, str]:
    found = ask(Api({"gpu-share": CONFIGURATION, "deployments": [deployment()], "daemonsets": DAEMONSETS, **answers}))  # type: ignore[arg-type]
    return found.level, found.detail


@pytest.mark.parametrize(
    ("wanted", "ready", "level"), [(3, 3, "ok"), (3, 2, "warning"), (3, 0, "wrong"), (0, 0, "wrong")]
)
def test_webhook_replicas_have_to_be_ready(wanted: int, ready: int, level: str) -> None:
    pods = [item(f"p{number}", ready=number < ready) for number in range(wanted)]
    found = asked(workloads.webhooks, deployments=[deployment(wanted)], pods=pods)
    assert found[0] == level
    assert found[1].startswith(f"{ready} of {wanted} ready")
    leaving = item("p")
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert asked(workloads.webhooks, deployments=[deployment(1)], pods=[leaving])[0] == "wrong"
    assert asked(workloads.webhooks, deployments=[])[0] == "wrong"


@pytest.mark.parametrize("ask", [workloads.webhooks, certificates, workloads.enforcers])
def test_where_no_pod_is_made_the_hint_shows_what_makes_them(ask: Ask) -> None:
    """A description of pods that are not there says nothing."""
    both = [deployment(of=each) for each in ("webhook", "certs")]
    table = {"gpu-share": CONFIGURATION, "deployments": both, "daemonsets": DAEMONSETS, "nodes": [item("n")]}
    assert "describe deployments" in ask(Api({**table, "pods": []})).hint  # type: ignore[arg-type] # it only reads
    broken = [item("p", ready=False, node="n", of=each) for each in ("webhook", "certs", "enforcer")]
    hint = ask(Api({**table, "pods": broken})).hint  # type: ignore[arg-type] # it only reads
    assert "describe pods" in hint
    assert "kubectl logs" in hint, "a description says of a failed probe only that it failed"


@pytest.mark.parametrize(("ask", "name"), [(workloads.webhooks, "webhook"), (certificates, "certs")])
@pytest.mark.parametrize("leaving", [False, True])
def test_of_a_deployment_that_is_scaled_to_0_the_hint_scales_it(ask: Ask, name: str, *, leaving: bool) -> None:
    """No pod is made, so that nothing describes why none is ready; pods of before may still be leaving."""
    pods = [item("p", of=name)] if leaving else []
    for each in pods:
        each["metadata"]["deletionTimestamp"] = "now"
    table = {
        "gpu-share": CONFIGURATION,
        "deployments": [deployment(int(name != each), of=each) for each in ("webhook", "certs")],
        "pods": pods,
    }
    found = ask(Api(table))  # type: ignore[arg-type] # it only reads
    assert found.level == "wrong"
    assert f"kubectl scale -n elsewhere deployment gpu-share-{name} --replicas=" in found.hint
    assert "describe" not in found.hint


def test_a_deployment_that_renews_certificates_and_is_missing_is_restored() -> None:
    found = certificates(Api({"gpu-share": CONFIGURATION, "deployments": [deployment()], "pods": []}))  # type: ignore[arg-type] # it only reads
    assert (found.level, "helm upgrade --install" in found.hint) == ("wrong", True)


def test_somebody_has_to_renew_the_certificates() -> None:
    assert asked(certificates, pods=[item("p", of="certs")]) == ("ok", "ready")
    for pods in ([], [item("p")], [item("p", ready=False, of="certs")]):
        assert asked(certificates, pods=pods)[0] == "wrong"


def labelled(name: str, label: str, value: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {label: value}}}


def test_a_label_with_another_value_than_true_opts_nothing_in_and_is_named() -> None:
    nodes = [labelled("gpu-1", contract.NODE_LABEL, each) for each in ("true", "True")]
    spaces = [labelled("asr", contract.NAMESPACE_LABEL, each) for each in ("false", "yes")]
    api: Any = Api({"nodes": nodes, "namespaces": spaces})
    assert (len(workloads.nodes(api)), len(workloads.namespaces(api))) == (1, 0)
    found = workloads.mislabelled(api)
    said = "node gpu-1 has gpu-share.io/enabled=True, namespace asr has gpu-share.io/enabled=yes; only true opts in"
    assert (found.level, found.detail) == ("warning", said)
    assert found.hint == "kubectl label --overwrite node gpu-1 gpu-share.io/enabled=true"
    assert workloads.mislabelled(Api({"nodes": nodes[:1], "namespaces": spaces[:1]})).fine  # type: ignore[arg-type]


def issued(ready: str, ends: timedelta, due: timedelta) -> dict[str, Any]:
    """A Certificate as cert-manager writes it."""
    condition = {"type": "Ready", "status": ready, "message": "Certificate expired on Sunday"}
    times = {"notAfter": moment(NOW + ends), "renewalTime": moment(NOW + due)}
    return {"metadata": {"name": "gpu-share-webhook"}, "status": {"conditions": [condition], **times}}


@pytest.mark.parametrize(
    ("certificate", "level", "says"),
    [
        (issued("True", timedelta(days=20), timedelta(days=10)), "ok", "valid until 2026-12-11T00:00:00Z"),
        (issued("True", timedelta(days=2), timedelta(days=-8)), "warning", "renewed on 2026-11-13T00:00:00Z"),
        (issued("False", timedelta(days=-1), timedelta(days=-9)), "wrong", "Certificate expired on Sunday"),
        ({"metadata": {"name": "gpu-share-webhook"}}, "wrong", "not Ready"),
        (404, "wrong", "elsewhere/gpu-share-webhook is missing"),
    ],
)
def test_cert_manager_has_to_renew_the_certificate(certificate: Any, level: str, says: str) -> None:
    theirs = CONFIGURATION | {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "x/y"}}}
    found = asked(certificates, **{"gpu-share": theirs, "gpu-share-webhook": certificate})
    assert (found[0], says in found[1]) == (level, True), found


class Nodes(Api):
    """Nodes with the enforcers' pods in the release's namespace, and sharing pods anywhere."""

    def __init__(self, nodes: list[Any], pods: list[Any], sharing: list[Any]) -> None:
        super().__init__(
            {"gpu-share": CONFIGURATION, "deployments": [deployment()], "daemonsets": DAEMONSETS, "nodes": nodes}
        )
        self.pods, self.sharing = pods, sharing

    def list(self, where: str, **query: str) -> tuple[Any, str]:
        if not where.endswith("/pods"):
            return super().list(where, **query)
        return (self.pods if "/namespaces/elsewhere/" in where else self.sharing), "1"


@pytest.mark.parametrize(
    ("nodes", "enforcers", "sharing", "level", "detail"),
    [
        ("ab", "ab", "abb", "ok", "on 2 labelled nodes"),
        ("ab", "a", "", "wrong", "not ready on 1 node: b"),
        ("ab", "aB", "bb", "wrong", "not ready on 1 node: b (2 sharing pods without enforcement)"),
        ("a", "a", "b", "wrong", "not ready on 1 node: b (1 sharing pod without enforcement)"),
        ("aB", "a", "b", "warning", "none on b: the node is not Ready"),
        ("", "", "", "warning", "no labelled node"),
    ],
)
def test_every_labelled_node_and_every_node_with_sharing_pods_needs_an_enforcer(
    nodes: str, enforcers: str, sharing: str, level: str, detail: str
) -> None:
    """Letters are nodes, of which a capital one is not Ready; the DaemonSet's own count is not asked."""
    api = Nodes(
        [item(each.lower(), ready=each.islower()) for each in nodes],
        [item(f"enforcer-{each}", node=each.lower(), ready=each.islower(), of="enforcer") for each in enforcers],
        [item(f"share-{number}", node=each) for number, each in enumerate(sharing)],
    )
    found = workloads.enforcers(api)  # type: ignore[arg-type] # it only lists
    assert (found.level, found.detail) == (level, detail)
    assert ("kubectl describe pods enforcer-B" in found.hint) == ("B" in enforcers)
    unlabelled = level == "wrong" and "b" not in nodes
    assert ("kubectl label --overwrite node b" in found.hint) == unlabelled, "the DaemonSet says nothing about b"


def test_ended_and_waiting_pods_need_no_enforcer_and_without_a_daemonset_all_is_wrong() -> None:
    ended, waiting = item("a", node="n"), item("b")
    ended["status"]["phase"] = "Succeeded"
    api = Nodes([], [], [ended, waiting])
    assert workloads.enforcers(api).level == "warning"  # type: ignore[arg-type]
    assert asked(workloads.mps_hosts, daemonsets=[])[0] == "wrong"


@pytest.mark.parametrize(
    ("said", "level", "says"),
    [
        ({}, "ok", ""),
        ({"breaker": "2026-11-24T10:00:00Z"}, "wrong", "n: circuit breaker open since 2026-11-24T10:00:00Z"),
        ({"breaker": ""}, "wrong", "n: circuit breaker open: the enforcer kills nothing"),
        ({"auditLog": "disk full"}, "wrong", "n: audit log: disk full"),
        ({"problems": ["NVML is away"]}, "wrong", "n: NVML is away"),
        ({"enforcing": False}, "warning", "not killed on n"),
        ({"problems": "x"}, "wrong", "no valid report from n"),
        ({"version": 5}, "wrong", "no valid report from n"),
        ({"problems": ["\x1b[31mred"]}, "wrong", "n:  [31mred"),
    ],
)
def test_reports_of_enforcers_are_read(said: dict[str, Any], level: str, says: str) -> None:
    found = asked(workloads.reported, resourceslices=[report("n", **said)], nodes=[item("n")])
    assert (found[0], says in found[1]) == (level, True), found


@pytest.mark.parametrize(
    ("reports", "remedy"),
    [
        ([{"problems": ["NVML is away"]}], workloads.CORRECT),
        ([{"problems": ["NVML is away"]}, {"auditLog": "broken"}], workloads.AUDIT),
        ([{"auditLog": "broken"}, {"breaker": ""}], workloads.BREAKER),
    ],
)
def test_what_to_do_about_reports_is_that_of_the_gravest(reports: list[dict[str, Any]], remedy: str) -> None:
    slices = [report(f"n{number}", **said) for number, said in enumerate(reports)]
    api = Api({"resourceslices": slices, "nodes": [item("n0"), item("n1")]})
    assert workloads.reported(api).hint == remedy  # type: ignore[arg-type] # it only lists


@pytest.mark.parametrize("raw", ["junk", "[]", "{" * 9999, "1" * 20_000, None])
def test_what_is_no_report_is_none(raw: str | None) -> None:
    annotations = {} if raw is None else {contract.ENFORCER: raw}
    slices = [{"metadata": {"annotations": annotations}, "spec": {"nodeName": "n"}}]
    for nodes, level in (([item("n")], "wrong"), ([item("n", ready=False)], "warning"), ([item("other")], "warning")):
        found = asked(workloads.reported, resourceslices=slices, nodes=nodes)
        assert found == (level, "no valid report from n"), "a labelled node that is Ready has an enforcer"
    assert asked(workloads.reported, resourceslices=[*slices, report("n")])[0] == "ok", "one slice has it"


@pytest.mark.parametrize(
    ("webhook", "enforcer", "fits"),
    [
        ("0.3.0", "0.3.0", True),
        ("0.3.0", "0.3.9", True),
        ("0.3.1", "0.2.0", True),
        ("0.3.0", "0.1.9", False),
        ("0.3.0", "0.4.0", False),
        ("1.0.0", "0.9.0", True),
        ("1.1.0", "0.9.0", False),
        ("0.9.0", "1.0.0", False),
        ("0.3.0", "nightly", True),
    ],
)
def test_enforcers_may_be_one_release_behind_the_webhook(webhook: str, enforcer: str, *, fits: bool) -> None:
    pods, slices = [item("w", version=webhook)], [report("gpu-7", version=enforcer)]
    level, detail = asked(
        workloads.versions, deployments=[deployment(version=webhook)], pods=pods, resourceslices=slices
    )
    assert (level == "wrong") is not fits
    assert ("not supported with this webhook: gpu-7" in detail) is not fits
    assert f"webhook {webhook} (1), enforcers {enforcer} (1)" in detail


def test_one_version_is_fine_and_several_are_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "installed", lambda: "0.1.0")
    pods = [item("a"), item("b")]
    same = asked(workloads.versions, pods=pods, resourceslices=[report("n"), report("m")])
    assert same == ("ok", "command line 0.1.0, webhook 0.1.0 (2), enforcers 0.1.0 (2)")
    pods = [item("a"), item("b", version="0.2.0")]
    level, detail = asked(workloads.versions, pods=pods, resourceslices=[report("n"), report("m", version="0.2.0")])
    assert (level, "webhook 0.2.0 (1), 0.1.0 (1), enforcers 0.2.0 (1), 0.1.0 (1)" in detail) == ("warning", True)


def test_a_labelled_node_that_publishes_nothing_is_named() -> None:
    nodes = [item(f"n{number}") for number in range(9)]
    found = asked(workloads.unsliced, nodes=nodes, resourceslices=[report("n0")])
    assert found == ("wrong", "9 labelled; without a device in a ResourceSlice: n1, n2, n3, n4, n5 and 3 more")
    empty = {**report("n0"), "spec": {"nodeName": "n0"}}
    assert asked(workloads.unsliced, nodes=nodes[:1], resourceslices=[empty])[0] == "wrong", "no GPU is seen there"
    assert asked(workloads.unsliced, nodes=nodes[:1], resourceslices=[report("n0")]) == ("ok", "1")
    assert asked(workloads.unsliced, nodes=[], resourceslices=[])[0] == "warning"


def rolled(kind: str = "deployment", generation: int = 2, seen: int = 2, **status: Any) -> tuple[str, str]:
    counts = {"deployment": ("replicas", "updatedReplicas"), "daemonset": ("", "updatedNumberScheduled")}[kind]
    total, updated = counts
    whole = {"observedGeneration": seen, total: 2, updated: 2, "desiredNumberScheduled": 2}
    item = deployment() | {"status": {**whole, **status}}
    item["metadata"]["generation"] = generation
    return asked(workloads.rollouts, **{"deployments": [], "daemonsets": [], f"{kind}s": [item]})


@pytest.mark.parametrize(
    ("kind", "status", "says"),
    [
        ("deployment", {"replicas": 3, "updatedReplicas": 1}, "1 of 2 pods updated"),
        ("deployment", {"replicas": 3, "updatedReplicas": 2}, "2 of 2 pods updated"),
        ("deployment", {"replicas": 2, "updatedReplicas": None}, "0 of 2 pods updated"),
        ("daemonset", {"updatedNumberScheduled": 1}, "1 of 2 pods updated"),
        ("deployment", {"seen": 1}, "kube-controller-manager has not seen its newest change"),
        (
            "deployment",
            {"conditions": [{"type": "Progressing", "status": "False", "message": "it has timed out progressing"}]},
            "it has timed out progressing",
        ),
    ],
)
def test_a_rollout_that_is_not_complete_is_named_with_what_it_waits_for(kind: str, status: Any, says: str) -> None:
    level, detail = rolled(kind, **status)
    assert (level, detail) == ("warning", f"{kind} gpu-share-webhook: {says}")
    assert rolled(kind) == ("ok", "complete")


def test_who_refuses_the_pods_of_a_rollout_is_named_and_no_pod_described() -> None:
    """Its older pods are well, and describe nothing of it."""
    refusal = 'Internal error occurred: failed calling webhook "a.example.io": service "b" not found'
    slow = {"type": "Progressing", "status": "False", "message": "it has timed out progressing"}
    item = deployment() | {"status": {"conditions": [slow, {**slow, "type": "ReplicaFailure", "status": "True"}]}}
    item["status"]["conditions"][1]["message"] = refusal
    table = {"gpu-share": CONFIGURATION, "deployments": [item], "daemonsets": []}
    found = workloads.rollouts(Api(table))  # type: ignore[arg-type] # it only reads
    assert (found.level, refusal in found.detail, "webhook a.example.io" in found.hint) == ("warning", True, True)
    assert "describe pods" not in found.hint


def test_a_daemonset_that_an_upgrade_leaves_alone_is_complete() -> None:
    item = {"metadata": {"name": "gpu-share-mps"}, "spec": {"updateStrategy": {"type": "OnDelete"}}}
    item["status"] = {"desiredNumberScheduled": 2}
    assert asked(workloads.rollouts, deployments=[], daemonsets=[item]) == ("ok", "complete")
