"""A simulated node's enforcer, with its own rights and MPS daemons: a GPU that fails, one that somebody else offers."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from enforcer.mps.launcher import folder_of
from enforcer.resourceslices.contention_monitor import QUIET
from gpushare.contract import EXCLUDED_GPUS, UNHEALTHY
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, path
from gpushare.reasons import Reason
from tests.fakes.gpu import node as simulator
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.integration.controlplane import objects, programs
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed
from tests.integration.controlplane.objects import Object
from tests.support.podresources import Offered, pod_resources

pytestmark = pytest.mark.controlplane
NODE = "failing"
EXCLUSIVE = 3


@dataclass(slots=True, kw_only=True)
class Machine:
    """The node, and what goes wrong with it."""

    bed: Bed
    root: Path
    sim: Sim
    plugins: Offered

    def devices(self) -> dict[str, Object]:
        items, _ = self.bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={NODE}")
        return {device["name"]: device for item in items for device in item["spec"]["devices"]}

    def taints(self, name: str) -> list[tuple[str, str, str]]:
        found = self.devices()[name].get("taints") or []
        return [(taint["key"], taint["value"], taint["effect"]) for taint in found]

    def gpu(self, index: int) -> str:
        return self.sim.machine.gpus[index].uuid

    def device(self, index: int) -> str:
        return self.gpu(index).lower()

    def pid(self, index: int) -> int | None:
        noted: dict[str, int | None] = json.loads((self.daemon(index) / "daemon.json").read_text())
        return noted["pid"]

    def daemon(self, index: int) -> Path:
        return self.root / "enforcer" / "run" / "mps" / folder_of(self.gpu(index))

    def told(self) -> list[str]:
        items, _ = self.bed.cluster.list(path(EVENTS_V1, "events", namespace="default"))
        mine = [each for each in items if (each["regarding"]["kind"], each["regarding"]["name"]) == ("Node", NODE)]
        return [each["reason"] for each in sorted(mine, key=lambda each: str(each["eventTime"]))]

    def rewrites(self) -> int:
        items, _ = self.bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={NODE}")
        return max(int(item["spec"]["pool"]["generation"]) for item in items)


@pytest.fixture(name="machine", scope="module")
def _machine(bed: Bed) -> Iterator[Machine]:
    need_library()
    root = Path(tempfile.mkdtemp(prefix="fail-"))  # a socket's path must be short
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        sim = simulator.lay_out(root, simulator.machine(NODE, 2, 16384, "NVIDIA H100 80GB HBM3"))
        plugins = stack.enter_context(pod_resources(root / "kubelet"))
        plugins.append(("nvidia.com/gpu", [sim.machine.gpus[1].uuid]))
        kubeconfig = bed.plane.service_account(
            SYSTEM, "gpu-share-enforcer", bed.node(NODE, slices=False, labels=SHARED)
        )
        command = [each for each in programs.enforcer(NODE, kubeconfig, root / "enforcer", 0.25) if each != "--no-mps"]
        places = [f"--kubelet-root={root / 'kubelet'}", f"--driver-root={root / 'driver'}"]
        enforcer = bed.plane.add("enforcer-failing", [*command, *places], programs.environment())
        stack.callback(_end_daemons, root / "enforcer" / "run" / "mps")
        stack.callback(bed.stop, enforcer)
        machine = Machine(bed=bed, root=root, sim=sim, plugins=plugins)
        bed.until("the enforcer offers a GPU", lambda: machine.device(0) in machine.devices(), 20)
        yield machine


SHARED = {"gpu-share.io/enabled": "true"}


def _end_daemons(folder: Path) -> None:
    for note in folder.glob("*/daemon.json"):
        os.kill(json.loads(note.read_text())["pid"], 9)


def test_a_gpu_a_device_plugin_offers_is_left_alone_from_the_start(machine: Machine) -> None:
    assert set(machine.devices()) == {machine.device(0), "status"}
    items, _ = machine.bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={NODE}")
    note = json.loads(items[0]["metadata"]["annotations"][EXCLUDED_GPUS])
    assert note == {machine.gpu(1): "Contended: a device plugin offers the GPU as nvidia.com/gpu"}
    machine.bed.until("MPS serves the other", lambda: machine.sim.compute_mode(machine.gpu(0)) == EXCLUSIVE, 20)
    assert machine.sim.compute_mode(machine.gpu(1)) == 0
    assert not (machine.daemon(1) / "daemon.json").exists()
    assert machine.told() == [Reason.CONTENDED]


def test_it_is_shared_once_the_plugin_has_left_and_daemon_and_tenants_stay_when_it_comes_back(machine: Machine) -> None:
    machine.plugins.clear()
    machine.bed.until("the GPU is offered", lambda: machine.device(1) in machine.devices(), QUIET + 30)
    machine.bed.until("MPS serves it", (machine.daemon(1) / "pipe" / "tenants").exists, 20)
    machine.bed.until("its process is noted", lambda: machine.pid(1) is not None, 20)
    daemon = machine.pid(1)
    assert daemon is not None
    machine.plugins.append(("nvidia.com/gpu", [machine.gpu(1)]))
    machine.bed.until("the GPU is offered no more", lambda: machine.device(1) not in machine.devices(), 30)
    os.kill(daemon, 0)
    assert machine.sim.compute_mode(machine.gpu(1)) == EXCLUSIVE
    assert machine.told() == [Reason.CONTENDED, Reason.RECOVERED, Reason.CONTENDED]
    machine.plugins.clear()
    machine.bed.until("the GPU is offered again", lambda: machine.device(1) in machine.devices(), QUIET + 30)


def test_a_lost_gpu_is_tainted_within_seconds_and_new_shares_go_elsewhere(machine: Machine) -> None:
    bed, namespace = machine.bed, machine.bed.namespace("health")
    before = machine.devices()[machine.device(0)]
    simulator.break_down(machine.sim, machine.gpu(0), "lost")
    bed.until("it is tainted", lambda: bool(machine.taints(machine.device(0))), 10)
    assert machine.taints(machine.device(0)) == [(UNHEALTHY, "GpuLost", "NoSchedule")]
    assert machine.devices()[machine.device(0)] == {**before, "taints": machine.devices()[machine.device(0)]["taints"]}
    bed.create(namespace, objects.pod("tts", "4Gi", node=NODE))
    assert bed.gpus_of(bed.wait_bound(namespace, "tts"))["main"] == machine.device(1)
    written = machine.rewrites()
    simulator.break_down(machine.sim, machine.gpu(0), "well")
    bed.until("the taint leaves", lambda: not machine.taints(machine.device(0)), 60)
    assert machine.rewrites() - written <= 2
    # A loss of ten seconds or more the enforcer's look tells as well.
    assert [reason for reason, _ in groupby(machine.told())][-2:] == [Reason.GPU_LOST, Reason.RECOVERED]
    bed.delete_pod(namespace, "tts")
    bed.cluster.delete(path(CORE_V1, "nodes", NODE))
