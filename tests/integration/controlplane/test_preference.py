"""What a real API server says to the preference about nodes that sharing pods may get."""

from typing import get_args

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from gpushare.namespace_policy import NamespacePolicy
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.objects import Object
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.node_affinity import SECTIONS
from webhook.mutation.settings import AcrossNodes, Settings

pytestmark = pytest.mark.controlplane


@pytest.fixture(name="namespace", scope="module")
def _namespace(bed: Bed) -> str:
    """Where our webhook is not called: what is sent is what it would have made."""
    return bed.namespace("preference", opted_in=False)


def stored(bed: Bed, namespace: str, across: AcrossNodes) -> tuple[Object, Object]:
    """A pod as we make it, and as the server would keep it."""
    pod = objects.pod("tts", "4Gi")
    pod["metadata"]["namespace"] = namespace
    made = dict(mutate_pod(pod, policy=NamespacePolicy(), settings=Settings(across_nodes=across)).pod)
    made["metadata"] = {**made["metadata"], "labels": {}}  # the label is for our webhook alone to give
    where = path(CORE_V1, "pods", namespace=namespace)
    return made, bed.cluster.create(where, made, dryRun="All")


@pytest.mark.parametrize("across", SECTIONS)
def test_it_is_taken_as_it_is_so_that_nothing_is_added_when_it_comes_back(
    bed: Bed, namespace: str, across: AcrossNodes
) -> None:
    made, kept = stored(bed, namespace, across)
    assert kept["spec"]["affinity"] == made["spec"]["affinity"]
    assert SECTIONS[across] in kept["spec"]["affinity"]
    again = mutate_pod(kept, policy=NamespacePolicy(), settings=Settings(across_nodes=across))
    assert [each for each in again.patch if "affinity" in each["path"]] == []


def test_a_quota_on_affinities_across_namespaces_counts_it(bed: Bed) -> None:
    namespace = bed.namespace("quota", opted_in=False)
    scope = {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}
    spec = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    quotas = path(CORE_V1, "resourcequotas", namespace=namespace)
    bed.cluster.create(quotas, {"metadata": {"name": "none"}, "spec": spec})
    allowed = dict.fromkeys(get_args(AcrossNodes), "none")

    def refused(across: AcrossNodes) -> bool:
        try:
            stored(bed, namespace, across)
        except ClusterError as error:
            allowed[across] = error.message
            return "exceeded quota" in error.message
        return False

    bed.until("the quota is in force", lambda: refused("binpack"))
    assert refused("spread"), allowed
    assert not refused("none"), allowed
