"""Limits that prevent, and the proof that they are in force, on the real node.

First under a simulated driver that limits cgroups, then under MPS, then under MPS with a shared memory:
one enforcer each, every pod looked at every 5 s.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from gpushare.contract import FREE_FRACTION, LIMIT_IN_FORCE, MEMORY_FRACTION, MEMORY_OF, MPS_MEMORY_LIMIT, USABLE_MIB
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.memory_fraction import fraction
from tests.e2e import pinned, pods
from tests.e2e.pods import Object
from tests.e2e.site import NAME, RUN, STATE, SYSTEM, Site, restarts
from tests.fakes.gpu.node import DRIVER

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
PROOF = 5
NEWER, OLDER = "615.71.09", "570.86.15"
LATE = 120.0
BEFORE = (
    f"simulate.driver={DRIVER}", "simulate.privileged=false",
    "enforcer.limitVerificationSeconds=30", "enforcer.limitBackend=auto",
    "mps.checkSeconds=30", "mps.sharedMemorySize=50%",
)  # fmt: skip
SHARED_MEMORY = (
    f"simulate.driver={OLDER}", "simulate.privileged=true",
    f"enforcer.limitVerificationSeconds={PROOF}", "enforcer.limitBackend=mps-v2",
    f"mps.checkSeconds={pinned.LOOKS}", "mps.sharedMemorySize=64Mi",
)  # fmt: skip
JAX = "XLA_PYTHON_CLIENT_PREALLOCATE"
MEMORY = f"{RUN}/shm"
WORLD = "simulator/state/world"
ROOT = {"runAsUser": 0, "runAsNonRoot": False}
IN_IT = "import os; open('/dev/shm/seen', 'w'); at = os.statvfs('/dev/shm'); print(at.f_blocks * at.f_frsize >> 20)"
UPGRADE = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values"
"""Without ``--wait``: helm would wait for MPS pods that are replaced on purpose alone."""
ROLLOUT = "kubectl -n gpu-share-system rollout status daemonset/gpu-share-enforcer --timeout=3m"
REPLACE = f"kubectl -n gpu-share-system delete pod -l {NAME}=gpu-share-mps"


Have = Callable[..., None]


@pytest.fixture(scope="module", name="have")
def _have(site: Site) -> Iterator[Have]:
    """Has the chart set these values and no others; at the end all is as before, and nothing stays mounted."""

    def have(*values: str, then: str = "true") -> None:
        site.shell(f"{UPGRADE} --set {','.join((*BEFORE, *values))} && {then} && {ROLLOUT}")
        site.until("the enforcer is ready", site.enforcer_ready, LATE)

    yield have
    have(then=REPLACE)
    site.until("the shared memory is gone", lambda: not mounts(site))


def mounts(site: Site) -> str:
    """Mounts on the node where MPS's shared memory is."""
    return site.node.run("sh", "-c", f"grep ' {MEMORY} ' /proc/self/mountinfo || true")


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("limited")
    yield name
    site.drop(name, wait=True)


@pytest.fixture(scope="module", params=["driver-cgroup", "mps-v2"])
def backend(request: pytest.FixtureRequest, site: Site, have: Have) -> str:
    """Who keeps the limits: the driver where it can, MPS where the operator wants it."""
    wanted = "auto" if request.param == "driver-cgroup" else request.param
    have(f"simulate.driver={NEWER}", f"enforcer.limitVerificationSeconds={PROOF}", f"enforcer.limitBackend={wanted}")
    site.until("the GPUs say so", lambda: keepers(site) == {request.param})
    return str(request.param)


def keepers(site: Site) -> set[str]:
    return {
        each["attributes"].get("limitBackend", {}).get("string", "")
        for each in site.devices().values()
        if "uuid" in each["attributes"]
    }


def claims(site: Site, namespace: str, name: str) -> list[Object]:
    """A pod's claim, once it is reserved."""
    found = site.cluster.list(path(RESOURCE_V1, "resourceclaims", namespace=namespace))[0]
    return [each for each in found if each["status"].get("reservedFor", [{}])[0].get("name") == name]


def entries(site: Site, namespace: str, name: str) -> list[Object]:
    """The entries of the GPUs in the status of a pod's claim."""
    mine = claims(site, namespace, name)
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
    used = "container main uses 1024 MiB of its quota of 2048 MiB, peak 1024 MiB (measured "
    site.until("explain shows its use and peak", lambda: used in site.shell(f"gpu-share explain {namespace}/{name}"))
    (row,) = [each for each in site.status()["containers"] if each["pod"] == name]
    assert (row["limit"]["state"], row["limit"]["backend"]) == ("InForce", backend)


def test_programs_are_notified_their_part_and_frameworks_what_their_container_leaves_free(
    site: Site, namespace: str, backend: str
) -> None:
    """CUDA's total is the limit under the driver's limits, else the card."""
    name = f"frameworks-{backend}"
    settings = {"metadata": {"name": name}, "data": {"CUDF_PANDAS_RMM_MODE": "pool"}}
    site.apply(namespace, CORE_V1, "configmaps", settings)
    body = pods.pod(name, "hold", "64Mi", memory="1Gi", **{MEMORY_OF + each: "1Gi" for each in ("own", "unseen")})
    own, unseen = (pods.container("hold", "64Mi", name=each) for each in ("own", "unseen"))
    own["env"] = [{"name": JAX, "value": "true"}]
    unseen["envFrom"] = [{"configMapRef": {"name": name}}]
    body["spec"]["containers"] += [own, unseen]
    site.run(namespace, body)
    total = 1024 if backend == "driver-cgroup" else 16384
    for container, words in {
        pods.MAIN: ("false", "true", "async"), "own": ("true", "true", "async"), "unseen": (None, "image", "pool"),
    }.items():  # fmt: skip
        env = site.environ(namespace, name, container)
        assert (env[USABLE_MIB], env[MEMORY_FRACTION]) == ("470", fraction(470, total))
        assert env[FREE_FRACTION] == "0.458984"
        assert tuple(map(env.get, (JAX, "TF_FORCE_GPU_ALLOW_GROWTH", "CUDF_PANDAS_RMM_MODE"))) == words
    site.delete(namespace, name)


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
        ("NotApplied", ("-u", MPS_MEMORY_LIMIT), "started without the MPS limit"),
        ("LimitEscaped", (f"{MPS_MEMORY_LIMIT}=0=2048M,1=9000M",), "names a GPU that the process does not see"),
    ],
)
def test_a_limit_that_was_got_around_is_shown_by_claim_event_and_explain(
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
        assert f"limit {state}: main (mps-v2): " in site.shell(f"gpu-share explain {namespace}/{name}", check=False)
    assert restarts(site.bed.pod(namespace, name))[pods.MAIN] == 0, "nobody is ended for it"
    assert conditions(site, namespace, f"well-{backend}") == [("True", "InForce")]
    site.delete(namespace, name)


def test_mps_clients_of_a_node_have_one_shared_memory_with_a_size(site: Site, namespace: str, have: Have) -> None:
    for old in ("driver-cgroup", "mps-v2"):
        site.remove(namespace, f"well-{old}")
    have(*SHARED_MEMORY, then=REPLACE)
    site.until("the GPUs say so", lambda: keepers(site) == {"mps-v2"}, LATE)
    site.run(namespace, pods.pod("remembering", "hold", "1Gi"))
    site.until("its claim says so", lambda: conditions(site, namespace, "remembering") == [("True", "InForce")], LATE)
    more = "exec remembering -c main -- gpu-share-tenant hold 6Gi"
    assert "the client's limit is 2048" in site.shell(f"kubectl -n {namespace} {more}", check=False)
    assert site.exec(namespace, "remembering", pinned.PYTHON, "-c", IN_IT).strip() == "64"
    assert " - tmpfs " in mounts(site)
    assert "seen" in site.node.run("ls", MEMORY)
    assert "seen" in site.shell(f"kubectl -n {SYSTEM} exec daemonset/gpu-share-mps -- ls /dev/shm")
    assert set(restarts(site.bed.pod(namespace, "remembering")).values()) == {0}
    site.delete(namespace, "remembering")


def ended(site: Site, namespace: str, name: str) -> str:
    """What a container that fails by itself printed."""
    site.until(f"{name} fails", lambda: site.bed.pod(namespace, name)["status"]["phase"] == "Failed", LATE)
    return site.logs(namespace, name, pods.MAIN)


def client(name: str, *, root: bool = False, own: bool = False, restart: str = "Never") -> Object:
    """A client of MPS: perhaps as root, perhaps with a volume of its own at /dev/shm."""
    body = pods.pod(name, "hold", "1Gi")
    body["spec"]["restartPolicy"] = restart
    main = body["spec"]["containers"][0]
    main["securityContext"] |= ROOT if root else {}
    if own:
        body["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
        main["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    return body


@pytest.fixture(name="driver")
def _driver(site: Site) -> Iterator[Callable[..., None]]:
    """Has the simulated driver behave so from the next MPS daemon on; as always at the end."""
    file = site.on_node(STATE) / WORLD

    def behave(**switches: str) -> None:
        file.write_text("".join(f"{name}={value}\n" for name, value in switches.items()))

    yield behave
    file.unlink(missing_ok=True)


def test_who_may_open_the_file_of_the_mps_server_reaches_it(
    site: Site, namespace: str, have: Have, driver: Callable[..., None]
) -> None:
    """The server's file lies in the node's shared memory; each MPS pod makes another one."""
    site.run(namespace, pods.pod("before", "hold", "1Gi"))
    driver(multiuser_shm_mode="600")
    site.until("it holds memory", lambda: "holding" in site.logs(namespace, "before", pods.MAIN))
    have(*SHARED_MEMORY, then=REPLACE)
    site.until("the pod that ran has an Event", lambda: "MpsStopped" in site.events(namespace, "before"), LATE)
    assert "server-lost" in site.logs(namespace, "before", pods.MAIN)
    site.delete(namespace, "before")
    site.run(namespace, client("root", root=True), LATE)
    files = [each for each in site.node.run("ls", "-l", MEMORY).splitlines() if "cuda.shm.0." in each]
    assert files
    assert all(each.startswith("-rw-------") for each in files)
    site.create(namespace, client("own", root=True, own=True))
    assert "CUDA error 805" in ended(site, namespace, "own"), "its own /dev/shm is not replaced"
    site.create(namespace, client("user", restart="Always"))
    logs = f"kubectl -n {namespace} logs user -c {pods.MAIN}"
    site.until("user is refused", lambda: "Permission denied" in site.shell(logs, check=False), LATE)
    reason = "runs as user 1000, which may not open the file of the MPS server in /dev/shm (mode 0600, user 0)"
    explain = f"gpu-share explain {namespace}/user"
    site.until("explain gives the reason", lambda: reason in site.shell(explain, check=False), LATE)
    site.delete(namespace, "root")
    driver(multiuser_supported="0")
    have(*SHARED_MEMORY, then=REPLACE)
    site.run(namespace, client("served"), LATE)
    site.until("it has a server of its own user", lambda: "cuda.shm.3e8." in site.node.run("ls", MEMORY), LATE)
