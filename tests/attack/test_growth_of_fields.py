"""No string that a tenant writes into an object costs its readers more than its length."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.resize import CurrentUsage, ResizeBounds, apply_resize
from enforcer.quota.from_claims import parse_policy
from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from tests.attack.doubling import RUNS, Run, seconds, too_steep
from tests.support import extent
from tests.unit.enforcer.dra.objects import NODE, claim, container, namespace, pod
from tests.unit.enforcer.dra.test_allocation import DEVICES
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

Json = dict[str, Any]
Place = tuple[Any, ...]
_UNITS = ("0", "a", " ", "/..", "a,", "0.", "\u00e9", ";id=1", "-", "A", "9", "/", ",", ".", "1g.", "ab", '"', "%")
UNITS = _UNITS[: extent.trials(8, len(_UNITS))]
"""What the values of pods and namespaces are made of."""
ENDS = ("!", "", "\n")[: extent.trials(1, 3)]
POLICY = NamespacePolicy(host_paths=("/data",), added_capabilities=("NET_ADMIN",))
SETTINGS = Settings(across_nodes="spread")


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Name the place of each string of an object."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for step, each in parts:
            yield from places(each, (*at, step))


def changed(value: Any, at: Place, text: str) -> Any:
    whole = copy.deepcopy(value)
    parent = whole
    for step in at[:-1]:
        parent = parent[step]
    parent[at[-1]] = text
    return whole


def steep(made: Callable[[Any, str], Run], where: Iterable[Any]) -> list[str]:
    """Return where a long text costs more than its length."""
    found = []
    for at, unit, end in product(where, UNITS, ENDS):

        def of_length(length: int, at: Any = at, unit: str = unit, end: str = end) -> Run:
            return made(at, unit * (length // len(unit)) + end)

        if too_steep(of_length):
            found.append(f"{at}: {unit!r} again and again, then {end!r}")
    return found


def steep_strings(value: Any, read: Callable[[Any], object]) -> list[str]:
    def made(at: Place, text: str) -> Run:
        whole = changed(value, at, text)
        return lambda: read(whole)

    return steep(made, places(value))


def steep_keys(fronts: Iterable[str], read: Callable[[str], object]) -> list[str]:
    def made(front: str, text: str) -> Run:
        return lambda: read(front + text)

    return steep(made, fronts)


def maximal(gpus: str = "0") -> Json:
    """A pod with every field that the webhook reads."""
    variables = {contract.NVIDIA_DRIVER_CAPABILITIES: "compute", contract.MPS_THREAD_PERCENTAGE: "50", "A": "b"}
    amounts = {"cpu": "1", "memory": "1Gi", contract.WHOLE_GPU: gpus}
    main = {
        "name": "main",
        "image": "registry.example/a:1",
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": amounts, "requests": dict(amounts), "claims": [{"name": "own", "request": "r"}]},
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    annotations = {
        contract.MEMORY: "4Gi",
        contract.COMPUTE: "25%",
        contract.GPU_MODEL: "H100,A100",
        contract.SAME_GPU: "true",
        contract.GPUS_OF + "main": "1",
        contract.MIG_PROFILE_OF + "cut": "1g.10gb",
        contract.MEMORY_OF + "first": "1Gi",
        contract.COMPUTE_OF + "first": "10%",
        contract.DEFAULT_CONTAINER: "main",
        contract.MIRROR: "x",
        "other.example/key": "value",
    }
    return {
        "metadata": {"name": "p", "namespace": "team", "labels": {"app": "a"}, "annotations": annotations},
        "spec": {
            "initContainers": [{"name": "first", "image": "a", "restartPolicy": "Always"}],
            "containers": [main, {"name": "cut", "image": "a"}],
            "runtimeClassName": "nvidia",
            "os": {"name": "linux"},
            "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
            "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
            "resourceClaims": [{"name": "own", "resourceClaimName": "c"}],
            "topologySpreadConstraints": [{"topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
        },
    }


def admitted(pod: Json) -> object:
    user = "system:node:n"
    return mutate_pod(pod, policy=POLICY, settings=SETTINGS, user=user, own_claims=frozenset({"claim/x"}))


def test_the_maximal_pod_is_admitted() -> None:
    assert mutate_pod(maximal(), policy=POLICY, settings=SETTINGS).patch


@pytest.mark.timeout(600)
def test_no_string_of_a_pod_costs_the_webhook_more_than_its_length() -> None:
    assert steep_strings(maximal(), admitted) == []


def test_no_key_of_a_pods_annotations_costs_more_than_its_length() -> None:
    def with_key(key: str) -> object:
        whole = maximal()
        whole["metadata"]["annotations"][key] = "1"
        return admitted(whole)

    fronts = ("", contract.MEMORY, contract.MEMORY_OF, contract.MEMORY_OF + "main", "cdi.k8s.io/")
    assert steep_keys(fronts, with_key) == []


def test_a_long_number_of_gpus_costs_as_much_as_a_short_one() -> None:
    """One pod of 60 kB kept a replica busy for half a minute."""
    short, long = maximal("1"), maximal("0" * 60_000 + "1")
    least = min(seconds(lambda: admitted(short)) for _ in range(RUNS))
    with pytest.raises(PolicyDenied, match="whole GPU") as error:
        admitted(long)
    assert all(len(str(problem)) < 200 for problem in error.value.problems)
    assert min(seconds(lambda: admitted(long)) for _ in range(RUNS)) < 100 * least


def test_no_string_costs_the_driver_more_than_its_length() -> None:
    main = container("main", volumeMounts=[{"name": "a", "mountPath": "/dev/shm"}])
    user = pod("p", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"}, main)
    policy = namespace({contract.ON_EXCEED: "warn", contract.TOLERANCE: "5%", contract.HOST_PATHS: "/data"})
    asked: Json = {"claim": claim(user), "pod": user, "namespace": policy}

    def read(each: Json) -> object:
        with suppress(KeyError, IndexError):  # of a claim, whose shape is the API server's
            return compute_limits(NODE, PrepareRequest(**each), DEVICES)
        return None

    assert compute_limits(NODE, PrepareRequest(**asked), DEVICES).limits
    assert steep_strings(asked, read) == []


def test_no_annotation_of_a_namespace_costs_more_than_its_length() -> None:
    annotations = {
        contract.DEFAULT_MEMORY: "1Gi",
        contract.DEFAULT_COMPUTE: "10%",
        contract.MAX_MEMORY: "4Gi",
        contract.MAX_COMPUTE: "50%",
        contract.ON_EXCEED: "warn",
        contract.GRACE_PERIOD: "5s",
        contract.TOLERANCE: "5%",
        contract.OWN_CLAIMS: "any",
        contract.HOST_PATHS: "/data,/scratch",
        contract.ALLOWED_CAPABILITIES: "compute,utility",
        contract.FRAMEWORKS: "jax,torch",
    }
    assert NamespacePolicy.from_annotations(annotations).any_claims
    assert steep_strings(annotations, NamespacePolicy.from_annotations) == []
    assert steep_strings(annotations, parse_policy) == []


def test_no_key_of_a_namespaces_annotations_costs_more_than_its_length() -> None:
    fronts = (contract.MAX_MEMORY, contract.DRIVER + "/")
    assert steep_keys(fronts, lambda key: NamespacePolicy.from_annotations({key: "1"})) == []


def test_no_resize_request_costs_more_than_its_length() -> None:
    user = pod("p", {contract.MEMORY: "4Gi"})
    before = compute_limits(NODE, PrepareRequest(claim(user), user, namespace()), DEVICES)
    now = CurrentUsage(used_mib=None, applies_immediately=True)

    def read(asked: Json) -> object:
        return apply_resize(before, asked["pod"], before.limits[0].container, asked["resize"], ResizeBounds(), now)

    assert steep_strings({"resize": "1Gi;force", "pod": user}, read) == []
