"""Who is told of what the watches see."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from gpushare.informer import Informer
from tests.unit.webhook.claim_templates.test_references import managed, template
from tests.unit.webhook.controlled import Clock, Server, make, settle
from tests.unit.webhook.test_caches import claim, namespace
from webhook import informers
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.main import unread
from webhook.metrics import Metrics

if TYPE_CHECKING:
    from gpushare.kube_client import KubeClient


class Seen:
    """Followers of nothing, whose lists and events come from the test."""

    def __init__(self) -> None:
        self.namespaces, self.claims, self.server = NamespacePolicyCache(), KnownClaims(), Server()
        self.controller = make(self.server, Clock(), Metrics(), listed=False, opted_in=self.namespaces.__contains__)
        made = informers.followers(cast("KubeClient", None), self.namespaces, self.claims, self.controller, Metrics())
        self.by_kind = {each._where.rpartition("/")[2]: each for each in made}

    def __getitem__(self, kind: str) -> Informer:
        return self.by_kind[kind]

    def listed(self, **lists: list[dict[str, Any]]) -> None:
        for kind in ("namespaces", "pods", "resourceclaimtemplates", "resourceclaims"):
            self[kind]._on_list(iter(lists.get(kind, [])))


@pytest.fixture(name="seen")
def _seen() -> Seen:
    return Seen()


def test_a_namespace_that_is_listed_late_gets_its_templates_then(seen: Seen) -> None:
    seen.listed(pods=[managed()])
    settle(seen.controller)
    assert seen.server.writes == []

    seen["namespaces"]._on_list(iter([namespace("team")]))
    settle(seen.controller)
    assert len(seen.server.stored) == 1


def test_a_namespace_that_comes_to_take_part_gets_its_templates_then(seen: Seen) -> None:
    seen.listed(pods=[managed()])
    seen["namespaces"]._on_event("ADDED", namespace("team"))
    settle(seen.controller)

    assert len(seen.server.stored) == 1


def test_templates_are_known_to_reviews_and_to_the_controller(seen: Seen) -> None:
    ours = template("gpu-share-1") | {"spec": claim("", template=True)["spec"]}
    seen.listed(resourceclaimtemplates=[ours])
    seen["resourceclaimtemplates"]._on_event("ADDED", claim("mine", template=True))

    assert seen.claims.synced
    assert seen.controller.synced
    assert [each in seen.claims.own("team") for each in ("template/gpu-share-1", "template/mine")] == [False, True]
    assert list(seen.controller._index.templates) == [("team", "gpu-share-1")]


def test_reviews_are_answered_as_soon_as_namespaces_claims_and_templates_are_listed(seen: Seen) -> None:
    found = [unread(seen.namespaces, seen.claims)]
    for kind in ("namespaces", "resourceclaims", "resourceclaimtemplates"):
        seen[kind]._on_list(iter(()))
        found.append(unread(seen.namespaces, seen.claims))
    assert found == [["namespaces", "claims and templates"], ["claims and templates"], ["claims and templates"], []]
    assert not seen.controller.synced, "pods are not listed yet"


def test_who_was_cut_off_tries_again_within_a_second_and_does_not_read_everything_again(seen: Seen) -> None:
    assert {(each.MAX_DELAY, each.RESUMES) for each in seen.by_kind.values()} == {(1.0, True)}
