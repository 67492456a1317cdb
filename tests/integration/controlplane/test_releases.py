"""Two releases of the webhook at once behind one Service, as during an upgrade, and manifests of an earlier one."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from gpushare.namespace_policy import NamespacePolicy
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.second_webhook import second_webhook
from tests.support.sidecar_changes import DIGEST, sidecar
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

pytestmark = pytest.mark.controlplane
PODS: Final = 500
THREADS: Final = 12
FIRST: Final = "example.com/first-release"
OURS: Final = Settings()
NEXT: Final = Settings(
    image=f"registry.example/team/gpu-share:0.2.0@{DIGEST}",
    image_pull_policy="Always",
    sidecar_limits={"cpu": "300m", "memory": "192Mi"},
)
ENVIRONMENT: Final = {
    "GPU_SHARE_IMAGE": NEXT.image,
    "GPU_SHARE_IMAGE_PULL_POLICY": NEXT.image_pull_policy,
    "GPU_SHARE_SIDECAR_LIMITS": '{"cpu": "300m", "memory": "192Mi"}',
}
RELEASES: Final = {each.image: each for each in (OURS, NEXT)}


@pytest.fixture(name="upgrade")
def _upgrade(bed: Bed) -> Iterator[None]:
    """One replica of each release behind the Service, and none beside them."""
    bed.stop_webhooks()
    bed.replicas[1].extra = ENVIRONMENT
    bed.start_webhooks([0, 1])
    yield
    bed.stop_webhooks()
    bed.replicas[1].extra = {}
    bed.start_webhooks()


def third(pod: Object) -> Object:
    """A mutator after ours: the API server then calls ours again. Notes which release was called first."""
    if any(each["name"] == "gpu-share" for each in pod["spec"].get("initContainers", [])):
        pod["metadata"]["annotations"][FIRST] = sidecar(pod)["image"]
        sidecar(pod)["securityContext"]["appArmorProfile"] = {"type": "RuntimeDefault"}
    return pod


def meets(made: Object) -> tuple[str, str]:
    """Tell which release wrote a pod first and which last; the last one has nothing more to change."""
    release = RELEASES[sidecar(made)["image"]]
    assert mutate_pod(made, policy=NamespacePolicy(), settings=release).patch == []
    assert sidecar(made)["imagePullPolicy"] == (
        "Always" if NEXT.image in {release.image, first(made)} else "IfNotPresent"
    )
    assert sidecar(made)["resources"]["limits"] == release.sidecar_limits
    assert sidecar(made)["securityContext"]["appArmorProfile"] == {"type": "RuntimeDefault"}
    return first(made), release.image


def first(made: Object) -> str:
    return str(made["metadata"]["annotations"][FIRST])


@pytest.mark.usefixtures("upgrade")
def test_replicas_of_two_releases_admit_every_pod(bed: Bed) -> None:
    namespace = bed.namespace("upgrade")

    def create(number: int) -> Object:
        return bed.create(namespace, objects.pod(f"p-{number}", "1Gi"), dryRun="All")

    with (
        second_webhook(bed.cluster, "z-third", third, namespaces=[namespace]) as other,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        met = Counter(map(meets, pool.map(create, range(PODS))))
    assert (met.total(), len(other.seen), other.failures) == (PODS, PODS, [])
    assert min(met[each] for each in ((OURS.image, NEXT.image), (NEXT.image, OURS.image))) > PODS // 20, met


@pytest.mark.parametrize("image", ["gpu-share:0.0.9", f"old.example/gpu-share:0.0.9@{DIGEST}"])
def test_what_inject_of_another_release_wrote_is_admitted_and_renewed(bed: Bed, image: str) -> None:
    namespace = bed.namespace("injected")
    release = Settings(image=image, image_pull_policy="Never", tolerations=())
    injected = mutate_pod(objects.pod("a", "1Gi"), policy=NamespacePolicy(), settings=release).pod
    injected["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpu-share-0123456789abcdef"
    made = bed.create(namespace, dict(injected), dryRun="All")
    fresh = bed.create(namespace, objects.pod("a", "1Gi"), dryRun="All")
    assert sidecar(made) == sidecar(fresh)
    assert made["spec"]["resourceClaims"] == fresh["spec"]["resourceClaims"]
