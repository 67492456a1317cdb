"""Which reviews have the template of their pod made ahead."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import reviews
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.handler import AdmissionHandler
from webhook.mutation.settings import Settings
from webhook.serving import review


def admitted(**request: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """What the controller of the claim templates takes of a review; what is denied raises."""
    taken: list[tuple[str, Mapping[str, Any]]] = []
    namespaces = NamespacePolicyCache()
    namespaces.replace([{"metadata": {"name": reviews.NAMESPACE, "resourceVersion": "1"}}])
    handler = AdmissionHandler(
        settings=Settings(), namespaces=namespaces, claims=KnownClaims(), admitted=lambda *each: taken.append(each)
    )
    handler(review.parse(reviews.encoded(request.pop("pod", reviews.pod()), **request)))
    return taken


def test_a_sharing_pod_that_is_created_goes_to_the_controller_as_mutated() -> None:
    ((namespace, pod),) = admitted()

    assert namespace == reviews.NAMESPACE
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith("gpu-share-")


@pytest.mark.parametrize(
    "request_",
    [
        {"dryRun": True},
        {"operation": "UPDATE", "oldObject": reviews.pod()},
        {"operation": "UPDATE", "oldObject": reviews.pod(), "subResource": "ephemeralcontainers"},
        {"operation": "CREATE", "subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"pod": {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main"}]}}},
        {"pod": {"spec": {"containers": [{"name": "main"}]}}},
    ],
)
def test_nothing_else_does(request_: dict[str, Any]) -> None:
    assert admitted(**request_) == []
