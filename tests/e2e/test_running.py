"""What a tenant gets: a Deployment and a Job on shares of one node's GPUs, with the right limits in the process."""

from http import HTTPStatus

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.site import APPS_V1, BATCH_V1, SYSTEM, Site, ready, restarts
from tests.support import reviews

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("serving")


def limits(env: dict[str, str]) -> tuple[str, str, str]:
    return (
        env[contract.CUDA_VISIBLE_DEVICES],
        env[contract.MPS_MEMORY_LIMIT],
        env.get(contract.MPS_THREAD_PERCENTAGE, "none"),
    )


def says_what_it_holds(site: Site, namespace: str, name: str) -> None:
    """Wait for that: ready means no more than that it was started."""
    site.until(f"{name} says it holds 2 GiB", lambda: '"usedMiB": 2048' in site.logs(namespace, name, pods.MAIN))


def test_three_replicas_run_each_with_its_gpu_and_its_limits_in_the_process(site: Site, namespace: str) -> None:
    source = pods.pod("chat", "hold", "2Gi", memory="3Gi", **{contract.COMPUTE: "25%"})
    site.apply(namespace, APPS_V1, "deployments", pods.deployment(source, 3))
    site.until("three replicas are ready", lambda: [ready(each) for each in site.pods(namespace)] == [True] * 3)
    for pod in site.pods(namespace):
        name = pod["metadata"]["name"]
        env = site.environ(namespace, name)
        assert limits(env) == (site.uuid_of(pod), "0=3072M", "25")
        assert env[contract.NVIDIA_VISIBLE_DEVICES] == site.uuid_of(pod)
        assert set(restarts(pod).values()) == {0}
        says_what_it_holds(site, namespace, name)


def test_what_they_hold_is_seen_and_attributed(site: Site, namespace: str) -> None:
    mine = {each["metadata"]["name"] for each in site.pods(namespace)}

    def seen() -> bool:
        rows = [row for row in site.status()["containers"] if row["pod"] in mine]
        return sorted(row["usedMib"] for row in rows) == [2048] * 3

    site.until("2 GiB of each replica are seen", seen)


def test_a_job_completes_with_its_sidecar(site: Site, namespace: str) -> None:
    source = pods.pod("embed", "hold", "1Gi", "--for", "3s", memory="2Gi")
    # A sidecar that has little of a processor takes longer to end with 0 than these tests' usual 2 s.
    source["spec"]["terminationGracePeriodSeconds"] = 30
    site.apply(namespace, BATCH_V1, "jobs", pods.job(source))
    where = path(BATCH_V1, "jobs", "embed", namespace)
    site.until("the job is complete", lambda: site.cluster.get(where)["status"].get("succeeded") == 1, 90)
    (pod,) = [each for each in site.pods(namespace) if each["metadata"]["name"].startswith("embed")]
    site.until(
        "its pod has ended", lambda: site.bed.pod(namespace, pod["metadata"]["name"])["status"]["phase"] == "Succeeded"
    )
    (sidecar,) = site.bed.pod(namespace, pod["metadata"]["name"])["status"]["initContainerStatuses"]
    assert sidecar["state"]["terminated"]["exitCode"] == 0


def test_the_image_has_no_setuid_program_and_no_module_named_example(site: Site) -> None:
    assert site.in_enforcer("find / -xdev -type f -perm /6000").split() == []
    assert site.in_enforcer("find / -xdev -name example.py").split() == []
    assert site.in_enforcer("find / -xdev -name pynvml.py").split() != [], "the search reaches the libraries"


def test_the_webhook_reads_a_namespace_that_its_watch_does_not_show(site: Site) -> None:
    """Such as one that was labelled a moment ago. A client of the port may name any: this one has not opted in.

    500 is the webhook's own answer; the API server says 503 of a Service that it cannot reach.
    """
    where = f"{path(CORE_V1, 'services', 'https:gpu-share-webhook:443', SYSTEM)}/proxy/mutate"
    with pytest.raises(ClusterError) as refused:
        site.cluster.create(where, reviews.review(reviews.pod(), namespace="kube-public"))
    assert refused.value.status == HTTPStatus.INTERNAL_SERVER_ERROR


def test_containers_that_asked_for_nothing_see_no_gpu(site: Site, namespace: str) -> None:
    body = pods.pod("pair", "hold", "1Gi", memory="1Gi")
    body["spec"]["containers"].append(pods.idle("front"))
    pod = site.run(namespace, body)
    assert site.environ(namespace, "pair")[contract.CUDA_VISIBLE_DEVICES] == site.uuid_of(pod)
    front = site.environ(namespace, "pair", "front")
    assert (front[contract.CUDA_VISIBLE_DEVICES], front[contract.NVIDIA_VISIBLE_DEVICES]) == ("", "void")


def test_a_plain_init_container_shares_the_request_of_an_app_container(site: Site, namespace: str) -> None:
    asked = {"memory.gpu-share.io/warm-up": "1Gi"}
    body = pods.pod("warm", "hold", "1Gi", memory="2Gi", **asked)
    body["spec"]["initContainers"] = [pods.container("hold", "512Mi", "--for", "1s", name="warm-up")]
    pod = site.run(namespace, body)
    assert limits(site.environ(namespace, "warm"))[1] == "0=2048M"
    done = next(each for each in pod["status"]["initContainerStatuses"] if each["name"] == "warm-up")
    assert done["state"]["terminated"]["exitCode"] == 0


def test_the_limit_prevents_what_the_program_asks_beyond_it(site: Site, namespace: str) -> None:
    site.create(namespace, {**pods.pod("honest", "hold", "1Gi", "--then", "5Gi", "--after", "1s", memory="2Gi")})

    def refused() -> bool:
        pod = site.bed.pod(namespace, "honest")
        return restarts(pod).get(pods.MAIN, 0) > 0

    site.until("its second allocation has failed", refused)
    # Its log may just be giving way to that of the next attempt.
    site.until("it says why", lambda: "out of memory" in site.logs(namespace, "honest", pods.MAIN, previous=True))
    assert not site.records(namespace, "honest"), "nobody had to be killed"


def test_a_claim_written_by_hand_is_a_share_too(site: Site, namespace: str) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "by-hand"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": contract.DEVICE_CLASS,
                            "capacity": {"requests": {"memory": "1Gi", "compute": "10"}},
                        },
                    }
                ]
            }
        },
    }
    site.apply(namespace, "/apis/resource.k8s.io/v1", "resourceclaims", claim)
    body = pods.pod("by-hand", "hold", "512Mi", memory=None)
    body["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "by-hand"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine", "request": "gpu"}]}
    site.run(namespace, body)
    env = site.environ(namespace, "by-hand")
    assert limits(env)[1:] == ("0=1024M", "10")
    assert env[contract.CUDA_VISIBLE_DEVICES] in {
        each["attributes"]["uuid"]["string"] for each in site.devices().values() if "uuid" in each["attributes"]
    }


def test_afterwards_nothing_is_left_of_them(site: Site, namespace: str) -> None:
    site.drop(namespace, wait=True)
    site.until("no claim is prepared", lambda: site.leftovers() == [])
