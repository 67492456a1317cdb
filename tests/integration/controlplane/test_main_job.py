"""The main job, end to end: annotate, rewrite, place, enforce, record. Only the GPU and the kubelet are played.

The enforcer is the product's own program under its own service account, bound to its node; it reads the simulated GPUs
through the real NVML binding, publishes them, and ends a real process in a real control group.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.contract import GRACE_PERIOD
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, path
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.integration.controlplane import objects, programs
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed
from tests.integration.controlplane.kubelet import Container, Kubelet, hierarchy, tenant
from tests.integration.controlplane.objects import Object
from tests.support.need import missing
from tests.support.patience import patient
from tests.testbed.cluster.controlplane import RBAC_V1
from tests.testbed.cluster.processes import Process, alive, wait_gone

pytestmark = pytest.mark.controlplane
NODE = "real"
GRACE, POLL = 2.0, 0.25
SAMPLES = 3
SLACK = patient(1.5)
"""Seconds for what is no part of the promise: starting to look, ending a Python process, a busy machine."""


@dataclass(slots=True, kw_only=True)
class Machine:
    """One node whose GPUs are simulated, with the enforcer on it."""

    bed: Bed
    sim: Sim
    kubelet: Kubelet
    enforcer: Process
    state: Path

    def start(self, namespace: str, name: str, *, grow_to: int | None = None, after: float = 3.0) -> Container:
        """Create a pod of 4 GiB, wait for its place, run a program in it that holds 3000 MiB, later more."""
        self.bed.create(namespace, objects.pod(name, "4Gi", node=NODE))
        pod = self.bed.wait_bound(namespace, name)
        uuid = self.uuid(self.bed.gpus_of(pod)["main"])
        command = tenant(uuid, 3000, grow_to=grow_to, after=after)
        return self.kubelet.run(pod, "main", command, self.sim.environment())

    def uuid(self, device: str) -> str:
        """UUID of a published device."""
        devices = {each["name"]: each for each in slices(self.bed)[0]["spec"]["devices"]}
        return str(devices[device]["attributes"]["uuid"]["string"])

    def quotas(self) -> dict[str, object]:
        """Pod → container id, of the quotas the enforcer has on disk."""
        with_ids = json.loads((self.state / "checkpoint.json").read_text())["quotas"]
        return {each["pod"]: each["containerId"] for each in with_ids}

    def records(self) -> list[Object]:
        """The audit log, oldest first."""
        segments = sorted((self.state / "audit").glob("kills-*.jsonl"))
        return [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]


def slices(bed: Bed) -> list[Object]:
    return bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={NODE}")[0]


def follow_claims(bed: Bed) -> None:
    """Let an enforcer without a kubelet (``--no-dra``) follow claims; the chart's never has to."""
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list", "watch"]}]
    subject = {"kind": "ServiceAccount", "name": "gpu-share-enforcer", "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "follow-claims"}
    bed.cluster.create(path(RBAC_V1, "clusterroles"), {"metadata": {"name": "follow-claims"}, "rules": rules})
    body = {"metadata": {"name": "follow-claims"}, "roleRef": role, "subjects": [subject]}
    bed.cluster.create(path(RBAC_V1, "clusterrolebindings"), body)


@pytest.fixture(scope="module")
def machine(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    library, root = need_library(), hierarchy()
    if root is None:
        missing(
            "control groups cannot be made here (root on Linux can): a process belongs to a container by its cgroup"
        )
    folder = tmp_path_factory.mktemp("node")
    sim = Sim.create(folder / "sim", "single-16g")
    node = bed.node(NODE, slices=False)
    kubeconfig = bed.plane.service_account(SYSTEM, "gpu-share-enforcer", node)
    follow_claims(bed)
    command = programs.enforcer(NODE, kubeconfig, folder, POLL)
    enforcer = bed.plane.add("enforcer", command, programs.environment(**sim.environment(library)))
    kubelet = Kubelet(bed=bed, node=NODE, root=root, logs=folder)
    bed.until("the enforcer offers the node's GPUs", lambda: len(slices(bed)) == 1)
    yield Machine(bed=bed, sim=sim, kubelet=kubelet, enforcer=enforcer, state=folder / "state")
    kubelet.close()
    bed.stop(enforcer)
    bed.cluster.delete(path(CORE_V1, "nodes", NODE))
    for each in slices(bed):
        bed.remove(path(RESOURCE_V1, SLICES, each["metadata"]["name"]))


def events(bed: Bed, namespace: str, pod: str) -> dict[str, Object]:
    """Reason → event of the enforcer on the pod, as its owner sees them."""
    found = bed.plane.cluster("tenant").list(path(EVENTS_V1, "events", namespace=namespace))[0]
    ours = [each for each in found if each.get("reportingController") == "gpu-share.io/enforcer"]
    return {each["reason"]: each for each in ours if each["regarding"]["name"] == pod}


def test_a_container_over_its_quota_is_ended_and_its_neighbour_is_not(machine: Machine) -> None:
    bed = machine.bed
    namespace = bed.namespace("tenants", annotations={GRACE_PERIOD: f"{GRACE:.0f}s"})
    neighbour = machine.start(namespace, "modest")
    greedy = machine.start(namespace, "greedy", grow_to=9000, after=4)
    wanted = {"modest": neighbour.container_id, "greedy": greedy.container_id}
    bed.until("the enforcer knows both quotas", lambda: machine.quotas() == wanted)
    bed.until("the greedy one has grown", lambda: "grown" in machine.kubelet.output(greedy))
    # By the log's own time: how late the test looks says nothing.
    grown = time.monotonic() - (time.time() - Path(greedy.process.log).stat().st_mtime)
    assert wait_gone(greedy.process, patient(20)), bed.plane.tails(["enforcer"])
    lasted = time.monotonic() - grown
    print(f"\nended {lasted:.2f} s after it grew (grace {GRACE} s, {POLL} s between looks)")
    assert GRACE - 2 * POLL <= lasted <= (SAMPLES + 2) * POLL + GRACE + SLACK
    assert alive(neighbour.process)
    assert machine.sim.used_by_tenants(machine.sim.machine.gpus[0].uuid) == 3000, "what the neighbour held it holds"
    bed.until("its owner is told", lambda: "Killed" in events(bed, namespace, "greedy"))
    told = events(bed, namespace, "greedy")
    assert "container main holds 9000 MiB of its 4096 MiB" in told["Killed"]["note"]
    assert "OverQuota" in told, "it was warned first"
    assert events(bed, namespace, "modest") == {}
    check_records(machine, greedy)
    head = told["Killed"]["note"].rpartition("audit log ")[2]
    verdict = verify(machine.state / "audit", "--anchor", head)
    assert verdict.returncode == 0, verdict


def check_records(machine: Machine, greedy: Container) -> None:
    """An intent before the act and an outcome after it."""
    mine = [each for each in machine.records() if each.get("pod", {}).get("uid") == greedy.pod["metadata"]["uid"]]
    assert [each["kind"] for each in mine][-2:] == ["INTENT", "OUTCOME"]
    intent = mine[-2]
    assert (intent["pid"], intent["usedMiB"], intent["quotaMiB"]) == (greedy.process.pid, 9000, 4096)


def test_the_audit_log_verifies_and_an_edited_line_is_named(machine: Machine, tmp_path: Path) -> None:
    audit = machine.state / "audit"
    assert verify(audit).returncode == 0
    (segment,) = audit.glob("kills-*.jsonl")
    lines = segment.read_text().splitlines(keepends=True)
    edited = tmp_path / "audit"
    edited.mkdir()
    (edited / segment.name).write_text("".join([lines[0], lines[1].replace("9000", "9001"), *lines[2:]]))
    verdict = verify(edited)
    assert verdict.returncode == 1
    assert f"{segment.name}:2" in verdict.stdout + verdict.stderr


def verify(log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*programs.PRODUCT, "audit", "verify", "--log", str(log), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ}, check=False)
