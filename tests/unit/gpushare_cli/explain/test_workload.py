"""``gpu-share explain KIND/NAME``: what is read, and what is made of it."""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.contract import MEMORY, NAMESPACE_LABEL
from gpushare.errors import ClusterError, GpuShareError
from gpushare_cli.explain import workload_state
from gpushare_cli.explain.cluster_state import WorkloadExplanation
from gpushare_cli.explain.pod import CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, POD, REPLICA_SET, Kind
from gpushare_cli.explain.workload_state import MAX_PODS, explain_workload, labels_of
from gpushare_cli.inject import arguments, command
from tests.integration.controlplane import objects

OPTED_IN = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "asr", "labels": {NAMESPACE_LABEL: "true"}}}
LATE = "2026-11-20T22:16:05Z"
EVENT = {"involvedObject": {"uid": "w"}, "reason": "FailedCreate", "message": "no", "lastTimestamp": LATE}


def made(kind: Kind, uid: str = "w", owner: str = "", **more: Any) -> dict[str, Any]:
    group = kind.base.removeprefix("/apis/").removeprefix("/api/")
    owners = {"ownerReferences": [{"uid": owner, "controller": True}]} if owner else {}
    metadata = {"name": uid, "namespace": "asr", "uid": uid, **owners}
    return {"apiVersion": group, "kind": kind.name, "metadata": metadata, **more}


def template(**annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}


def deployment(replicas: int = 1, **annotations: str) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "a"}}
    return made(DEPLOYMENT, spec={"replicas": replicas, "selector": selector, "template": template(**annotations)})


def pod(owner: str, name: str = "p", phase: str = "Running") -> dict[str, Any]:
    spec = {"containers": [{"name": "main"}], "nodeName": "n1"}
    found = made(POD, uid=name, owner=owner, spec=spec, status={"phase": phase})
    return {key: value for key, value in found.items() if key not in {"apiVersion", "kind"}}


class Api:
    """Answers from objects by plural; what is in ``refused`` is forbidden."""

    def __init__(self, *refused: str, **objects: list[Any]) -> None:
        self.refused, self.objects, self.asked = refused, objects, list[tuple[str, str]]()

    def get(self, where: str) -> Any:
        plural, name = where.rsplit("/", 2)[-2:]
        self._ask(plural, name)
        for each in self.objects.get(plural, []):
            if each["metadata"]["name"] == name:
                return each
        raise ClusterError("not found", 404)

    def listing(self, where: str, **query: str) -> Iterator[Any]:
        plural = where.rsplit("/", 1)[-1]
        self._ask(plural, query.get("labelSelector", query.get("fieldSelector", "")))
        return iter(self.objects.get(plural, []))

    def _ask(self, plural: str, what: str) -> None:
        self.asked.append((plural, what))
        if plural in self.refused:
            raise ClusterError("forbidden", 403)


def explained(api: Api, kind: Kind = DEPLOYMENT) -> WorkloadExplanation:
    record = workload_state.recorded(api, kind, "asr", "w")  # type: ignore[arg-type]
    parser = argparse.ArgumentParser()
    arguments.add_policy_options(parser)
    values = [*([record.namespace] if record.namespace else []), *record.claims]
    return explain_workload(record, command.admit_for(values, parser.parse_args([])))


def types(found: WorkloadExplanation) -> list[str]:
    return [str(each.type) for each in found.findings]


def test_pods_of_a_deployment_are_those_of_its_replica_sets() -> None:
    others = [made(REPLICA_SET, "of-another", owner="another"), made(REPLICA_SET, "rs", owner="w")]
    api = Api(
        deployments=[deployment(1, **{MEMORY: "1Gi"})], replicasets=others, namespaces=[OPTED_IN],
        pods=[pod("of-another", "q"), pod("rs"), pod("w", "r")],
    )  # fmt: skip
    found = explained(api)
    assert (found.wanted, found.found, [each.name for each in found.pods]) == (1, 2, ["p", "r"])
    assert ("pods", "app=a") in api.asked
    assert found.summary.startswith("asr/w (Deployment): 2 of 1 pod")


def test_of_many_pods_the_first_are_read_and_all_are_counted() -> None:
    pods = [pod("w", f"p{number}") for number in range(MAX_PODS + 5)]
    api = Api(deployments=[deployment(25)], namespaces=[OPTED_IN], pods=pods)
    found = explained(api)
    assert (found.found, len(found.pods)) == (25, MAX_PODS)
    assert "  and 5 more" in found.lines
    assert [what for what, _ in api.asked].count("namespaces") == 1


def test_a_template_that_the_webhook_would_refuse_is_named_with_its_field() -> None:
    found = explained(Api(deployments=[deployment(1, **{MEMORY: "4GB"})], namespaces=[OPTED_IN], events=[EVENT]))
    assert found.summary == "asr/w (Deployment): 0 of 1 pod: refused, InvalidQuantity"
    assert [each.reason for each in found.findings] == ["InvalidQuantity", "FailedCreate"]
    assert found.findings[0].message.startswith("spec.template.metadata.annotations[gpu-share.io/memory]: '4GB'")
    assert not found.fine


def test_what_is_only_computed_is_called_so() -> None:
    found = explained(Api(deployments=[deployment(1, **{MEMORY: "4GB"})], namespaces=[OPTED_IN]))
    assert found.summary.endswith(": would be refused, InvalidQuantity")
    assert "with its own settings" in found.findings[-1].hint


def test_pods_that_are_there_are_evidence_against_what_is_computed() -> None:
    """The webhook's settings may be others: here the smallest share."""
    api = Api(deployments=[deployment(1, **{MEMORY: "300Mi"})], namespaces=[OPTED_IN], pods=[pod("w")])
    found = explained(api)
    assert (types(found), found.summary) == (["warning"], "asr/w (Deployment): 1 of 1 pod")
    assert "new pods would be refused" in found.findings[0].message


def test_a_rollout_that_is_refused_is_shown_while_the_old_pods_are_there() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "denied"}
    body = deployment(1, **{MEMORY: "4GB"}) | {"status": {"conditions": [failure]}}
    found = explained(Api(deployments=[body], namespaces=[OPTED_IN], pods=[pod("w")], events=[EVENT]))
    assert found.summary.endswith("1 of 1 pod: refused, InvalidQuantity")
    assert types(found) == ["refused", "refused"]


def test_events_of_other_workloads_are_not_shown() -> None:
    event = {**EVENT, "involvedObject": {"uid": "another"}}
    found = explained(Api(deployments=[deployment(1, **{MEMORY: "1Gi"})], namespaces=[OPTED_IN], events=[event]))
    assert (types(found), found.found, found.fine) == ([], 0, False), "one pod is wanted, and none is there"


def test_a_condition_is_shown_where_events_have_expired() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "denied"}
    body = deployment(1, **{MEMORY: "1Gi"}) | {"status": {"conditions": [failure]}}
    found = explained(Api(deployments=[body], namespaces=[OPTED_IN]))
    assert [(each.type, each.message) for each in found.findings] == [("refused", "denied")]
    assert found.summary.endswith(": refused, FailedCreate")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("maximum cpu usage per Container is 5m, but limit is 100m", "LimitRange"),
        ("exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0", "acrossNodes"),
        ('failed calling webhook "a.example.io": service "b" not found', "failurePolicy: Ignore"),
        ('admission webhook "a.example.io" denied the request: no', "webhook a.example.io"),
        (
            "ValidatingAdmissionPolicy 'theirs' with binding 'b' denied request: no",
            "validatingadmissionpolicies theirs",
        ),
    ],
)
def test_a_refusal_of_others_says_what_to_do(said: str, remedy: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": said}
    body = deployment(1, **{MEMORY: "1Gi"})
    by_condition = {"deployments": [body | {"status": {"conditions": [failure]}}]}
    for more in ({"events": [{**EVENT, "message": said}]}, by_condition):
        found = explained(Api(**{"deployments": [body], "namespaces": [OPTED_IN], **more}))
        assert remedy in found.findings[-1].hint, found.findings


def test_a_refusal_is_not_shown_once_all_pods_are_there() -> None:
    body = deployment(1, **{MEMORY: "1Gi"})
    found = explained(Api(deployments=[body], namespaces=[OPTED_IN], events=[EVENT], pods=[pod("w")]))
    assert "refused" not in types(found)


def test_an_annotation_on_the_object_itself_is_named() -> None:
    body = deployment(0)
    body["metadata"]["annotations"] = {MEMORY: "4Gi"}
    found = explained(Api(deployments=[body], namespaces=[OPTED_IN]))
    assert (types(found), found.fine, found.asks) == (["noShare"], False, False)
    assert "move it to spec.template.metadata.annotations" in found.findings[0].message


def test_a_workload_that_asks_for_nothing_is_fine() -> None:
    found = explained(Api(deployments=[deployment(0)], namespaces=[OPTED_IN]))
    assert (found.fine, found.lines) == (True, ["asr/w (Deployment): 0 of 0 pods; its pod template requests no share"])


def test_a_namespace_that_has_not_opted_in_is_the_first_reason() -> None:
    closed = {**OPTED_IN, "metadata": {"name": "asr"}}
    found = explained(Api(deployments=[deployment(1, **{MEMORY: "4GB"})], namespaces=[closed], pods=[pod("w")]))
    assert found.summary.endswith("1 of 1 pod, WITHOUT shares, although its pod template requests them")
    assert types(found) == ["noShare", "refused"]
    assert "if the webhook checked the workload's pods, it would refuse them" in found.findings[1].message


def test_what_may_not_be_read_is_reported() -> None:
    body = deployment(1, **{MEMORY: "1Gi"})
    found = explained(Api("namespaces", "events", deployments=[body]))
    assert types(found) == ["unknown", "unknown"]
    with pytest.raises(GpuShareError, match="you may not read deployment w"):
        explained(Api("deployments"))
    with pytest.raises(GpuShareError, match="there is no job w"):
        explained(Api(namespaces=[OPTED_IN]), JOB)


def test_claims_of_its_own_that_the_template_names_are_read() -> None:
    """With such a claim the annotations ask for no other share."""
    body = deployment(1, **{MEMORY: "1Gi"})
    spec = body["spec"]["template"]["spec"]
    spec["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "mine"}]
    spec["containers"][0]["resources"] = {"claims": [{"name": "own"}]}
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu-share.io"}}]
    own = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "mine", "namespace": "asr"}, "spec": {"spec": {"devices": {"requests": requests}}},
    }  # fmt: skip
    api = Api(deployments=[body], namespaces=[OPTED_IN], resourceclaimtemplates=[own])
    found = explained(api)
    assert ("resourceclaimtemplates", "mine") in api.asked
    assert [each.message for each in found.findings if each.type == "warning"] == [
        "the pod's own ResourceClaims reserve its GPU memory; gpu-share.io annotations only divide it among containers"
    ]


def test_pods_of_a_cron_job_are_those_of_its_newest_jobs() -> None:
    jobs = [made(JOB, f"j{number}", owner="w") for number in range(3)]
    inner = {"spec": {"template": template(**{MEMORY: "1Gi"})}}
    api = Api(
        cronjobs=[made(CRON_JOB, spec={"jobTemplate": inner})], jobs=jobs, pods=[pod("j1")], namespaces=[OPTED_IN]
    )
    found = explained(api, CRON_JOB)
    assert (found.wanted, found.found) == (None, 1)
    assert ("pods", "batch.kubernetes.io/controller-uid in (j0,j1,j2)") in api.asked
    assert explained(Api(cronjobs=[made(CRON_JOB, spec={"jobTemplate": inner})]), CRON_JOB).found == 0


def test_a_daemon_set_wants_a_pod_for_each_node() -> None:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template(**{MEMORY: "1Gi"})}
    body = made(DAEMON_SET, spec=spec, status={"desiredNumberScheduled": 3})
    found = explained(Api(daemonsets=[body], namespaces=[OPTED_IN], events=[EVENT]), DAEMON_SET)
    assert (found.wanted, types(found)) == (3, ["refused"])


@pytest.mark.parametrize(
    ("selector", "query"),
    [
        ({"matchLabels": {"a": "b", "c": "d"}}, "a=b,c=d"),
        ({"a": "b"}, "a=b"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, "a in (b,c)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, "a notin (b)"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a"),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a"),
        (None, ""),
        ({}, ""),
        ("x", ""),
    ],
)
def test_selectors_are_written_as_queries(selector: object, query: str) -> None:
    assert labels_of(selector) == query


def test_json_has_the_same_facts_under_keys_that_stay() -> None:
    found = explained(Api(deployments=[deployment(1, **{MEMORY: "4GB"})], namespaces=[OPTED_IN], pods=[pod("w")]))
    whole = found.json()
    assert list(whole) == [
        "kind", "namespace", "name", "fine", "summary", "asks", "podsWanted", "podsFound", "findings", "pods",
    ]  # fmt: skip
    assert list(whole["findings"][0]) == ["type", "reason", "message", "time", "hint", "container", "command"]
    assert list(whole["pods"][0]) == [
        "kind", "namespace", "name", "fine", "summary", "phase", "node", "share", "asks", "containers", "use",
        "findings",
    ]  # fmt: skip


def failed_job(uid: str = "w", owner: str = "") -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    return made(
        JOB, uid=uid, owner=owner, status={"conditions": [condition]}, spec={"template": template(**{MEMORY: "4Gi"})}
    )


def test_a_job_that_failed_is_not_fine_also_where_its_pods_are_gone() -> None:
    found = explained(Api(namespaces=[OPTED_IN], jobs=[failed_job()]), JOB)
    assert (found.fine, [each.reason for each in found.findings]) == (False, ["DeadlineExceeded"])
    spec = {"jobTemplate": {"spec": {"template": template(**{MEMORY: "4Gi"})}}}
    cron = made(CRON_JOB, spec=spec)
    jobs = [failed_job("j1", owner="w"), made(JOB, uid="j2", owner="w")]
    for number, each in enumerate(jobs):
        each["metadata"]["creationTimestamp"] = f"2026-11-20T22:16:0{number}Z"
    assert explained(Api(namespaces=[OPTED_IN], cronjobs=[cron], jobs=jobs), CRON_JOB).fine, "the newest counts"
    assert not explained(Api(namespaces=[OPTED_IN], cronjobs=[cron], jobs=jobs[:1]), CRON_JOB).fine


@pytest.mark.parametrize(("mib", "never"), [(2048, True), (16384, False)])
def test_a_job_that_failed_without_a_pod_to_look_at_says_what_no_gpu_can_hold(mib: int, *, never: bool) -> None:
    there = {"nodes": [objects.node("gpu-1")], "resourceslices": [objects.resource_slice("gpu-1", [mib])]}
    found = explained(Api(namespaces=[OPTED_IN], jobs=[failed_job()], **there), JOB)
    assert any("never fits" in each.message for each in found.findings) is never
    assert not any("never fits" in each.message for each in explained(Api(jobs=[failed_job()]), JOB).findings)


def test_a_workload_that_somebody_stopped_says_so_while_it_has_too_few_pods() -> None:
    job = made(JOB, spec={"suspend": True, "template": template(**{MEMORY: "4Gi"})})
    found = explained(Api(namespaces=[OPTED_IN], jobs=[job]), JOB)
    assert (found.fine, ["spec.suspend" in each.message for each in found.findings]) == (True, [True])
    paused = deployment(1, **{MEMORY: "4Gi"})
    paused["spec"]["paused"] = True
    found = explained(Api(namespaces=[OPTED_IN], deployments=[paused]))
    assert (found.fine, ["spec.paused" in each.message for each in found.findings]) == (False, [True])
    owned = made(REPLICA_SET, uid="r", owner="w")
    found = explained(Api(namespaces=[OPTED_IN], deployments=[paused], replicasets=[owned], pods=[pod("r")]))
    assert "spec.paused" not in str(found.findings)
