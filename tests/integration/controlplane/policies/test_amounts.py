"""Where a ResourceQuota adds up amounts, a claim states all that it reserves, and the quota counts that."""

from functools import partial
from typing import Final

import pytest
import yaml

from gpushare import contract
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.namespace_policy import NamespacePolicy
from tests.integration.controlplane import objects
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import World, refusal, until
from tests.support.pages import blocks
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

pytestmark = pytest.mark.controlplane
MIB: Final = f"{contract.MEMORY_COUNT_CLASS}{contract.DEVICE_QUOTA}"
PERCENT: Final = f"{contract.COMPUTE_COUNT_CLASS}{contract.DEVICE_QUOTA}"
SIZE: Final = 2048
MISSING: Final = "states {} of its {} MiB"


def share(name: str = "main", mib: int | None = SIZE, compute: int = 0, **more: object) -> Object:
    """A request of a GPU of ours."""
    amounts = {"memory": f"{mib}Mi"} if mib else {}
    amounts |= {"compute": str(compute)} if compute else {}
    return {
        "name": name,
        "exactly": {"deviceClassName": contract.DEVICE_CLASS, "capacity": {"requests": amounts}, **more},
    }


def stated(*mib: int, percent: int = 0, name: str = "amounts") -> Object:
    """A request that states amounts beside the status device."""
    numbers = [*((contract.MEMORY_COUNT_CLASS, each) for each in mib), (contract.COMPUTE_COUNT_CLASS, percent)]
    counts = [
        {"name": f"count-{index}", "deviceClassName": each, "count": number}
        for index, (each, number) in enumerate(numbers)
        if number
    ]
    return {
        "name": name,
        "firstAvailable": [{"name": "status", "deviceClassName": contract.STATUS_DEVICE_CLASS}, *counts],
    }


@pytest.fixture(scope="module")
def counting(world: World) -> str:
    """A namespace whose quota adds up both amounts."""
    namespace = world.make_namespace({contract.NAMESPACE_LABEL: "true"})
    any_claims = {"metadata": {"annotations": {contract.OWN_CLAIMS: "any"}}}
    world.cluster.patch(path(CORE_V1, "namespaces", namespace), any_claims)
    quota = {"metadata": {"name": "total"}, "spec": {"hard": {MIB: "1000000", PERCENT: "1000"}}}
    world.cluster.create(path(CORE_V1, "resourcequotas", namespace=namespace), quota)
    until("the policy is in force", lambda: "adds up" in answer(world, namespace, "probe", share()))
    until("the quota counts", lambda: used(world, namespace) != {})
    return namespace


def answer(world: World, namespace: str, name: str, *requests: Object, dry: str = "All") -> str:
    """What the API server says to a claim; empty where it takes it."""
    where = path(RESOURCE_V1, "resourceclaims", namespace=namespace)
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}
    return refusal(partial(world.cluster.create, where, body, **({"dryRun": dry} if dry else {})))


def used(world: World, namespace: str) -> dict[str, str]:
    """What the quota has counted."""
    found = world.cluster.get(path(CORE_V1, "resourcequotas", "total", namespace))
    return dict(found.get("status", {}).get("used", {}))


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([share()], MISSING.format(0, SIZE)),
        ([share(), stated(SIZE)], ""),
        ([share(), stated(SIZE - 1)], MISSING.format(SIZE - 1, SIZE)),
        ([share(), stated(SIZE // 2, SIZE // 2)], MISSING.format(SIZE // 2, SIZE)),
        ([share(), stated(SIZE // 2), stated(SIZE // 2, name="rest")], ""),
        ([share("a"), share("b"), stated(SIZE)], MISSING.format(SIZE, 2 * SIZE)),
        ([share(count=2), stated(SIZE)], MISSING.format(SIZE, 2 * SIZE)),
        ([share(count=2), stated(2 * SIZE)], ""),
        ([share(capacity={"requests": {"memory": "4G"}}), stated(3814)], MISSING.format(3814, 3815)),
        ([share(mib=None), stated(SIZE)], "names no amount"),
        ([share(allocationMode="All"), stated(SIZE)], "names no amount"),
        ([share(compute=30), stated(SIZE)], "states 0 of its 30%"),
        ([share(compute=30), stated(SIZE, percent=30)], ""),
        ([{"name": "x", "firstAvailable": [share("y")["exactly"] | {"name": "y"}]}], MISSING.format(0, SIZE)),
        ([{"name": "x", "exactly": {"deviceClassName": "gpu.nvidia.com"}}], ""),
        ([{"name": "x", "exactly": {"deviceClassName": contract.STATUS_DEVICE_CLASS}}], ""),
        ([], ""),
    ],
)
def test_a_claim_states_what_it_reserves(world: World, counting: str, requests: list[Object], words: str) -> None:
    found = answer(world, counting, "asked", *requests)
    assert (words in found) if words else found == ""


def test_the_claims_of_the_webhook_state_it_and_the_quota_counts_it(world: World, counting: str) -> None:
    policy = NamespacePolicy(count_amounts=True)
    pod = objects.pod("p", "4Gi", **{contract.COMPUTE: "25%", contract.GPU_MODEL: "a100"})
    template = template_for(mutate_pod(pod, policy=policy, settings=Settings()).pod)
    assert template is not None
    requests = template["spec"]["spec"]["devices"]["requests"]
    assert answer(world, counting, "written", *requests, dry="") == ""
    assert used(world, counting) == {MIB: "4096", PERCENT: "25"}


def test_what_the_pages_say_works(world: World) -> None:
    """The quota of the page about capacity, and the claim of the page about claims."""
    documents = [each for block in blocks("yaml") for each in yaml.safe_load_all(block.text)]
    (quota,) = [each for each in documents if each.get("kind") == "ResourceQuota"]
    (claim,) = [each for each in documents if each.get("kind") == "ResourceClaim"]
    namespace = world.make_namespace({contract.NAMESPACE_LABEL: "true"})
    body = {"metadata": {"name": "total"}, "spec": quota["spec"]}
    world.cluster.create(path(CORE_V1, "resourcequotas", namespace=namespace), body)
    until("the quota counts", lambda: set(used(world, namespace)) == set(quota["spec"]["hard"]))
    assert answer(world, namespace, "by-hand", *claim["spec"]["devices"]["requests"], dry="") == ""
    found = used(world, namespace)
    assert (found[MIB], found[PERCENT]) == ("4096", "25")


def test_elsewhere_nothing_has_to_be_stated(world: World) -> None:
    assert answer(world, world.namespace, "free", share()) == ""
