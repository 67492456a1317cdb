"""Other ways to a GPU than the annotation, on a real node: nobody is killed under a quota that nobody announced."""

import time
from functools import partial
from typing import Final

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.quantity import parse_memory
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import Site, restarts
from tests.integration.controlplane.bed import PODS

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
IMPLICIT: Final = {"limits": {f"{contract.IMPLICIT_RESOURCE}{contract.DEVICE_CLASS}": "1"}}
LONGER_THAN_A_GRACE_PERIOD: Final = 9.0


def by_extended_resource(name: str, *program: str) -> Object:
    body = pods.pod(name, *program, memory=None)
    body["spec"]["containers"][0]["resources"] = IMPLICIT
    return body


def with_claim(site: Site, namespace: str, name: str, *program: str, memory: str = "1Gi") -> Object:
    """Make a claim by hand; return a pod that uses it."""
    exactly = {"deviceClassName": contract.DEVICE_CLASS, "capacity": {"requests": {"memory": memory}}}
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    site.apply(namespace, RESOURCE_V1, "resourceclaims", claim)
    body = pods.pod(name, *program, memory=None)
    body["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": name}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    return body


def quota_of(site: Site, name: str) -> int:
    rows = [row for row in site.status()["containers"] if row["pod"] == name and row["container"] == pods.MAIN]
    return max((row["quotaMib"] for row in rows), default=-1)


def test_who_may_take_a_whole_gpu_has_all_of_it_as_its_quota_and_lives(site: Site) -> None:
    """On the release before, its quota was 0: it was told of 15 GiB and killed after 5.5 s for using 600 MiB."""
    namespace = site.namespace("whole", **{contract.OWN_CLAIMS: "any"})
    pod = site.run(namespace, by_extended_resource("all", "hold", "600Mi"))
    environ = site.environ(namespace, "all")
    assert int(environ[contract.MEMORY_MIB]) > 4096
    site.until(
        "its quota is what its variable says", lambda: quota_of(site, "all") == int(environ[contract.MEMORY_MIB])
    )
    extended = site.cluster.get(path(CORE_V1, PODS, "all", namespace))["status"]["extendedResourceClaimStatus"]
    explained = site.shell(f"gpu-share explain {namespace}/all", check=False)
    assert pods.MAIN in explained
    assert "has no share" not in explained
    site.until("it holds memory", lambda: '"usedMiB": 600' in site.logs(namespace, "all", pods.MAIN))
    time.sleep(LONGER_THAN_A_GRACE_PERIOD)
    assert restarts(site.bed.pod(namespace, "all")) == restarts(pod)
    assert site.records(namespace, "all") == []
    site.delete(namespace, "all")
    claim = path(RESOURCE_V1, "resourceclaims", extended["resourceClaimName"], namespace)
    site.until("the scheduler's claim is gone", lambda: site.bed.find(claim) is None)


def test_a_pod_with_a_way_around_its_share_gets_no_gpu_by_a_claim_of_its_own(site: Site) -> None:
    namespace = site.namespace("around")
    body = with_claim(site, namespace, "hosted", "hold", "600Mi")
    body["spec"] |= {"hostPID": True}
    site.create(namespace, body)
    site.until("the kubelet says why", lambda: "hostPID" in str(site.events(namespace, "hosted")))
    site.until("the pod is evicted", lambda: site.bed.find(path(CORE_V1, PODS, "hosted", namespace)) is None)
    claim = path(RESOURCE_V1, "resourceclaims", "hosted", namespace)
    site.until("nothing stays reserved", lambda: "allocation" not in site.cluster.get(claim).get("status", {}))
    site.drop(namespace, wait=True)  # its claim, too: an uninstallation waits for claims of no pod


def offered_mib(site: Site) -> int:
    """What the node's GPUs have for shares."""
    slices, _ = site.cluster.list(path(RESOURCE_V1, "resourceslices"))
    devices = [each for item in slices for each in item["spec"].get("devices") or [] if "capacity" in each]
    amounts = [each["capacity"]["memory"]["value"] for each in devices if "memory" in each["capacity"]]
    return sum(parse_memory(each) for each in amounts)


def test_claims_withdrawn_under_their_pods_keep_their_memory_off_the_offer(site: Site) -> None:
    """One is deleted, the pod of the other is called ended. Administrators pass the policies; the node needs none."""
    namespace = site.namespace("withdrawn")
    before, names = offered_mib(site), ("deleted", "ended")
    for name in names:
        site.run(namespace, with_claim(site, namespace, name, "hold", "512Mi"))
    deleted, ended = [path(RESOURCE_V1, "resourceclaims", name, namespace) for name in names]
    site.cluster.delete(deleted)
    site.cluster.patch(deleted, {"metadata": {"finalizers": None}})
    status = f"{path(CORE_V1, PODS, 'ended', namespace)}/status"
    site.cluster.patch(status, {"status": {"phase": "Succeeded"}})
    site.until("one claim is gone", lambda: site.bed.find(deleted) is None)
    site.until("the other is free", lambda: "allocation" not in site.cluster.get(ended).get("status", {}))
    # Once a minute the kubelet undoes the claims of pods that have ended; it writes the true phase only after seconds.
    site.cluster.patch(status, {"status": {"phase": "Running"}})
    site.until("their memory is off the offer", lambda: offered_mib(site) == before - 2048, 90)
    assert [quota_of(site, name) for name in names] == [1024, 1024]
    for name in names:
        site.delete(namespace, name)
    site.until("their memory is on offer again", lambda: offered_mib(site) == before, 90)
    site.drop(namespace)


def test_after_an_opt_out_tenants_run_on_and_end_as_ever(site: Site) -> None:
    namespace = site.namespace("out")
    site.run(namespace, pods.pod("share", "hold", "1Gi"))
    site.run(namespace, with_claim(site, namespace, "own", "hold", "512Mi"))
    where = path(CORE_V1, "namespaces", namespace)
    site.cluster.patch(where, {"metadata": {"labels": {contract.NAMESPACE_LABEL: None}}})
    site.until("both keep their quotas", lambda: (quota_of(site, "share"), quota_of(site, "own")) == (2048, 1024))
    for name in ("share", "own"):
        site.end_main(namespace, name)
        site.until(f"{name} starts again", partial(_restarted, site, namespace, name), 120)
    with pytest.raises(ClusterError, match="has not opted in"):
        site.apply(namespace, RESOURCE_V1, "resourceclaims", claim_of_another())
    for name in ("share", "own"):
        site.delete(namespace, name)
    site.cluster.delete(where)
    site.until("the namespace is gone", lambda: site.bed.find(where) is None, 120)
    assert site.leftovers() == []


def _restarted(site: Site, namespace: str, name: str) -> bool:
    return restarts(site.bed.pod(namespace, name))[pods.MAIN] == 1


def claim_of_another() -> Object:
    exactly = {"deviceClassName": contract.DEVICE_CLASS, "capacity": {"requests": {"memory": "1Gi"}}}
    return {"metadata": {"name": "more"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
