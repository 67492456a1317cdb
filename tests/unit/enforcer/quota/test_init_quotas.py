"""Plain init containers may hold what the claim reserves for the apps that start after them, and no more."""

from typing import Any

import pytest

from enforcer.quota.from_claims import quotas_of
from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from tests.support.quotas import of_containers
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

DIGITS = "0123456789abcdef" * 4
SLICE = {
    "spec": {
        "driver": contract.DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}}}],
    }
}


def _pod(memory: dict[str, str], inits: tuple[str, ...], apps: tuple[str, ...]) -> Any:
    annotations = {f"{contract.MEMORY_OF}{name}": value for name, value in memory.items()}
    spec = {
        "initContainers": [{"name": name, "image": "i"} for name in inits],
        "containers": [{"name": name, "image": "i"} for name in apps],
    }
    pod = {"metadata": {"name": "p", "namespace": "x", "annotations": annotations}, "spec": spec}
    return dict(mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).pod)


def _placed(pod: Any) -> tuple[Any, Any]:
    """The pod and its claim as scheduler and kubelet leave them: each request served whole by the one GPU."""
    template = template_for(pod)
    assert template is not None
    requests = template["spec"]["spec"]["devices"]["requests"]
    results = [
        {
            "driver": contract.DRIVER,
            "pool": "n",
            "device": "gpu-0",
            "request": request["name"],
            "consumedCapacity": request["exactly"]["capacity"]["requests"],
        }
        for request in requests
        if "capacity" in request["exactly"]
    ]
    pod["metadata"]["uid"] = "u"
    pod["spec"]["nodeName"] = "n"
    pod["status"] = {"resourceClaimStatuses": [{"name": contract.CLAIM, "resourceClaimName": "c"}]}
    claim = {
        "metadata": {"name": "c", "namespace": "x", "uid": "cu"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "uid": "u"}],
        },
    }
    return pod, claim


@pytest.mark.parametrize(
    ("memory", "inits", "apps"),
    [
        ({"setup": "6Gi", "a": "4Gi", "b": "4Gi"}, ("setup",), ("a", "b")),
        ({"setup": "6Gi", "a": "4Gi"}, ("setup",), ("a",)),
        ({"one": "1Gi", "two": "9Gi", "a": "4Gi", "b": "1Gi"}, ("one", "two"), ("a", "b")),
        ({"setup": "2Gi"}, ("setup",), ("a",)),
    ],
)
def test_every_container_may_hold_what_it_was_admitted_with(
    memory: dict[str, str], inits: tuple[str, ...], apps: tuple[str, ...]
) -> None:
    pod, claim = _placed(_pod(memory, inits, apps))
    found = quotas_of("n", [claim], [pod], [], [SLICE])
    assert {quota.container: f"{quota.memory_mib // 1024}Gi" for quota in of_containers(found)} == memory


def test_an_init_container_cannot_hold_more_than_the_whole_claim() -> None:
    pod, claim = _placed(_pod({"setup": "6Gi", "a": "4Gi", "b": "4Gi"}, ("setup",), ("a", "b")))
    setup = next(each for each in pod["spec"]["initContainers"] if each["name"] == "setup")
    next(entry for entry in setup["env"] if entry["name"] == contract.MEMORY_MIB)["value"] = "81920"
    found = quotas_of("n", [claim], [pod], [], [SLICE])
    assert {quota.memory_mib for quota in found if quota.container == "setup"} == {8192}
