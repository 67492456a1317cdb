"""The driver against a real API server: the enforcer is the product's own program, the kubelet's calls are played.

The claims are those the real scheduler allocated, the enforcer's identity is its own, and what it writes is what the
API server lets it write.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, path
from gpushare.reasons import Reason
from gpushare_cli.main import main
from tests.fakes.gpu import node as simulator
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.integration.controlplane import objects, programs
from tests.integration.controlplane.bed import CLAIMS, SLICES, SYSTEM, Bed
from tests.integration.controlplane.kubelet import Kubelet, hierarchy, tenant
from tests.integration.controlplane.objects import Object
from tests.support.kubelet import KubeletCalls
from tests.support.need import missing
from tests.support.patience import patient
from tests.support.podresources import pod_resources
from tests.testbed.cluster.controlplane import ADMIN, TENANT
from tests.testbed.cluster.processes import Process, alive, wait_gone

pytestmark = pytest.mark.controlplane
NODE = "with-kubelet"
POLL = 0.25


@dataclass(slots=True, kw_only=True)
class Machine:
    """One node whose GPUs are simulated, with the enforcer on it, and the kubelet's half of its sockets."""

    bed: Bed
    sim: Sim
    calls: KubeletCalls
    kubelet: Kubelet
    folder: Path
    command: list[str]
    environment: dict[str, str]
    enforcer: Process

    def slices(self) -> list[Object]:
        return self.bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={NODE}")[0]

    def bound(self, namespace: str, name: str, memory: str) -> Object:
        self.bed.create(namespace, objects.pod(name, memory, node=NODE))
        return self.bed.wait_bound(namespace, name)

    def key(self, pod: Object) -> tuple[str, str, str]:
        metadata = self.bed.claim_of(pod)["metadata"]
        return metadata["namespace"], metadata["name"], metadata["uid"]

    def quotas(self) -> dict[str, Object]:
        rows = json.loads((self.folder / "state" / "checkpoint.json").read_text())["quotas"]
        return {each["pod"]: each for each in rows}

    def files(self) -> list[str]:
        kept = [self.folder / "cdi", self.folder / "run" / "status", self.folder / "state" / "claims"]
        found = (file for root in kept for file in root.rglob("*") if not file.name.endswith(("status.json", ".new")))
        return sorted(str(file.relative_to(self.folder)) for file in found)

    def restart(self) -> None:
        self.bed.stop(self.enforcer)
        self.calls.close()
        self.enforcer = self.bed.plane.add("enforcer-dra", self.command, self.environment)

    def register(self) -> None:
        socket = self.calls.root / contract.REGISTRATION_SOCKET
        self.bed.until("the enforcer serves its sockets", socket.exists)
        self.calls.register()
        self.bed.until("the enforcer offers the node's GPUs", lambda: len(self.slices()) == 1, 5)


@pytest.fixture(scope="module")
def machine(bed: Bed) -> Iterator[Machine]:
    library, root = need_library(), hierarchy()
    if root is None:
        missing("control groups cannot be made here (root on Linux can)")
    folder = Path(tempfile.mkdtemp(prefix="dra-"))  # a socket's path must be short
    sim = Sim.create(folder / "sim", "single-16g")
    node = bed.node(NODE, slices=False)
    kubeconfig = bed.plane.service_account(SYSTEM, "gpu-share-enforcer", node)
    command = programs.enforcer(NODE, kubeconfig, folder, POLL, folder / "kubelet")
    environment = programs.environment(**sim.environment(library))
    kubelet = Kubelet(bed=bed, node=NODE, root=root, logs=folder)
    made = Machine(
        bed=bed, sim=sim, calls=KubeletCalls(folder / "kubelet"), kubelet=kubelet, folder=folder, command=command,
        environment=environment, enforcer=bed.plane.add("enforcer-dra", command, environment),
    )  # fmt: skip
    with pod_resources(folder / "kubelet"):
        yield made
    kubelet.close()
    made.calls.close()
    bed.stop(made.enforcer)
    bed.cluster.delete(path(CORE_V1, "nodes", NODE))
    for each in made.slices():
        bed.remove(path(RESOURCE_V1, SLICES, each["metadata"]["name"]))
    shutil.rmtree(folder)


def test_nothing_is_offered_before_the_kubelet_knows_the_driver(machine: Machine) -> None:
    socket = machine.calls.root / contract.REGISTRATION_SOCKET
    machine.bed.until("the enforcer serves its sockets", socket.exists)
    assert machine.slices() == []
    machine.register()


def test_slices_that_the_kubelet_removed_are_back_at_once_when_it_registers_again(machine: Machine) -> None:
    for each in machine.slices():
        machine.bed.cluster.delete(path(RESOURCE_V1, SLICES, each["metadata"]["name"]))
    machine.register()


def test_a_bound_pod_is_prepared_watched_and_undone(machine: Machine) -> None:
    bed, namespace = machine.bed, machine.bed.namespace("dra")
    pod = machine.bound(namespace, "tts", "4Gi")
    key = machine.key(pod)
    answer = machine.calls.prepare(key)[key[2]]
    assert answer.error == ""
    assert {each.request_names[0]: list(each.cdi_device_ids) for each in answer.devices} == {
        name: [f"{contract.CDI_KIND}={key[2]}-{name}"] for name in ("main", contract.SIDECAR)
    }
    document = json.loads((machine.folder / "cdi" / f"{contract.CDI_FILE_PREFIX}{key[2]}.json").read_text())
    uuid = machine.sim.machine.gpus[0].uuid
    assert f"{contract.CUDA_VISIBLE_DEVICES}={uuid}" in document["devices"][0]["containerEdits"]["env"]
    bed.until("the claim's status is written", lambda: len(status(machine, key)) == 2)
    assert [each["conditions"][0]["reason"] for each in status(machine, key)] == ["ClaimPrepared"] * 2
    assert next(each["data"]["limits"] for each in status(machine, key) if "data" in each) == [
        {"container": "main", "memoryMiB": 4096, "computePercent": None}
    ]
    container = machine.kubelet.run(pod, "main", tenant(uuid, 3000, grow_to=9000, after=2.0), machine.sim.environment())
    bed.until("the quota has its container", lambda: watched(machine) == container.container_id)
    assert wait_gone(container.process, patient(15))
    machine.kubelet.containers.remove(container)
    bed.delete_pod(namespace, "tts")
    bed.until("the claim is gone", lambda: bed.find(path(RESOURCE_V1, CLAIMS, key[1], namespace)) is None)
    assert "tts" in machine.quotas(), "prepared and not undone: still enforced"
    assert machine.calls.unprepare(key) == {key[2]: ""}
    assert machine.files() == []
    bed.until("the quota is gone", lambda: "tts" not in machine.quotas())


def test_a_claim_that_was_never_prepared_is_not_enforced(machine: Machine) -> None:
    bed, namespace = machine.bed, machine.bed.namespace("dra")
    pod = machine.bound(namespace, "never", "1Gi")
    uuid = machine.sim.machine.gpus[0].uuid
    container = machine.kubelet.run(pod, "main", tenant(uuid, 4000), machine.sim.environment())
    first = machine.bound(namespace, "first", "1Gi")
    machine.calls.prepare(machine.key(first))
    bed.until("what is prepared has a quota", lambda: "first" in machine.quotas())
    assert "never" not in machine.quotas()
    assert alive(container.process)
    machine.calls.unprepare(machine.key(first))
    bed.delete_pod(namespace, "first")


def test_an_enforcer_that_was_away_knows_what_was_prepared(machine: Machine) -> None:
    namespace = machine.bed.namespace("dra")
    key = machine.key(machine.bound(namespace, "lasting", "4Gi"))
    first = machine.calls.prepare(key)[key[2]]
    files = machine.files()
    machine.restart()
    machine.register()
    assert (machine.calls.prepare(key)[key[2]], machine.files()) == (first, files)
    assert machine.calls.unprepare(key) == {key[2]: ""}
    machine.bed.delete_pod(namespace, "lasting")


def test_the_kubelet_follows_a_gpu_that_fails_and_recovers(machine: Machine) -> None:
    namespace, gpu = machine.bed.namespace("dra"), machine.sim.machine.gpus[0].uuid
    pod = machine.bound(namespace, "failing", "4Gi")
    machine.calls.prepare(machine.key(pod))
    device = machine.bed.gpus_of(pod)["main"]
    stream = (each[device] for each in machine.calls.watch_health("v1.DRAResourceHealth") if device in each)
    assert next(stream) == ("HEALTHY", "")
    simulator.break_down(machine.sim, gpu, "lost")
    health, message = next(each for each in stream if each[0] != "HEALTHY")
    assert (health, message.split(":")[0]) == ("UNHEALTHY", Reason.GPU_LOST)
    machine.bed.until("an Event on the pod says so", lambda: Reason.GPU_LOST in reasons(machine, namespace))
    simulator.break_down(machine.sim, gpu, "well")
    assert next(each for each in stream if each[0] != "UNHEALTHY") == ("HEALTHY", "")
    machine.calls.unprepare(machine.key(pod))
    machine.bed.delete_pod(namespace, "failing")


def reasons(machine: Machine, namespace: str) -> list[str]:
    events = machine.bed.cluster.list(path(EVENTS_V1, "events", namespace=namespace))[0]
    return [each["reason"] for each in events if each["regarding"]["name"] == "failing"]


def test_a_prepared_pod_is_notified_how_it_stands_through_its_sidecar(machine: Machine) -> None:
    namespace = machine.bed.namespace("dra")
    pod = machine.bound(namespace, "told", "4Gi")
    key = machine.key(pod)
    machine.calls.prepare(key)
    folder = machine.folder / "run" / "status" / pod["metadata"]["uid"]
    command = [*programs.PRODUCT, "sidecar", f"--status={folder}", "--listen=127.0.0.1:0"]
    sidecar = machine.bed.plane.add("sidecar", command, programs.environment())
    uuid = machine.sim.machine.gpus[0].uuid
    ready = f"the share of the GPU is ready: main 4096 MiB on {uuid}"
    machine.bed.until("the sidecar says ready", lambda: ready in Path(sidecar.log).read_text())
    container = machine.kubelet.run(pod, "main", tenant(uuid, 3000, grow_to=9000, after=2.0), machine.sim.environment())
    assert wait_gone(container.process, patient(20))
    machine.kubelet.containers.remove(container)
    why = " Killed: container main holds 9000 MiB of its 4096 MiB"
    machine.bed.until("the sidecar says why", lambda: why in Path(sidecar.log).read_text())
    machine.bed.stop(sidecar)
    assert machine.calls.unprepare(key) == {key[2]: ""}
    assert not folder.exists()
    machine.bed.delete_pod(namespace, "told")


def test_a_quota_is_changed_while_its_container_runs(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    bed, namespace = machine.bed, machine.bed.namespace("dra")
    pod = machine.bound(namespace, "elastic", "4Gi")
    key = machine.key(pod)
    machine.calls.prepare(key)
    uuid = machine.sim.machine.gpus[0].uuid
    container = machine.kubelet.run(pod, "main", tenant(uuid, 3000), machine.sim.environment())
    mine = container.container_id
    bed.until("the quota has its container", lambda: machine.quotas().get("elastic", {}).get("containerId") == mine)
    bed.until("it holds its memory", lambda: "ready" in machine.kubelet.output(container))

    def resize(*arguments: str, who: str = ADMIN) -> tuple[int, str]:
        connection = f"--kubeconfig={bed.plane.kubeconfig(who)}"
        code = main(["resize", f"{namespace}/elastic", "main", *arguments, connection])
        return code, " ".join("".join(capsys.readouterr()).split())

    code, said = resize("3500Mi", who=TENANT)
    assert (code, "to the ClusterRole gpu-share-resize" in said) == (1, True)
    code, said = resize("5Gi")
    assert (code, "the pod has 4Gi of the GPU" in said) == (1, True)
    code, said = resize("3500Mi")
    assert (code, f"{namespace}/elastic main: 4Gi -> 3500Mi (reserved 4Gi)" in said) == (0, True)
    bed.until("it is judged by the new quota", lambda: machine.quotas()["elastic"]["memoryMib"] == 3500)
    document = json.loads((machine.folder / "cdi" / f"{contract.CDI_FILE_PREFIX}{key[2]}.json").read_text())
    assert f"{contract.MEMORY_MIB}=3500" in document["devices"][0]["containerEdits"]["env"]
    code, said = resize("2Gi")
    assert (code, "holds 3000 MiB now: with a quota of 2Gi it would be over quota" in said) == (1, True)
    assert alive(container.process)
    assert resize("2Gi", "--force")[0] == 0
    assert wait_gone(container.process, patient(20))
    machine.kubelet.containers.remove(container)
    assert machine.calls.unprepare(key) == {key[2]: ""}


def status(machine: Machine, key: tuple[str, str, str]) -> list[Object]:
    claim = machine.bed.cluster.get(path(RESOURCE_V1, CLAIMS, key[1], key[0]))
    return list(claim["status"].get("devices") or [])


def watched(machine: Machine) -> str | None:
    """The container that the enforcer watches in pod tts."""
    found: str | None = machine.quotas().get("tts", {}).get("containerId")
    return found
