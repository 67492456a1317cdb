"""Which claim templates to create and delete."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reviews
from webhook import templates
from webhook.claims import template_for
from webhook.decide import decide
from webhook.namespace import NamespacePolicy
from webhook.settings import Settings
from webhook.templates import Books, Existing, Key, Wanted

HOUR = 3600.0


def managed(**metadata: Any) -> dict[str, Any]:
    """A pod as it is stored: rewritten, with a UID."""
    pod = dict(decide(reviews.pod(), policy=NamespacePolicy(), settings=Settings()).pod)
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
    item = templates.wanted(pod, template_for)

    assert item is not None
    assert item.body is not None
    assert item.key == ("team", name_in(pod))
    assert item.body["metadata"]["name"] == name_in(pod)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_wants_nothing(phase: str) -> None:
    assert templates.wanted({**managed(), "status": {"phase": phase}}, template_for) is None


def test_a_pod_without_our_label_wants_nothing() -> None:
    assert templates.wanted(managed(labels={}), template_for) is None


def test_a_name_that_the_content_does_not_give_is_never_created() -> None:
    pod = managed()
    pod["spec"] = {
        **pod["spec"],
        "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "gpu-share-ff"}],
    }

    assert templates.wanted(pod, template_for) == Wanted(key=("team", "gpu-share-ff"), body=None)


def test_a_template_of_another_name_is_none_of_ours() -> None:
    pod = managed()
    pod["spec"] = {**pod["spec"], "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "mine"}]}

    assert templates.wanted(pod, template_for) is None


@pytest.mark.parametrize(
    "foreign",
    [template(labels={}), template(labels=None), template("other-1"), template(labels={"gpu-share.io/managed": "no"})],
)
def test_what_is_not_ours_by_label_and_name_is_never_deleted(foreign: dict[str, Any]) -> None:
    assert templates.existing(foreign) is None


def test_ours_is_known_by_the_version_seen() -> None:
    assert templates.existing(template()) == Existing(key=("team", "gpu-share-1"), uid="t1", version="7")


def plan(books: Books, unused: dict[Key, float] | None = None, now: float = 0.0, team: str = "team") -> templates.Plan:
    return templates.plan(books, opted_in=team.__eq__, unused_since=unused or {}, now=now, retention=HOUR)


A: Key = ("team", "gpu-share-a")
B: Key = ("team", "gpu-share-b")


def want(key: Key) -> Wanted:
    return Wanted(key=key, body={"metadata": {"name": key[1]}})


def have(key: Key) -> Existing:
    return Existing(key=key, uid="u", version="1")


def test_creates_what_is_missing_once() -> None:
    books = Books(pods={"1": want(A), "2": want(A), "3": want(B)}, templates={B: have(B)})

    assert plan(books).create == (want(A),)


def test_creates_nothing_where_sharing_is_off() -> None:
    assert plan(Books(pods={"1": want(A)}), team="elsewhere").create == ()


def test_creates_nothing_that_has_no_content() -> None:
    assert plan(Books(pods={"1": Wanted(key=A, body=None)})).create == ()


def test_deletes_what_nobody_names_after_a_while() -> None:
    books = Books(templates={A: have(A)})

    first = plan(books, now=5.0)
    assert (first.delete, first.unused_since) == ((), {A: 5.0})
    assert plan(books, dict(first.unused_since), now=5.0 + HOUR - 1).delete == ()
    assert plan(books, dict(first.unused_since), now=5.0 + HOUR).delete == (have(A),)


def test_being_named_again_starts_the_wait_anew() -> None:
    used = plan(Books(pods={"1": want(A)}, templates={A: have(A)}), {A: 0.0}, now=HOUR)

    assert (used.delete, used.unused_since) == ((), {})


def test_a_template_with_a_broken_reference_is_in_use() -> None:
    assert plan(Books(pods={"1": Wanted(key=A, body=None)}, templates={A: have(A)}), {A: -HOUR}, now=HOUR).delete == ()


KEYS = st.tuples(st.sampled_from(["team", "other"]), st.sampled_from(["gpu-share-a", "gpu-share-b", "gpu-share-c"]))


@given(
    st.dictionaries(st.text(max_size=3), KEYS.map(want)), st.sets(KEYS), st.dictionaries(KEYS, st.floats(0, 2 * HOUR))
)
def test_never_deletes_what_is_named_nor_creates_what_is_there(
    pods: dict[str, Wanted], there: set[Key], unused: dict[Key, float]
) -> None:
    result = plan(Books(pods=pods, templates={key: have(key) for key in there}), unused, now=2 * HOUR)

    named = {item.key for item in pods.values()}
    assert {item.key for item in result.create} == {key for key in named - there if key[0] == "team"}
    assert {item.key for item in result.delete} <= there - named
    assert result.unused_since.keys() == there - named


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

    assert templates.asks_for({"spec": spec}, "gpu-share.io", template=False) is ours
    assert templates.asks_for({"spec": {"spec": spec}}, "gpu-share.io", template=True) is ours
    assert templates.asks_for({"spec": {"devices": None}}, "gpu-share.io", template=False) is False
