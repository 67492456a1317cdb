"""What others do to the test pod of ``gpu-share check``, its claim and its claim template."""

import copy
from typing import Any

import pytest

from gpushare import contract
from gpushare_cli.check.trial import trial
from tests.unit.gpushare_cli.check.test_trial import MAKER, RELEASE, Server, asked, namespace


def affinity(value: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [value]}]}]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": rule}}


@pytest.mark.parametrize(
    ("added", "level", "says"),
    [
        ({}, "ok", ""),
        ({"nodeSelector": {"pool": "gpu"}}, "ok", ""),
        ({"nodeSelector": {"pool": "cpu"}}, "warning", "pool=cpu"),
        (affinity("gpu"), "ok", ""),
        (affinity("cpu"), "warning", "affinity"),
        ({"schedulerName": "default-scheduler"}, "ok", ""),
        ({"schedulerName": "own"}, "ok", ""),
        ({"schedulerName": "volcano"}, "wrong", "volcano"),
    ],
)
def test_what_others_add_that_keeps_each_share_from_every_node_is_named(
    added: dict[str, Any], level: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, newer = ("SCHEDULER_NAMES", "default-scheduler,own"), ("ACROSS_NODES", "of another release")
    values = [{"name": f"GPU_SHARE_{name}", "value": value} for name, value in (known, newer)]
    release = RELEASE[0] | {"spec": {"template": {"spec": {"containers": [{"env": values}]}}}}
    server = Server(namespaces=[], a=namespace("a"), nodes=[node({"pool": "gpu"})], deployments=[release])
    monkeypatch.setattr(server, "create", adding(server, added))
    result = trial(server, "a")  # type: ignore[arg-type] # it only reads and tries
    assert (result.level, says in result.detail) == (level, True), result


@pytest.mark.parametrize(
    ("labels", "level"), [({"pool": "cpu"}, "ok"), ({"pool": "gpu"}, "warning"), ({}, "warning"), (None, "ok")]
)
def test_a_selector_is_compared_with_the_nodes_labels_where_these_may_be_read(
    labels: dict[str, str] | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(namespaces=[namespace("a")], nodes=403 if labels is None else [node(labels)])
    monkeypatch.setattr(server, "create", adding(server, {"nodeSelector": {"pool": "cpu"}}))
    found = asked(server)
    assert found[0] == level, found
    assert ("pool=cpu" in found[1]) is (level == "warning")


def node(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": {contract.NODE_LABEL: "true", **labels}}}


def adding(server: Server, added: dict[str, Any]) -> Any:
    plain = server.create

    def create(where: str, body: Any, **query: str) -> Any:
        made = copy.deepcopy(plain(where, body, **query))
        made["spec"] |= added
        return made

    return create


FREEZE = "is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'b' denied request: frozen"
NO_RIGHT = f'is forbidden: User "system:serviceaccount:kube-system:{MAKER}" cannot create resource "resourceclaims"'
NOT_ME = 'is forbidden: User "jo" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "x"'


@pytest.mark.parametrize("who", ["gpu-share-webhook", MAKER])
@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (FREEZE, "validatingadmissionpolicies freeze"),
        (f"422 {FREEZE}", "validatingadmissionpolicies freeze"),
        ('500 failed calling webhook "a.b": dead', "webhook a.b is not one of gpu-share"),
        (NO_RIGHT, f"system:controller:{MAKER}"),
        ("is forbidden: exceeded quota: count/resourceclaims", ""),
        (NOT_ME, ""),
        ("409 already exists", ""),
        ("400 webhook does not support dry run", ""),
        ("500 etcdserver: leader changed", ""),
        ("201 cannot be read: timed out", ""),
    ],
)
def test_who_refuses_claims_and_their_templates_is_found_before_a_pod_waits(who: str, said: str, hint: str) -> None:
    result = trial(Server({who: said}, namespaces=[namespace("a")]), None)  # type: ignore[arg-type] # it only reads
    assert (result.level, hint in result.hint) == ("wrong" if hint else "ok", True), result
