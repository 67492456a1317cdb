"""Limits that prevent, and the proof that they are in force, on the real node.

First under a simulated driver that limits cgroups, then under MPS: one agent each, every pod looked at every 5 s.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare.cluster import RESOURCE_V1, path
from gpushare.contract import LIMIT_IN_FORCE, MPS_MEMORY_LIMIT
from tests.realnode import pods
from tests.realnode.pods import Object
from tests.realnode.site import Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
PROOF = 5
NEWER, OLDER = "615.71.09", "570.86.15"
LATE = 120.0
UPGRADE = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --wait"


@contextmanager
def chart(site: Site, **values: object) -> Iterator[None]:
    """Have the chart set other values for a while; keys of the agent, or of the simulator as ``simulate_...``."""
    _set(site, values)
    try:
        yield
    finally:
        _set(site, {"proofSeconds": 30, "limitBackend": "auto", "simulate_driver": OLDER})


def _set(site: Site, values: dict[str, object]) -> None:
    names = {key: key.replace("_", ".") if "_" in key else f"agent.{key}" for key in values}
    site.shell(f"{UPGRADE} --set {','.join(f'{names[key]}={value}' for key, value in values.items())}")
    site.until("the agent is ready", site.agent_ready, LATE)


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("limited")
    yield name
    site.drop(name, wait=True)


@pytest.fixture(scope="module", params=["driver-cgroup", "mps-v2"])
def backend(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """Who keeps the limits: the driver where it can, MPS where the operator wants it."""
    wanted = "auto" if request.param == "driver-cgroup" else request.param
    with chart(site, simulate_driver=NEWER, proofSeconds=PROOF, limitBackend=wanted):
        site.until("the GPUs say so", lambda: keepers(site) == {request.param})
        yield request.param


def keepers(site: Site) -> set[str]:
    return {
        each["attributes"].get("limitBackend", {}).get("string", "")
        for each in site.devices().values()
        if "uuid" in each["attributes"]
    }


def entries(site: Site, namespace: str, name: str) -> list[Object]:
    """The entries of the GPUs in the status of a pod's claim."""
    found = site.cluster.list(path(RESOURCE_V1, "resourceclaims", namespace=namespace))[0]
    mine = [each for each in found if each["status"].get("reservedFor", [{}])[0].get("name") == name]
    return [device for each in mine for device in each["status"].get("devices", []) if "data" in device]


def conditions(site: Site, namespace: str, name: str) -> list[tuple[str, str]]:
    found = [each for entry in entries(site, namespace, name) for each in entry["conditions"]]
    return [(each["status"], each["reason"]) for each in found if each["type"] == LIMIT_IN_FORCE]


def with_environment(name: str, *change: str) -> Object:
    """A pod whose program is started with another environment than the container's."""
    body = pods.pod(name, "hold", "1Gi")
    main = body["spec"]["containers"][0]
    main["command"] = ["env", *change, *main["command"]]
    return body


def test_a_limit_is_in_force(site: Site, namespace: str, backend: str) -> None:
    name = f"well-{backend}"
    site.run(namespace, pods.pod(name, "hold", "1Gi"))
    site.until("its claim says so", lambda: conditions(site, namespace, name) == [("True", "InForce")], LATE)
    assert [each["data"]["limitBackend"] for each in entries(site, namespace, name)] == [backend]
    assert f"limit InForce: main ({backend})" in site.shell(f"gpu-share explain {namespace}/{name}")
    (row,) = [each for each in site.status()["containers"] if each["pod"] == name]
    assert (row["limit"]["state"], row["limit"]["backend"]) == ("InForce", backend)


def test_what_exceeds_the_limit_is_refused_and_nobody_is_ended(site: Site, namespace: str, backend: str) -> None:
    """Under the driver's limit it does not matter that MPS's does not bind this program."""
    name = f"greedy-{backend}"
    escapes = ["--over-limit"] if backend == "driver-cgroup" else []
    body = pods.pod(name, "hold", "1Gi", "--then", "6Gi", "--after", "20s", *escapes)
    body["spec"]["restartPolicy"] = "Never"
    site.create(namespace, body)
    site.until("it fails by itself", lambda: site.bed.pod(namespace, name)["status"]["phase"] == "Failed", LATE)
    (ended,) = [each for each in site.bed.pod(namespace, name)["status"]["containerStatuses"] if each["name"] == "main"]
    assert ended["state"]["terminated"]["exitCode"] == 1
    assert "CUDA error 2: out of memory" in site.logs(namespace, name, pods.MAIN)
    assert not site.records(namespace, name)
    site.delete(namespace, name)


@pytest.mark.parametrize(
    ("state", "change", "words"),
    [
        ("NotApplied", ("-u", MPS_MEMORY_LIMIT), "was started without its limit"),
        ("Escaped", (f"{MPS_MEMORY_LIMIT}=0=2048M,1=9000M",), "names a GPU it does not see"),
    ],
)
def test_a_limit_that_was_got_around_is_said_by_claim_event_and_explain(
    site: Site, namespace: str, backend: str, state: str, change: tuple[str, ...], words: str
) -> None:
    name = f"{state.lower()}-{backend}"
    site.run(namespace, with_environment(name, *change))
    began = time.monotonic()
    if backend == "driver-cgroup":  # whatever its environment says
        site.until("it is limited", lambda: conditions(site, namespace, name) == [("True", "InForce")], LATE)
    else:
        site.until("its claim says so", lambda: conditions(site, namespace, name) == [("False", state)], LATE)
        print(f"\n{state} was in the claim {time.monotonic() - began:.1f} s after the pod was ready (proof {PROOF} s)")
        site.until("an Event says so", lambda: words in site.events(namespace, name).get(state, ""))
        assert f"limit {state}: main (mps-v2): process" in site.shell(
            f"gpu-share explain {namespace}/{name}", check=False
        )
    assert restarts(site.bed.pod(namespace, name))[pods.MAIN] == 0, "nobody is ended for it"
    assert conditions(site, namespace, f"well-{backend}") == [("True", "InForce")]
    site.delete(namespace, name)
