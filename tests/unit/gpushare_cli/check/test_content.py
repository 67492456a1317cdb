"""Shipped content is compared with what the API server holds, defaults aside."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare.version import installed
from gpushare_cli.check.installation import (
    POLICIES,
    ROLES,
    Installation,
    as_shipped,
    compared,
    difference,
    installation,
    shipped,
)
from tests.integration.controlplane import manifests
from tests.support import helm
from tests.unit.gpushare_cli.check.api import Api

OBJECTS = {manifests.where(each): each for each in manifests.load() if compared(each) is not None}
FOUND = Installation(namespace=helm.SYSTEM)


def test_what_is_shipped_is_what_the_chart_renders() -> None:
    helm.need()
    assert helm.SHIPPED.read_text() == helm.shipped(), "run make manifests"


def test_every_object_that_is_compared_is_shipped_and_equals_the_manifests() -> None:
    wanted = shipped(FOUND)
    assert wanted.keys() == OBJECTS.keys()
    assert [where for where, each in OBJECTS.items() if difference(wanted[where], compared(each) or {})] == []


def test_values_that_stand_in_policies_are_those_of_the_webhook() -> None:
    helm.need()
    options = ("--namespace=gpus", "--set=webhook.minMemory=1Gi,webhook.maxMemory=77Gi,tenantResize=true", "--no-hooks")
    rendered = {manifests.where(each): each for each in helm.objects(*options) if compared(each) is not None}
    deployments = [each for each in helm.objects(*options) if each["kind"] == "Deployment"]
    configuration = next(each for each in rendered.values() if each["kind"] == "MutatingWebhookConfiguration")
    found = installation(Api({"gpu-share": configuration, "deployments": deployments}))  # type: ignore[arg-type] # it only reads
    assert (found.namespace, found.version, found.replicas) == ("gpus", "0.1.0", 2)
    wanted = shipped(found)
    assert [where for where, each in rendered.items() if difference(wanted[where], compared(each) or {})] == []


def leaves(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all scalars, lists and maps below."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [found for key, each in items for found in [(*where, key), *leaves(each, (*where, key))]]


def at(value: Any, where: tuple[Any, ...]) -> Any:
    for key in where:
        value = value[key]
    return value


EDITS: dict[str, Callable[[Any, Any], object]] = {
    "removed": lambda parent, key: parent.pop(key),
    "changed": lambda parent, key: parent.__setitem__(key, "other"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_field_of_any_shipped_object_can_be_edited_without_a_difference(edit: str) -> None:
    wanted, missed = shipped(FOUND), []
    for where, item in OBJECTS.items():
        content = compared(item) or {}
        for path in leaves(content):
            changed = copy.deepcopy(content)
            EDITS[edit](at(changed, path[:-1]), path[-1])
            if difference(wanted[where], changed) is None and not defaulted(content, path, edit):
                missed.append((where, path))
    assert missed == []


def defaulted(content: Any, path: tuple[Any, ...], edit: str) -> bool:
    """Whether the API server itself writes that value where it is left out; then the server never leaves it out."""
    return edit == "removed" and path[-1] in {"matchPolicy", "failurePolicy", "port", "reinvocationPolicy", "scope"} | (
        {path[-1]} if at(content, path) in ("", [], {}) else set()
    )


@pytest.mark.parametrize("where", [each for each in OBJECTS if "serviceaccounts" not in each])
def test_an_added_field_is_a_difference_and_a_default_of_the_server_is_none(where: str) -> None:
    wanted, content = shipped(FOUND)[where], compared(OBJECTS[where]) or {}
    for extra, differs in (({"x": {"matchLabels": {"a": "b"}}}, True), ({"x": {}, "y": [], "z": ""}, False)):
        assert (difference(wanted, {**content, **extra}) is not None) == differs


def test_a_difference_names_the_field_and_shows_short_values() -> None:
    assert difference([{"a": [{"b": 1}]}], {"a": [{"b": 2}]}) == "a[0].b is '2', but the chart has '1'"
    assert difference([{"a": [1]}], {"a": [1, 2]}) == "a[1] is '2', but the chart does not set it"
    assert difference([{"a": [1, 2]}], {"a": [1]}) == "a[1] is missing, but the chart has '2'"
    assert difference([{"a": 1}], {}) == "a is missing, but the chart has '1'"
    assert difference([{}], {"a": "\x1b[31m"}) == "a is '\\x1b[31m', but the chart does not set it"
    long = difference([{"a": "x" * 500}], {"a": "y" * 500}) or ""
    assert len(long) < 200
    assert difference([{"a": 1}, {"a": 2}], {"a": 2}) is None, "either variant"


@pytest.mark.parametrize(
    ("mine", "theirs"), [("x" * 90 + "1", "x" * 90 + "2"), ("x" * 90, "x" * 95), ("x" * 9, "x" * 90)]
)
def test_values_that_differ_late_are_shown_where_they_differ(mine: str, theirs: str) -> None:
    found = (difference([{"a": mine}], {"a": theirs}) or "").removesuffix(" as shipped").removeprefix("a is ")
    live, _, shown = found.partition(", and ")
    assert live != shown


@pytest.mark.parametrize("changed", [{"internalTrafficPolicy": "Local"}, {"publishNotReadyAddresses": True}])
def test_a_service_is_compared_but_for_what_the_api_server_chooses(changed: dict[str, Any]) -> None:
    where = next(each for each in OBJECTS if each.endswith("services/gpu-share-webhook"))
    chosen = {
        "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "type": "ClusterIP",
    }  # fmt: skip
    live = {**OBJECTS[where], "spec": {**OBJECTS[where]["spec"], **chosen}}
    assert difference(shipped(FOUND)[where], compared(live) or {}) is None
    live["spec"].update(changed)
    assert next(iter(changed)) in (difference(shipped(FOUND)[where], compared(live) or {}) or "")


def test_the_bundle_is_not_compared() -> None:
    where = next(each for each in OBJECTS if "mutatingwebhook" in each)
    item = json.loads(json.dumps(OBJECTS[where]))
    item["webhooks"][0]["clientConfig"]["caBundle"] = "eA=="
    assert difference(shipped(FOUND)[where], compared(item) or {}) is None


class Release(Api):
    """A release of another version, without some of its objects, and a tenant's Deployment with its labels."""

    def __init__(self, *missing: str) -> None:
        super().__init__({})
        self.missing = missing

    def get(self, where: str) -> Any:
        if where in self.missing:
            raise ClusterError(f"GET {where}: 404", 404)
        return OBJECTS[where]

    def list(self, where: str, **_query: str) -> tuple[Any, str]:
        def made(name: str, version: str) -> dict[str, Any]:
            labels = {"app.kubernetes.io/version": version}
            return {"metadata": {"name": name, "namespace": where.split("/")[-2], "labels": labels}, "spec": {}}

        return [made("other", "9.9.9"), made("gpu-share-webhook", "0.0.1")], "1"


def test_the_release_is_where_the_webhook_configuration_says_and_no_label_of_a_tenant_changes_that() -> None:
    found = installation(Release())  # type: ignore[arg-type] # it only reads
    assert (found.namespace, found.version) == (FOUND.namespace, "0.0.1")


def test_of_another_release_a_missing_policy_and_a_changed_binding_are_wrong_all_the_same() -> None:
    assert as_shipped(Release(), POLICIES).level == "warning"  # type: ignore[arg-type] # it only reads
    policy = next(where for where in OBJECTS if "validatingadmissionpolicies/" in where)
    found = as_shipped(Release(policy), POLICIES)  # type: ignore[arg-type] # it only reads
    assert (found.level, "is missing" in found.detail) == ("wrong", True)


class Present(Release):
    """This release, with objects that somebody changed."""

    def __init__(self, *missing: str, changed: dict[str, Any]) -> None:
        super().__init__(*missing)
        self.changed = changed

    def get(self, where: str) -> Any:
        return self.changed.get(where) or super().get(where)

    def list(self, where: str, **_query: str) -> tuple[Any, str]:
        found, version = super().list(where)
        for each in found:
            each["metadata"]["labels"] = {"app.kubernetes.io/version": installed()}
        return found, version


def test_what_differs_is_made_again_because_applying_a_binding_only_adds_to_its_actions() -> None:
    where = next(each for each in OBJECTS if "policybindings/" in each)
    binding = json.loads(json.dumps(OBJECTS[where]))
    binding["spec"]["validationActions"] = ["Audit"]
    found = as_shipped(Present(changed={where: binding}), POLICIES)  # type: ignore[arg-type] # it only reads
    assert found.hint.startswith(f"kubectl delete -n {FOUND.namespace} {'/'.join(where.split('/')[-2:])}; then ")
    found = as_shipped(Present(where, changed={}), POLICIES)  # type: ignore[arg-type] # it only reads
    assert (found.level, "kubectl delete" in found.hint) == ("wrong", False), "there is none to delete"


def test_who_runs_with_a_deleted_account_is_started_again() -> None:
    where = {each.rpartition("/")[2]: each for each in OBJECTS if "serviceaccounts/" in each}
    found = as_shipped(Present(*where.values(), changed={}), ROLES)  # type: ignore[arg-type] # it only reads
    for each in ("daemonset/gpu-share-enforcer", "deployment/gpu-share-webhook", "deployment/gpu-share-certs"):
        assert each in found.hint.partition("rollout restart")[2]
    found = as_shipped(Present(where["gpu-share-webhook"], changed={}), ROLES)  # type: ignore[arg-type] # it only reads
    assert "enforcer" not in found.hint
