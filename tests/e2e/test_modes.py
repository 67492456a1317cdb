"""Modes on a real node: by turns, MIG instances beside shares, and from one to the other with tenants running."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.site import Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
UPGRADE = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --wait --set"
LIMITS = (contract.MPS_MEMORY_LIMIT, contract.MPS_PIPE_DIRECTORY)


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("modes", **{contract.GRACE_PERIOD: "2s"})
    yield name
    label(site, None)
    site.drop(name, wait=True)
    site.until("both GPUs are shared through MPS", lambda: list(modes(site).values()) == ["mps"] * 2, 120)
    with tenants_away(site):
        site.run_block("verify")  # what uninstalling takes away again


def label(site: Site, mode: str | None) -> None:
    """Say how the node shares its GPUs; ``None``: as the chart says."""
    site.cluster.patch(
        path(CORE_V1, "nodes", site.node.name), {"metadata": {"labels": {contract.NODE_MODE: mode}}},
        "application/merge-patch+json",
    )  # fmt: skip


def modes(site: Site) -> dict[str, str]:
    """Device → how it is shared, of those that are offered."""
    found = {name: device.get("attributes", {}) for name, device in site.devices().items()}
    return {name: each["mode"]["string"] for name, each in found.items() if "mode" in each}


@contextmanager
def tenants_away(site: Site) -> Iterator[None]:
    """Without the tenant that the README leaves on the node: a GPU changes with its last one."""
    site.shell("kubectl delete namespace asr --ignore-not-found --wait")
    yield


def test_nobody_is_restarted_when_the_label_changes_there_and_back(site: Site, namespace: str) -> None:
    with tenants_away(site):
        first = site.run(namespace, pods.pod("first", "hold", "1Gi"))
    first_gpu, uuid = site.bed.gpus_of(first)[pods.MAIN], site.uuid_of(first)
    label(site, "time-slicing")
    site.until("the other GPU has changed, this one waits", lambda: list(modes(site).values()) == ["time-slicing"], 90)
    assert first_gpu not in modes(site)
    second = site.run(namespace, pods.pod("second", "hold", "1Gi"))
    assert site.uuid_of(second) != uuid
    assert contract.MPS_MEMORY_LIMIT in site.environ(namespace, "first")
    label(site, None)
    site.until("the first is offered again", lambda: modes(site) == {first_gpu: "mps"}, 90)
    third = site.run(namespace, pods.pod("third", "hold", "1Gi"))
    assert site.bed.gpus_of(third)[pods.MAIN] == first_gpu
    for name in ("first", "second", "third"):
        assert set(restarts(site.running(namespace, name)).values()) == {0}, name
    site.delete(namespace, "second")
    site.until("its GPU has changed back", lambda: set(modes(site).values()) == {"mps"} and len(modes(site)) == 2, 90)
    for name in ("first", "third"):
        site.delete(namespace, name)


def test_a_mistyped_label_offers_no_gpu_and_is_reported(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("there", "hold", "1Gi"))
    label(site, "time-sliced")
    site.until("nothing is offered", lambda: not modes(site), 60)
    # The check exits with 1 because of this very label. It reads the status, which the enforcer writes once a poll.
    check = "gpu-share check --node || true"
    site.until("the check names the value", lambda: "'time-sliced' is not a mode" in site.in_enforcer(check), 30)
    events = "kubectl get events -A --field-selector involvedObject.kind=Node,reason=ModeUnknown"
    site.until("an Event on the node names the value", lambda: "time-sliced" in site.shell(events), 60)
    assert set(restarts(site.running(namespace, "there")).values()) == {0}
    label(site, None)
    site.until("both are offered again", lambda: len(modes(site)) == 2, 60)
    site.delete(namespace, "there")


def test_by_turns_a_tenant_runs_without_mps_and_is_ended_over_its_quota(site: Site, namespace: str) -> None:
    label(site, "time-slicing")
    site.until("both GPUs have changed", lambda: list(modes(site).values()) == ["time-slicing"] * 2, 90)
    site.run(namespace, pods.pod("modest", "hold", "2Gi", **{contract.COMPUTE: "25%"}))
    edits = site.environ(namespace, "modest")
    assert edits[contract.CUDA_VISIBLE_DEVICES].startswith("GPU-")
    site.run(namespace, pods.pod("greedy", *GREEDY))
    site.until("it is ended", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0)
    outcome = site.record(namespace, "greedy", "OUTCOME")
    assert "terminate_client" not in outcome["targets"][0]["steps"]
    assert set(restarts(site.bed.pod(namespace, "modest")).values()) == {0}
    for name in ("greedy", "modest"):
        site.delete(namespace, name)
    label(site, None)
    site.until("both GPUs have changed back", lambda: list(modes(site).values()) == ["mps"] * 2, 90)


@contextmanager
def instances(site: Site, *profiles: str) -> Iterator[None]:
    """Have the last GPU cut into MIG instances for a while. Its driver starts anew with it, as a reset demands."""
    site.shell(f"{UPGRADE} 'simulate.mig={{{','.join(profiles)}}}' --set enforcer.mode=mig")
    try:
        yield
    finally:
        site.shell(f"{UPGRADE} enforcer.mode=mps --set-json 'simulate.mig=[]'")


def test_a_mig_instance_has_one_user_beside_shares_on_another_gpu(site: Site, namespace: str) -> None:
    with instances(site, "1g.4gb", "1g.4gb"):
        site.until("GPU and instances are offered", lambda: sorted(modes(site).values()) == ["mig", "mig", "mps"], 120)
        site.run(namespace, pods.pod("shares", "hold", "1Gi"))
        cut = pods.pod("instance", "hold", "3Gi", memory=None, **{contract.MIG_PROFILE: "1g.4gb"})
        site.run(namespace, cut)
        site.run(namespace, pods.pod("other", "hold", "3Gi", memory=None, **{contract.MIG_PROFILE: "1g.4gb"}))
        found = [site.environ(namespace, name)[contract.CUDA_VISIBLE_DEVICES] for name in ("instance", "other")]
        assert all(uuid.startswith("MIG-") for uuid in found)
        assert len(set(found)) == 2
        env = site.environ(namespace, "instance")
        assert (env[contract.MEMORY_MIB], env[contract.NVIDIA_VISIBLE_DEVICES]) == ("3968", found[0])
        assert not [name for name in LIMITS if name in env]
        assert site.environ(namespace, "shares")[contract.CUDA_VISIBLE_DEVICES].startswith("GPU-")
        site.until(
            "what it holds is seen on its instance",
            lambda: (
                {(row["gpu"], row["usedMib"], row["quotaMib"]) for row in site.status()["containers"]}
                >= {(uuid, 3072, 3968) for uuid in found}
            ),
        )
        site.create(namespace, pods.pod("third", "hold", "3Gi", memory=None, **{contract.MIG_PROFILE: "1g.4gb"}))
        for name in ("shares", "instance", "other"):
            assert set(restarts(site.running(namespace, name)).values()) == {0}
        assert not site.bed.pod(namespace, "third")["spec"].get("nodeName"), "both instances have their user"
        for name in ("shares", "instance", "other", "third"):
            site.delete(namespace, name)
