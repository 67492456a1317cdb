"""The job that checks an installation, its account, and what operators may read for it."""

import json
from typing import Any

import pytest

from gpushare_cli.main import build_parser
from tests.support import helm
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


def test_the_check_reads_and_creates_nothing_but_pods_which_a_policy_keeps_to_dry_runs() -> None:
    hooks = check_hooks()
    writing = [rule for rule in hooks["ClusterRole"]["rules"] if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert writing == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    account = f"system:serviceaccount:{helm.SYSTEM}:gpu-share-check"
    assert account in hooks["ValidatingAdmissionPolicy"]["spec"]["matchConditions"][0]["expression"]


def test_operators_may_read_every_object_that_the_check_compares() -> None:
    role = next(each for each in of((), "ClusterRole") if each["metadata"]["name"] == "gpu-share-operator")
    for where in json.loads(helm.SHIPPED.read_text()):
        kind, name = where.split("/")[-2:]
        rules = [rule for rule in role["rules"] if kind in rule["resources"] and "get" in rule["verbs"]]
        assert any(name in rule.get("resourceNames", [name]) for rule in rules), where
