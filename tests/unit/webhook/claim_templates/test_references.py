"""Which claim templates to create and delete."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.namespace_policy import NamespacePolicy
from tests.support import reviews
from webhook.claim_templates import references
from webhook.claim_templates.references import TemplateReference
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings
from webhook.mutation.template_content import content


def managed(**metadata: Any) -> dict[str, Any]:
    """A pod as it is stored: rewritten, with a UID."""
    pod = dict(mutate_pod(reviews.pod(), policy=NamespacePolicy(), settings=Settings()).pod)
    pod["metadata"] = {**pod["metadata"], "uid": "u1", **metadata}
    return pod


def name_in(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])


def template(name: str = "gpu-share-1", **metadata: Any) -> dict[str, Any]:
    labels = {"gpu-share.io/managed": "true"}
    base = {"name": name, "namespace": "team", "uid": "t1", "resourceVersion": "7", "labels": labels}
    return {"metadata": {**base, **metadata}}


def test_a_rewritten_pod_wants_the_template_it_names() -> None:
    pod = managed()
    item = references.wanted(pod)

    assert item is not None
    assert item.body is not None
    assert item.key == ("team", name_in(pod))
    assert item.body["metadata"]["name"] == name_in(pod)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_wants_nothing(phase: str) -> None:
    assert references.wanted({**managed(), "status": {"phase": phase}}) is None


def test_a_pod_without_our_label_wants_nothing() -> None:
    assert references.wanted(managed(labels={})) is None


def test_a_name_that_the_content_does_not_give_is_never_created() -> None:
    pod = managed()
    pod["spec"] = {
        **pod["spec"],
        "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "gpu-share-ff"}],
    }

    assert references.wanted(pod) == TemplateReference(key=("team", "gpu-share-ff"), body=None)


def test_a_template_of_another_name_is_none_of_ours() -> None:
    pod = managed()
    pod["spec"] = {**pod["spec"], "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "mine"}]}

    assert references.wanted(pod) is None


@pytest.mark.parametrize("labels", [{}, None, {"gpu-share.io/managed": "no"}])
def test_what_has_not_our_label_is_not_ours(labels: dict[str, str] | None) -> None:
    found = references.existing(template(labels=labels))

    assert found is not None
    assert not found.ours


def test_what_has_another_name_is_none_of_our_business() -> None:
    assert references.existing(template("other-1")) is None


def test_ours_is_known_by_the_version_seen() -> None:
    found = references.existing(template())

    assert found is not None
    assert (found.key, found.uid, found.version, found.ours) == (("team", "gpu-share-1"), "t1", "7", True)


def body_of() -> dict[str, Any]:
    made = template_for(managed())
    assert made is not None
    return made


def as_stored(body: dict[str, Any]) -> dict[str, Any]:
    """What the API server makes of it: what was left out is filled in, amounts are written its way."""
    stored: dict[str, Any] = json.loads(json.dumps(body))
    for each in stored["spec"]["spec"]["devices"]["requests"]:
        each["exactly"] |= {"allocationMode": "ExactCount", "count": 1}
    stored["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "4Gi"
    return stored


def test_a_template_says_the_same_as_written_and_as_stored() -> None:
    body = body_of()
    assert body["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] == "4096Mi"

    assert content(as_stored(body)) == content(body)


def _first(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["spec"]["devices"]["requests"][0]
    return found


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "less": lambda body: _first(body)["exactly"]["capacity"]["requests"].update(memory="1Mi"),
    "more of them": lambda body: _first(body)["exactly"].update(count=2),
    "all": lambda body: _first(body)["exactly"].update(allocationMode="All"),
    "by right of the administrator": lambda body: _first(body)["exactly"].update(adminAccess=True),
    "another class": lambda body: _first(body)["exactly"].update(deviceClassName="gpu.nvidia.com"),
    "another name": lambda body: _first(body).update(name="other"),
    "a model": lambda body: _first(body)["exactly"].update(selectors=[{"cel": {"expression": "false"}}]),
    "alternatives": lambda body: _first(body).update(firstAvailable=[_first(body).pop("exactly")]),
    "a constraint": lambda body: body["spec"]["spec"]["devices"].update(constraints=[{"matchAttribute": "a/b"}]),
    "another constraint": lambda body: body["spec"]["spec"]["devices"].update(
        constraints=[{"distinctAttribute": "a/b"}]
    ),
    "one request less": lambda body: body["spec"]["spec"]["devices"]["requests"].pop(),
    "nothing": lambda body: body.update(spec={"spec": {}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_template_that_asks_for_something_else_says_something_else(change: str) -> None:
    other = as_stored(body_of())
    CHANGES[change](other)

    assert content(other) != content(body_of())


@pytest.mark.parametrize(
    ("request_", "ours"),
    [
        ({"exactly": {"deviceClassName": "gpu-share.io"}}, True),
        ({"firstAvailable": [{"deviceClassName": "x"}, {"deviceClassName": "gpu-share.io"}]}, True),
        ({"exactly": {"deviceClassName": "gpu.nvidia.com"}}, False),
        ({"exactly": None, "firstAvailable": None}, False),
    ],
)
def test_knows_claims_of_our_class(request_: dict[str, Any], ours: object) -> None:
    spec = {"devices": {"requests": [request_]}}

    assert references.asks_for({"spec": spec}, "gpu-share.io", template=False) is ours
    assert references.asks_for({"spec": {"spec": spec}}, "gpu-share.io", template=True) is ours
    assert references.asks_for({"spec": {"devices": None}}, "gpu-share.io", template=False) is False
