"""The job that checks an installation, its account, and what operators may read for it."""

import json
from itertools import product
from typing import Any

import pytest

from gpushare.version import installed
from gpushare_cli.check import cluster, installation
from gpushare_cli.check.connection import version
from gpushare_cli.main import build_parser
from tests.support import helm
from tests.support.asked_rights import Recorder, Right, given
from tests.unit.deploy.test_chart import VALUES, of


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


def check_hooks(*options: str) -> dict[str, Any]:
    return {each["kind"]: each for each in helm.objects(*options) if each["metadata"]["name"] == "gpu-share-check"}


def test_an_installation_ends_with_the_check_and_helm_test_repeats_it() -> None:
    hooks = check_hooks()
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")
    assert {hooks[kind]["metadata"]["annotations"]["helm.sh/hook"] for kind in kinds} == {"post-install,test"}
    container = hooks["Job"]["spec"]["template"]["spec"]["containers"][0]
    read = build_parser("check").parse_args(container["args"])
    assert (read.cluster, read.wait) == (True, VALUES["check"]["waitSeconds"])
    assert hooks["Job"]["spec"]["activeDeadlineSeconds"] > VALUES["check"]["waitSeconds"]
    off = check_hooks("--set=check.enabled=false")
    assert off.keys() == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


RELEASE = [
    {
        "metadata": {
            "name": "gpu-share-webhook",
            "namespace": "gpu-share-system",
            "labels": {"app.kubernetes.io/version": installed()},
        }
    }
]
DAEMONSETS = [
    {"metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}}}
    for name in ("gpu-share-enforcer", "gpu-share-mps")
]


OF_CERT_MANAGER = "--set=certs.certManager.enabled=true"


def rights_asked(*options: str) -> set[Right]:
    """What the job asks the API server for, with namespaces that opted in and without."""
    found: set[Right] = set()
    issued = {"name": "gpu-share", "annotations": {installation.CERT_MANAGER: "a/b"} if options else {}}
    opted_in = {"metadata": {"name": "a", "labels": {"gpu-share.io/enabled": "true"}}}
    for namespaces, hooks in product(([], [opted_in]), ([], [{"metadata": issued}])):
        api = Recorder(
            namespaces=namespaces, daemonsets=DAEMONSETS, deployments=RELEASE, mutatingwebhookconfigurations=hooks
        )
        for _, ask in [("version", version), *cluster.questions(None)]:
            ask(api)  # type: ignore[arg-type] # it has what a check calls
        found |= api.asked
    return found


@pytest.mark.parametrize("options", [(), (OF_CERT_MANAGER,)])
def test_the_account_has_each_right_that_the_check_asks_for_and_no_other(options: tuple[str, ...]) -> None:
    rules, asked = check_hooks(*options)["ClusterRole"]["rules"], rights_asked(*options)
    assert [each for each in sorted(asked) if not given(rules, each)] == []
    for rule in rules:
        for verb, group, resource in product(rule["verbs"], rule["apiGroups"], rule["resources"]):
            names = names_of(asked, verb, group, resource)
            assert names, f"nobody asks to {verb} {resource}"
            assert set(rule.get("resourceNames", ())) <= names, f"{verb} {resource}"


def names_of(asked: set[Right], verb: str, group: str, resource: str) -> set[str]:
    return {each.name for each in asked if (each.verb, each.group, each.resource) == (verb, group, resource)}


def test_what_the_check_creates_a_policy_keeps_to_dry_runs() -> None:
    hooks = check_hooks()
    writing = [rule for rule in hooks["ClusterRole"]["rules"] if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert {verb for rule in writing for verb in rule["verbs"]} == {"create"}
    created = {(each.group, each.resource) for each in rights_asked() if each.verb == "create"}
    policy = hooks["ValidatingAdmissionPolicy"]["spec"]
    kept = policy["matchConstraints"]["resourceRules"]
    assert created == {(rule["apiGroups"][0], name) for rule in kept for name in rule["resources"]}
    account = f"system:serviceaccount:{helm.SYSTEM}:gpu-share-check"
    assert account in policy["matchConditions"][0]["expression"]


def test_operators_may_ask_all_but_the_dry_runs() -> None:
    role = next(each for each in of((), "ClusterRole") if each["metadata"]["name"] == "gpu-share-operator")
    assert {each.verb for each in rights_asked(OF_CERT_MANAGER) if not given(role["rules"], each)} == {"create"}


def test_operators_may_read_every_object_that_the_check_compares() -> None:
    role = next(each for each in of((), "ClusterRole") if each["metadata"]["name"] == "gpu-share-operator")
    for where in json.loads(helm.SHIPPED.read_text()):
        kind, name = where.split("/")[-2:]
        rules = [rule for rule in role["rules"] if kind in rule["resources"] and "get" in rule["verbs"]]
        assert any(name in rule.get("resourceNames", [name]) for rule in rules), where
