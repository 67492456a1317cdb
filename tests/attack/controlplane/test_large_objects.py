"""Objects as large as the API server takes, of people who need no right but to create them: nobody runs out of memory.

Each program is started while they are there, and lists them. The limits are the chart's.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.attack.controlplane.people import NODE, People, claims, pods
from tests.integration.controlplane.bed import SYSTEM, Replica
from tests.integration.controlplane.objects import Object
from tests.support.patience import patient
from tests.testbed.cluster.ports import free_ports

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
LARGE: Final = 1_300_000
SMALL, MANY, FEW = 20, 40, 4
WEBHOOK_MIB: Final = 512
ENFORCER_MIB: Final = 256
COMMAND_MIB: Final = 256
ROOT: Final = Path(__file__).parents[3]
ENFORCER: Final = """
import sys, time
from enforcer.quota.informer import QuotaInformer, add_informers
from enforcer.runtime.manager import Manager, Wake
from gpushare.kube_client import KubeClient
from tests.support.wiring import Ids, Quotas, Rule
seen, node, manager, changed = [], sys.argv[2], Manager(), Wake()
books = QuotaInformer(Rule(lambda found: tuple(seen.append(len(found["pods"])) or ())), changed)
add_informers(manager, KubeClient.connect(sys.argv[1]), books, node, Quotas(tuple), Ids({}), changed)
manager.start()
while not seen:
    time.sleep(0.1)
print(seen[-1])
"""
"""What the enforcer follows, without GPUs and kubelet."""
COMMAND: Final = """
import sys
from gpushare.kube_client import KubeClient
from gpushare_cli.uninstall import command as uninstall
api = KubeClient.connect(sys.argv[1])
print(len(uninstall.claims(api)), len(uninstall.templates(api)))
"""


@pytest.fixture(scope="module")
def crowded(people: People) -> Iterator[People]:
    """Small objects first, as an adaptive reader would like, then large ones."""
    carol, alice = people.acting("carol"), people.acting("alice")
    text = "x" * LARGE
    for who, where, bodies in (
        (alice, pods(people.inside), [share(f"a-small-{each}", "x") for each in range(SMALL)]),
        (alice, pods(people.inside), [share(f"large-{each}", text) for each in range(MANY)]),
        (carol, pods(people.outside), [stuck(f"fat-{each}", text) for each in range(MANY)]),
        (carol, pods(people.outside), [empty(f"empty-{each}") for each in range(FEW)]),
        (carol, claims(people.outside), [claim_of_others(f"c-{each}") for each in range(MANY)]),
    ):
        began = time.monotonic()
        many(who, where, bodies)
        print(f"{len(bodies)} {bodies[0]['metadata']['name']} in {time.monotonic() - began:.1f} s", flush=True)
    yield people
    for where in (pods(people.inside), pods(people.outside), claims(people.outside)):
        people.bed.delete_all(where)


def many(who: KubeClient, where: str, bodies: list[Object]) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda body: who.create(where, body), bodies))


def share(name: str, text: str) -> Object:
    """A sharing pod that fits no node."""
    found = stuck(name, text)
    found["metadata"]["annotations"] = {"gpu-share.io/memory": "1Gi", "gpu-share.io/compute": "1"}
    del found["spec"]["nodeName"]
    return found | {"spec": found["spec"] | {"nodeSelector": {"no": "such"}}}


def stuck(name: str, text: str) -> Object:
    """A pod on the GPU node that never starts."""
    main = {"name": "main", "image": "example.invalid/app:1", "imagePullPolicy": "Never", "args": [text]}
    spec = {"containers": [main], "nodeName": NODE, "automountServiceAccountToken": False}
    return {"metadata": {"name": name}, "spec": spec}


def empty(name: str) -> Object:
    """One whose many empty variables become more than they were."""
    found = stuck(name, "x")
    found["spec"]["containers"][0]["env"] = [{"name": f"A{number}"} for number in range(20_000)]
    return found


def claim_of_others(name: str) -> Object:
    """A claim of another driver's class."""
    selectors = [{"cel": {"expression": f'"{"x" * 10_000}" == ""'}} for _ in range(30)]
    requests = [
        {"name": f"r{each}", "exactly": {"deviceClassName": "gpu.example.com", "selectors": selectors}}
        for each in range(4)
    ]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


def peak_mib(pid: int) -> float:
    """The most memory that a process or a child of it had, in MiB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    own = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0) / 1024
    return max([own, *(peak_mib(int(each)) for each in children)])


def test_a_webhook_replica_starts_beside_them(crowded: People) -> None:
    bed = crowded.bed
    port, admin = free_ports(2)
    replica = Replica(name="webhook-late", port=port, admin_port=admin)
    bed.replicas.append(replica)
    bed.start_webhooks([len(bed.replicas) - 1])
    assert replica.process is not None
    found = peak_mib(replica.process.pid)
    print(f"webhook: {found:.0f} MiB of {WEBHOOK_MIB}")
    assert found < WEBHOOK_MIB / 2
    bed.replicas.pop()
    bed.stop(replica.process)


def measured(*command: str, limit: int, least: int = 0) -> None:
    """Run a program to its end, watching its memory."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        found, deadline = 0.0, time.monotonic() + patient(90)
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                found = max(found, peak_mib(process.pid))
            time.sleep(0.02)
        process.kill()
        out, err = process.communicate()
    print(f"{found:.0f} MiB of {limit}: {out.strip()}")
    assert int(out.split()[0]) >= least, err
    assert 0 < found < limit


def test_the_enforcer_starts_beside_them(crowded: People) -> None:
    kubeconfig = crowded.bed.plane.service_account(SYSTEM, "gpu-share-enforcer", crowded.node)
    measured(sys.executable, "-c", ENFORCER, str(kubeconfig), NODE, limit=ENFORCER_MIB * 2 // 3, least=MANY + FEW)


def test_commands_read_them(crowded: People) -> None:
    measured(sys.executable, "-c", COMMAND, str(crowded.bed.plane.kubeconfig()), limit=COMMAND_MIB * 2 // 3)


def test_a_list_is_streamed_and_equals_its_pages(crowded: People) -> None:
    """What the API server streams is the list, to its end."""
    where = path(CORE_V1, "pods", namespace=crowded.outside)
    asked: list[int] = []
    cluster = crowded.bed.cluster
    listing = cluster.listing(where)
    paged = type(listing)(
        stream=refusing(asked), page=lambda page: cluster._call("GET", where, query=page), where=where
    )
    streamed = {(each["metadata"]["name"], each["metadata"]["uid"]) for each in listing}
    assert streamed == {(each["metadata"]["name"], each["metadata"]["uid"]) for each in paged}
    assert (len(streamed) >= MANY + FEW, bool(listing.version), len(asked)) == (True, True, 1)
    watched = cluster.watch(path(RESOURCE_V1, "resourceclaims"), "", sendInitialEvents="true",
                            resourceVersionMatch="NotOlderThan")  # fmt: skip
    assert next(watched)[0] == "ADDED"


def refusing(asked: list[int]) -> Any:
    def stream() -> Iterator[Any]:
        asked.append(1)
        raise ClusterError("no", 422)
        yield

    return stream
