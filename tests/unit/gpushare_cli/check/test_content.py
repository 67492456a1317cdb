"""Shipped content is compared with what the API server holds, defaults aside."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare_cli.check.content import compared, difference
from gpushare_cli.check.installation import Installation, installation, shipped
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
    webhook = (each for each in helm.objects(*options) if each["metadata"]["name"] == "gpu-share-webhook")
    container = next(each for each in webhook if each["kind"] == "Deployment")
    found = installation(Api({"deployments": [container]}))  # type: ignore[arg-type] # it only lists
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
    assert difference([{"a": [{"b": 1}]}], {"a": [{"b": 2}]}) == "a[0].b is '2', and '1' as shipped"
    assert difference([{"a": [1]}], {"a": [1, 2]}) == "a has 2 entries, and 1 as shipped"
    assert difference([{"a": 1}], {}) == "a is missing, and '1' as shipped"
    assert difference([{}], {"a": "\x1b[31m"}) == "a is '\\x1b[31m', and is not set as shipped"
    long = difference([{"a": "x" * 500}], {"a": "y" * 500}) or ""
    assert len(long) < 200
    assert difference([{"a": 1}, {"a": 2}], {"a": 2}) is None, "either variant"


def test_the_bundle_is_not_compared() -> None:
    where = next(each for each in OBJECTS if "mutatingwebhook" in each)
    item = json.loads(json.dumps(OBJECTS[where]))
    item["webhooks"][0]["clientConfig"]["caBundle"] = "eA=="
    assert difference(shipped(FOUND)[where], compared(item) or {}) is None
