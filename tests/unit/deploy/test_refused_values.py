"""Values that are none, and those that contradict each other, are refused by name; those at the edge are taken."""

import re

import pytest

from tests.support import helm

pytestmark = pytest.mark.controlplane  # they need helm, which make integration brings


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    helm.need()


@pytest.mark.parametrize(
    ("set_", "said"),
    [
        ("enforcer.pol=1", "additional properties 'pol' not allowed"),
        ("webook.replicas=3", "additional properties 'webook' not allowed"),
        ("simulate=true", "/simulate"),
        ("webhook.replicas=0", "/webhook/replicas"),
        ("webhook.minMemory=512", "/webhook/minMemory"),
        ("webhook.rootTenants=maybe", "/webhook/rootTenants"),
        ("enforcer.pollSeconds=0", "/enforcer/poll"),
        ("enforcer.resources.limit.cpu=1", "additional properties 'limit' not allowed"),
        ("sidecar.resources.requests.cpu=10 m", "/sidecar/resources/requests/cpu"),
        ("image.digest=latest", "/image/digest"),
        ("enforcer.memoryReserve=512", "/enforcer/memoryReserve"),
        ("mps.sharedMemory=host", "/mps/sharedMemory"),
        ("mps.sharedMemorySize=1024", "/mps/sharedMemorySize"),
        ("mps.sharedMemorySize=100%", "/mps/sharedMemorySize"),
        ("stateDir=var/lib/x", "/stateDir"),
        ("runDir=/a/path/that/is/much/too/long/for/a/socket", "/runDir"),
        ("certs.leafDays=31", "/certs/leafDays"),
        ("certs.caDays=20", "less than twice certs.leafDays"),
        ("webhook.minAvailable=2", "no node could be drained"),
        ("webhook.rollingUpdate.maxSurge=0", "no replica could be replaced"),
        ("webhook.maxMemory=256Mi", "webhook.maxMemory is 256Mi, less than webhook.minMemory (512Mi)"),
        ("webhook.resources.limits.memory=0.1Gi", "webhook.resources.limits.memory is 0.1Gi, less than the request"),
        ("certs.resources.limits.cpu=5m", "certs.resources.limits.cpu is 5m, less than the request (10m)"),
        ("mps.resources.requests.memory=9Gi", "mps.resources.limits.memory is 8Gi, less than the request (9Gi)"),
        ("image.repository=Tools/gpu-share", '"Tools/gpu-share:0.1.0" is not an image reference'),
        ("image.repository=tools/gpu-share:1", "is not an image reference"),
        ("global.imageRegistry=https://registry.example.org", "without https://"),
        ("simulate.image.tag=a/b", "simulate.image.tag"),
        ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name is set by the chart"),
    ],
)
def test_a_typo_or_a_senseless_value_is_refused_by_name(set_: str, said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        helm.template(f"--set={set_}")


@pytest.mark.parametrize(
    "set_",
    [
        "image.repository=registry.example.org:5000/tools/gpu-share",
        "image.registry=localhost:5000,image.tag=v1.2_3",
        "webhook.maxMemory=0.5Gi",
        "webhook.resources.limits.memory=128Mi",
        "webhook.rollingUpdate.maxSurge=0,webhook.rollingUpdate.maxUnavailable=1",
    ],
)
def test_values_that_fit_just_so_are_taken(set_: str) -> None:
    assert helm.template(f"--set={set_}")


def test_values_that_contradict_each_other_are_named_all_at_once() -> None:
    with pytest.raises(helm.HelmError) as refused:
        helm.template("--set=certs.caDays=20,webhook.minAvailable=2,webhook.clientName=x", "--namespace=kube-system")
    for name in ("certs.caDays", "webhook.minAvailable", "webhook.clientName", "kube-system", "helm show values"):
        assert name in str(refused.value)
