"""Which reviews have the template of their pod made ahead."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import reviews
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.handler import AdmissionHandler
from webhook.mutation.settings import Settings
from webhook.serving import review


def admitted(call: str = "admitted", **request: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """What the controller of the claim templates takes of a review by one of its calls; what is denied raises."""
    taken: list[tuple[str, Mapping[str, Any]]] = []
    calls = {call: lambda *each: taken.append(each)}
    namespaces = NamespacePolicyCache()
    namespaces.replace([{"metadata": {"name": reviews.NAMESPACE, "resourceVersion": "1"}}])
    handler = AdmissionHandler(settings=Settings(), namespaces=namespaces, claims=KnownClaims(), **calls)
    handler(review.parse(reviews.encoded(request.pop("pod", reviews.pod()), **request)))
    return taken


def test_a_sharing_pod_that_is_created_goes_to_the_controller_as_mutated() -> None:
    ((namespace, pod),) = admitted()

    assert namespace == reviews.NAMESPACE
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith("gpu-share-")


def test_the_template_of_a_pod_that_comes_in_a_dry_run_is_tried_and_not_made() -> None:
    assert admitted("tried", dryRun=True) == admitted()
    assert (admitted("tried"), admitted(dryRun=True)) == ([], [])


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE", "oldObject": reviews.pod()},
        {"operation": "UPDATE", "oldObject": reviews.pod(), "subResource": "ephemeralcontainers"},
        {"operation": "CREATE", "subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"pod": {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main"}]}}},
        {"pod": {"spec": {"containers": [{"name": "main"}]}}},
    ],
)
def test_nothing_else_does(request_: dict[str, Any]) -> None:
    assert (admitted(**request_), admitted("tried", **request_ | {"dryRun": True})) == ([], [])
