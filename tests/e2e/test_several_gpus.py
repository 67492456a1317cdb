"""Containers on different GPUs of a real node, and one container on two: what each sees, and on which it is judged."""

from collections.abc import Iterator

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import Site, restarts
from tests.e2e.test_modes import UPGRADE, label, modes, tenants_away

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
SIDE = "side"
TOO_MUCH = ("--then", "14Gi", "--after", "4s", "--over-limit")
"""Of a GPU of 16 GiB."""
TWO = {contract.GPUS: "2"}


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("wide", **{contract.GRACE_PERIOD: "2s"})
    with tenants_away(site):
        yield name
    label(site, None)
    site.shell(f"{UPGRADE} webhook.severalGpus=auto")
    site.drop(name, wait=True)
    site.until("both GPUs are shared through MPS", lambda: list(modes(site).values()) == ["mps"] * 2, 120)
    site.run_block("verify")  # what uninstalling takes away again


def killed(site: Site, namespace: str, name: str) -> Object:
    """The record of the one kill there was in a pod."""
    first = site.record(namespace, name, "OUTCOME")
    done = [each for each in site.records(namespace, name) if each["kind"] == "OUTCOME"]
    assert {(each["gpu"], each["container"]) for each in done} == {(first["gpu"], first["container"])}
    return first


def uses(site: Site, name: str) -> set[tuple[str, str, int, int]]:
    """(container, GPU, MiB used, MiB of quota), as the node's enforcer sees a pod."""
    rows = [row for row in site.status()["containers"] if row["pod"] == name]
    return {(row["container"], row["gpu"], row["usedMib"], row["quotaMib"]) for row in rows if row["quotaMib"]}


def test_two_containers_on_different_gpus_see_one_each_and_are_evaluated_there(site: Site, namespace: str) -> None:
    asked = {contract.MEMORY_OF + SIDE: "9Gi", contract.SAME_GPU: "false"}
    body = pods.pod("apart", "hold", "1Gi", memory="9Gi", **asked)
    body["spec"]["containers"].append(pods.container("hold", "2Gi", *TOO_MUCH, name=SIDE))
    pod = site.run(namespace, body)
    gpus = {each: site.uuid_of(pod, each) for each in (pods.MAIN, SIDE)}
    assert len(set(gpus.values())) == 2
    for container, uuid in gpus.items():
        env = site.environ(namespace, "apart", container)
        assert (env[contract.CUDA_VISIBLE_DEVICES], env[contract.NVIDIA_VISIBLE_DEVICES]) == (uuid, uuid)
    site.until("the one over its quota is ended", lambda: restarts(site.bed.pod(namespace, "apart")).get(SIDE, 0) > 0)
    record = killed(site, namespace, "apart")
    assert (record["gpu"], record["container"]) == (gpus[SIDE], SIDE)
    assert restarts(site.bed.pod(namespace, "apart"))[pods.MAIN] == 0
    site.delete(namespace, "apart")


def test_where_gpus_are_shared_through_mps_two_for_one_container_are_refused_with_the_reason(
    site: Site, namespace: str
) -> None:
    with pytest.raises(ClusterError, match="a process can use only one MPS daemon, which serves one GPU"):
        site.bed.create(namespace, pods.pod("wide", "hold", "1Gi", **TWO))
    site.shell(f"{UPGRADE} webhook.severalGpus=allow")
    body = pods.pod("wide", "hold", "1Gi", memory="4Gi", **TWO, **{contract.COMPUTE: "30%"})
    # Process 1 holds memory of the first GPU; what it starts holds, and will take, memory of the second.
    other = f"gpu-share-tenant hold 2Gi --device 1 {' '.join(TOO_MUCH)}".replace("14Gi", "8Gi")
    body["spec"]["containers"][0]["command"] = ["sh", "-c", f"{other} & exec gpu-share-tenant hold 1Gi"]
    # A replica of before may still be asked for a moment, and refuses it.
    site.until("no replica of before refuses it", lambda: site.create(namespace, body))
    site.bed.wait_unschedulable(namespace, "wide")
    # It ends with 1 where a pod is not fine, which is what is asked about here.
    assert "gpu-share.io/mode: time-slicing" in site.shell(f"gpu-share explain {namespace}/wide || true")


def test_by_turns_one_container_has_a_share_of_each_of_two_gpus_and_is_evaluated_on_each(
    site: Site, namespace: str
) -> None:
    label(site, "time-slicing")
    site.until("both GPUs have changed", lambda: list(modes(site).values()) == ["time-slicing"] * 2, 90)
    site.running(namespace, "wide")
    env = site.environ(namespace, "wide")
    first, second = env[contract.CUDA_VISIBLE_DEVICES].split(",")
    offered = {each["attributes"]["uuid"]["string"] for each in site.devices().values() if "uuid" in each["attributes"]}
    assert {first, second} == offered
    assert (env[contract.GPUS_VARIABLE], env[contract.MEMORY_MIB], env[contract.MEMORY_FRACTION]) == (
        "2",
        "4096",
        "0.216186",
    )
    site.until(
        "it is seen on both",
        lambda: uses(site, "wide") >= {(pods.MAIN, first, 1024, 4096)} and len(uses(site, "wide")) == 2,
    )
    assert killed(site, namespace, "wide")["gpu"] == second
    site.until("no memory is in use there", lambda: (pods.MAIN, second, 0, 4096) in uses(site, "wide"))
    assert (pods.MAIN, first, 1024, 4096) in uses(site, "wide"), "what it holds of the first is within its quota there"
    assert set(restarts(site.bed.pod(namespace, "wide")).values()) == {0}
    # As above: it ends with 1.
    explained = site.shell(f"gpu-share explain {namespace}/wide || true")
    assert first in explained
    assert second in explained


def test_a_share_of_one_of_them_finds_what_is_left_there(site: Site, namespace: str) -> None:
    site.create(namespace, pods.pod("beyond", "hold", "1Gi", memory="13Gi"))
    assert "cannot allocate all claims" in site.bed.wait_unschedulable(namespace, "beyond")
    site.run(namespace, pods.pod("beside", "hold", "1Gi", memory="11Gi"))
    for name in ("wide", "beyond", "beside"):
        site.delete(namespace, name)
    site.until("no claim is prepared", lambda: site.leftovers() == [])
