"""Whatever claims and pods a tenant writes: what a container is told of a GPU is never more than its quota.

And a container that is told nothing sees no GPU. Claims come by every way: with the webhook's entry, written by hand,
and made by the scheduler for extended resources.
"""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import document
from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import PrepareError
from tests.support.quotas import of_containers
from tests.unit.enforcer.dra.objects import NODE, Object, allocated, by_hand, gpu, namespace
from tests.unit.enforcer.dra.test_allocation import DEVICES

CONTAINERS = ("init", "side", "main", "helper")
REQUESTS = ("one", "two")
AMOUNTS = st.sampled_from([512, 1024, 4096])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Object, Object]:
    containers: dict[str, dict[str, Any]] = {name: {"name": name, "image": "x"} for name in CONTAINERS}
    containers["side"]["restartPolicy"] = "Always"
    for name in CONTAINERS:
        containers[name] |= draw(st.fixed_dictionaries({"env": variables(), "resources": used().map(uses)}))
    entry = draw(st.sampled_from(["gpu", contract.CLAIM]))
    inits, apps = (containers["init"], containers["side"]), (containers["main"], containers["helper"])
    made: Any = by_hand("tenant", {entry: "mine"} if draw(st.booleans()) else {}, *apps, inits=inits)
    made["metadata"]["annotations"] = draw(annotations())
    made["status"] = draw(statuses())
    results = [gpu(each, draw(AMOUNTS), draw(st.sampled_from([0, 25]))) for each in REQUESTS[: draw(st.integers(1, 2))]]
    return made, allocated("mine", made, *results)


def used() -> st.SearchStrategy[list[dict[str, str]]]:
    entry = st.sampled_from(["gpu", contract.CLAIM])
    one = st.builds(lambda name, request: {"name": name} | ({"request": request} if request else {}),
                    entry, st.sampled_from([None, *REQUESTS, "none"]))  # fmt: skip
    return st.lists(one, max_size=2)


def uses(claims: list[dict[str, str]]) -> Object:
    return {"claims": claims}


def variables() -> st.SearchStrategy[list[dict[str, str]]]:
    mib = AMOUNTS.map(str)
    one = st.one_of(
        mib.map(lambda each: {"name": contract.MEMORY_MIB, "value": each}),
        mib.map(lambda each: {"name": contract.MPS_MEMORY_LIMIT, "value": f"0={each}M"}),
        st.just({"name": contract.CUDA_VISIBLE_DEVICES, "value": ""}),
    )
    return st.lists(one, max_size=3)


def annotations() -> st.SearchStrategy[dict[str, str]]:
    keys = st.sampled_from([contract.MEMORY, *(contract.MEMORY_OF + name for name in CONTAINERS)])
    return st.dictionaries(keys, AMOUNTS.map(lambda mib: f"{mib}Mi"), max_size=2)


def statuses() -> st.SearchStrategy[Object]:
    mapping = st.builds(
        lambda container, request: {"containerName": container, "resourceName": "x", "requestName": request},
        st.sampled_from([*CONTAINERS, "none"]), st.sampled_from([*REQUESTS, "none"]),
    )  # fmt: skip
    made = st.lists(mapping, max_size=2).map(
        lambda found: {"extendedResourceClaimStatus": {"resourceClaimName": "mine", "requestMappings": found}}
    )
    return st.one_of(st.just({}), made)


def given_by_the_kubelet(made: Any, claim: PreparedClaim) -> dict[str, dict[str, str]]:
    """The variables of each container's process: its own, and those of the CDI devices of the requests it uses."""
    shared = claim.shared_by(dict.fromkeys(claim.gpus, Mode.MPS))
    file = document(shared, {each.request: "/pipe" for each in shared.granted}, "/status")
    edits = {each["name"]: each["containerEdits"].get("env", []) for each in file["devices"]}
    mine = {each["name"] for each in made["spec"]["resourceClaims"]}
    mapped = made["status"].get("extendedResourceClaimStatus", {}).get("requestMappings", [])
    found: dict[str, dict[str, str]] = {}
    for raw in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        env = {each["name"]: each["value"] for each in raw["env"]}
        wanted = [each.get("request") for each in raw["resources"]["claims"] if each["name"] in mine]
        wanted += [each["requestName"] for each in mapped if each["containerName"] == raw["name"]]
        for request in dict.fromkeys(each.request for each in shared.granted):
            if request in wanted or None in wanted:
                env |= dict(line.split("=", 1) for line in edits[f"{claim.uid}-{request}"])
        found[raw["name"]] = env
    return found


@given(worlds())
def test_no_container_is_notified_more_than_its_quota_and_one_that_is_notified_nothing_sees_no_gpu(
    world: tuple[Any, Object],
) -> None:
    made, allocated = world
    try:
        claim = compute_limits(NODE, PrepareRequest(allocated, made, namespace()), DEVICES)
    except PrepareError:
        return
    check(made, claim)
    limits = claim.limits
    if len({each.request for each in limits}) == len(limits):  # others are resized only where they say so themselves
        check(made, replace(claim, limits=tuple(replace(each, memory_mib=each.memory_mib // 2) for each in limits)))


def check(made: Any, claim: PreparedClaim) -> None:
    """Compare the variables of the containers, of the claim as it was prepared or resized, with their quotas."""
    found = quotas_of_prepared([claim], [made], [namespace()], ())
    quotas = {each.container: each.memory_mib for each in of_containers(found)}
    for name, env in given_by_the_kubelet(made, claim).items():
        if env.get(contract.CUDA_VISIBLE_DEVICES):
            assert 0 < int(env[contract.MEMORY_MIB]) <= quotas[name]
            assert int(env[contract.MPS_MEMORY_LIMIT].removeprefix("0=").removesuffix("M")) <= quotas[name]
        else:
            assert quotas.get(name, 0) == 0
