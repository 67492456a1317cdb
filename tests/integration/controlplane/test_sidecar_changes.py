"""What becomes of a pod when a second webhook, after ours, changes the sidecar: the table, on a real API server."""

from collections.abc import Iterator

import pytest

from gpushare.errors import ClusterError
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.second_webhook import second_webhook
from tests.support.sidecar_changes import ADMITTED, BY_NAME, REFUSED, VOLUMES, Change, sidecar

pytestmark = pytest.mark.controlplane
CHANGE = "example.com/change"


@pytest.fixture(name="namespace", scope="module")
def _namespace(bed: Bed) -> Iterator[str]:
    """A namespace with a policy engine that makes to each pod the change that the pod names."""
    namespace = bed.namespace("hardened")
    with second_webhook(bed.cluster, "z-policies", changed, namespaces=[namespace]):
        yield namespace


def changed(pod: Object) -> Object:
    change = BY_NAME.get(pod["metadata"].get("annotations", {}).get(CHANGE))
    return change.apply(pod) if change else pod


def created(bed: Bed, namespace: str, change: Change) -> Object:
    """A sharing pod, as the API server would store it after all webhooks and policies."""
    body = objects.pod("a", "1Gi", **{CHANGE: change.name})
    body["spec"]["volumes"] = [*VOLUMES]
    return bed.create(namespace, body, dryRun="All")


@pytest.mark.parametrize("change", ADMITTED, ids=lambda each: each.name)
def test_a_harmless_change_stays(bed: Bed, namespace: str, change: Change) -> None:
    made = created(bed, namespace, change)
    assert change.stands(made)
    assert sidecar(made)["restartPolicy"] == "Always"
    assert sidecar(made)["resources"]["claims"] == [{"name": "gpu-share", "request": "gpu-share"}]


@pytest.mark.parametrize("change", REFUSED, ids=lambda each: each.name)
def test_a_harmful_change_is_refused_with_its_field_and_the_way_out(bed: Bed, namespace: str, change: Change) -> None:
    with pytest.raises(ClusterError, match="another webhook") as refused:
        created(bed, namespace, change)
    assert refused.value.status == 403
    assert change.refused in refused.value.message
