"""One real node with the product on it, as tests make, break and ask it."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare.contract import DRIVER, SIDECAR
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, KubeClient, path
from tests.e2e import breaking, deviceplugin, readme
from tests.e2e.pods import MAIN, Object
from tests.e2e.version import SIMULATOR_IMAGE
from tests.fakes.gpu import world
from tests.integration.controlplane.bed import PODS, Bed
from tests.support.patience import holds_within, patient, stretched
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.controlplane import TENANT
from tests.testbed.cluster.node import Node
from tests.testbed.vm import chosen as virtual
from tests.testbed.vm.node import VmNode

STATE: Final = "/var/lib/gpu-share"
RUN: Final = "/run/gpu-share"
CDI: Final = "/var/run/cdi"
CDI_PREFIX: Final = "gpu-share.io-"
KUBELET: Final = "/var/lib/kubelet"
ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = "gpu-share-system"
TEAM: Final = "asr"
SLOW: Final = (
    " --set webhook.replicas=1 --set enforcer.pollSeconds=5 --timeout=5m"
    " --set sidecar.resources.requests.cpu=50m --set sidecar.resources.limits.cpu=1000m"
)
"""For a virtual node, whose processor does a twentieth of the work: one webhook, rarer samples, faster sidecars."""
OPTIONS: Final = "--set simulate.enabled=true" + (SLOW if virtual() else "")
SERVER_MIB: Final = int(world.DEFAULTS["server_mib"])
"""Device memory of the MPS server of a GPU, which stays while its daemon runs."""
SECONDS: Final = 60.0
OUT_OF_REACH: Final = "failed calling webhook"
OUT_OF_REACH_SECONDS: Final = 150.0
APPS_V1: Final = "/apis/apps/v1"
NAME: Final = "app.kubernetes.io/name"
BATCH_V1: Final = "/apis/batch/v1"
Check = Callable[[], object]
EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class Site:
    """A node, its control plane, and the shell a person would use.

    Attributes:
        bed: objects of the API server, waiting included.
        node: the node of ``tests.testbed.cluster``.
        work: folder in which commands run: the checkout's content, and the values file beside it.
    """

    bed: Bed
    node: Node | VmNode
    work: Path
    _namespaces: set[str] = field(default_factory=set)
    """Of tenants, as long as nobody has dropped them."""

    @property
    def cluster(self) -> KubeClient:
        """An administrator's connection."""
        return self.bed.cluster

    def shell(self, command: str, *, seconds: float = 240, check: bool = True) -> str:
        """Run one command as the README's reader does; returns what it prints.

        Raises:
            AssertionError: it failed; with its output and the ends of the logs.
        """
        done = subprocess.run(
            ["bash", "-c", stretched(command)], cwd=self.work, env=self._environment(), capture_output=True, text=True,
            timeout=patient(seconds), check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"$ {command}\n{done.stdout}{done.stderr}\n(exit {done.returncode})\n{self.report()}")
        return done.stdout + (done.stderr if not check else "")

    def run_block(self, block: str, document: Path = readme.README, **values: str) -> str:
        """Run a block of a document, with the reader's values filled in; returns what it prints."""
        mine = {"NODE": self.node.name, "TEAM": TEAM, "OPTIONS": OPTIONS, "IMAGE": SIMULATOR_IMAGE, **values}
        return self.shell(
            "\n".join(f"{name}='{value}'" for name, value in mine.items()) + "\n" + readme.script(block, mine, document)
        )

    def _environment(self) -> dict[str, str]:
        found = find_all(Group.NODE, Group.CHART)
        tools = os.pathsep.join(sorted({str(found[name].parent) for name in ("kubectl", "helm")}))
        venv = ROOT / ".venv" / "bin"
        return {
            **os.environ,
            "PATH": os.pathsep.join([tools, str(venv), os.environ["PATH"]]),
            "KUBECONFIG": str(self.bed.plane.kubeconfig().absolute()),
        }

    # Tenants

    def namespace(self, name: str, labels: Mapping[str, str] = EMPTY, /, **annotations: str) -> str:
        """An opted-in namespace in which the tenant may edit, until all tests of the file have run."""
        made = self.bed.namespace(name, labels=dict(labels), annotations=annotations)
        self._namespaces.add(made)
        return made

    def create(self, namespace: str, body: Object) -> Object:
        """Create a pod as the tenant does, while the webhook is out of the API server's reach again and again.

        After an outage Kubernetes takes up to a minute or two to count a node's pods among a Service's endpoints again.
        """
        deadline = time.monotonic() + patient(OUT_OF_REACH_SECONDS)
        while True:
            try:
                return self.bed.create(namespace, body)
            except ClusterError as error:
                if OUT_OF_REACH not in error.message or time.monotonic() > deadline:
                    raise
            time.sleep(1)

    def apply(self, namespace: str, base: str, kind: str, body: Object) -> Object:
        """Create another object as the tenant does."""
        return self.bed.plane.cluster(TENANT).create(path(base, kind, namespace=namespace), body)

    def pods(self, namespace: str) -> list[Object]:
        """All pods of a namespace."""
        return self.bed.list(PODS, namespace)

    def running(self, namespace: str, name: str, seconds: float = SECONDS) -> Object:
        """Wait until a pod is ready; returns it."""
        self.until(f"{namespace}/{name} is ready", lambda: ready(self.bed.pod(namespace, name)), seconds)
        return self.bed.pod(namespace, name)

    def run(self, namespace: str, body: Object, seconds: float = SECONDS) -> Object:
        """Create a pod and wait until it is ready."""
        self.create(namespace, body)
        return self.running(namespace, body["metadata"]["name"], seconds)

    def delete(self, namespace: str, name: str, seconds: float = SECONDS) -> None:
        """Delete a pod and wait until the kubelet has let it go."""
        self.remove(namespace, name)
        self.until(f"{namespace}/{name} is gone", lambda: self.find_pod(namespace, name) is None, seconds)

    def remove(self, namespace: str, name: str, **options: int) -> None:
        """Ask for a pod's deletion."""
        body = {"gracePeriodSeconds": options["grace"]} if "grace" in options else None
        with suppress(ClusterError):
            self.cluster.delete(path(CORE_V1, PODS, name, namespace), body)

    def find_pod(self, namespace: str, name: str) -> Object | None:
        """The pod, or None once it is gone."""
        return self.bed.find(path(CORE_V1, PODS, name, namespace))

    def drop(self, namespace: str, *, wait: bool = False) -> None:
        """Delete a namespace with all in it; with ``wait`` until it is gone."""
        where = path(CORE_V1, "namespaces", namespace)
        self.cluster.delete(where)
        if wait:
            self.until(f"namespace {namespace} is gone", lambda: self.bed.find(where) is None, 120)
            self._namespaces.discard(namespace)

    def drop_all(self) -> None:
        """Delete all namespaces of tenants that are left, and wait until they are gone."""
        for namespace in self._namespaces:
            with suppress(ClusterError):
                self.drop(namespace)
        places = {each: path(CORE_V1, "namespaces", each) for each in self._namespaces}
        self.until("no namespace of the tests is left", lambda: not any(map(self.bed.find, places.values())), 120)
        self._namespaces.clear()

    # What runs in it

    def exec(self, namespace: str, pod: str, *command: str, container: str = MAIN, check: bool = True) -> str:
        """``kubectl exec``."""
        line = f"kubectl -n {namespace} exec {pod} -c {container} -- {shlex.join(command)}"
        return self.shell(line, seconds=60, check=check)

    def end_main(self, namespace: str, pod: str) -> None:
        """End a container's first process. Who does it may go with it before it can say that all went well."""
        self.exec(namespace, pod, "sh", "-c", "kill 1", check=False)

    def logs(self, namespace: str, pod: str, container: str = SIDECAR, *, previous: bool = False) -> str:
        """``kubectl logs``."""
        earlier = " --previous" if previous else ""
        return self.shell(f"kubectl -n {namespace} logs {pod} -c {container}{earlier}", seconds=60)

    def environ(self, namespace: str, pod: str, container: str = MAIN) -> dict[str, str]:
        """The variables of a container's first process itself, not of its specification."""
        found = self.exec(namespace, pod, "cat", "/proc/1/environ", container=container)
        return dict(entry.split("=", 1) for entry in found.split("\0") if "=" in entry)

    def devices(self) -> dict[str, Object]:
        """Our devices of the node by name, as its slices offer them."""
        found = self.cluster.list(path(RESOURCE_V1, "resourceslices"))[0]
        ours = [each["spec"] for each in found if each["spec"]["driver"] == DRIVER]
        return {device["name"]: device for spec in ours for device in spec.get("devices", ())}

    def uuid_of(self, pod: Object, request: str = MAIN) -> str:
        """UUID of the GPU that the scheduler chose for one of the pod's requests."""
        return str(self.devices()[self.bed.gpus_of(pod)[request]]["attributes"]["uuid"]["string"])

    def events(self, namespace: str, pod: str) -> dict[str, str]:
        """Reason → note of the Events on a pod, the newest of each reason."""
        found = self.cluster.list(path(EVENTS_V1, "events", namespace=namespace))[0]
        return {each["reason"]: each.get("note", "") for each in found if each["regarding"].get("name") == pod}

    # The enforcer

    def enforcers(self) -> list[Object]:
        """The enforcer's pods that are not on their way out."""
        selector = f"{NAME}=gpu-share-enforcer"
        found = self.cluster.list(path(CORE_V1, PODS, namespace=SYSTEM), labelSelector=selector)[0]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def enforcer(self) -> Object:
        """The enforcer's pod on the node."""
        (living,) = self._on_node(self.enforcers())
        return living

    def enforcer_ready(self) -> bool:
        """Whether there is one enforcer on the node and it is ready."""
        return [ready(each) for each in self._on_node(self.enforcers())] == [True]

    def _on_node(self, found: Sequence[Object]) -> list[Object]:
        return [each for each in found if each["spec"].get("nodeName") == self.node.name]

    def in_enforcer(self, command: str) -> str:
        """Run a command in the enforcer's container."""
        name = self.enforcer()["metadata"]["name"]
        return self.shell(f"kubectl -n {SYSTEM} exec {name} -c enforcer -- {command}", seconds=60)

    def enforcer_log(self) -> list[str]:
        """All lines of the enforcer's log; pods of a node that is gone keep theirs out of reach."""
        name = self.enforcer()["metadata"]["name"]
        return self.shell(f"kubectl -n {SYSTEM} logs {name} -c enforcer", seconds=60).splitlines()

    def status(self) -> Object:
        """What the enforcer says of its node, from its state folder."""
        return dict(json.loads((self.on_node(STATE) / "status.json").read_text()))

    def records(self, namespace: str, name: str) -> list[Object]:
        """The audit log's records of one pod, oldest first: the log has those of earlier tests as well."""
        segments = sorted((self.on_node(STATE) / "audit").glob("kills-*.jsonl"))
        every = [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]
        whose = {"namespace": namespace, "name": name}
        return [each for each in every if whose.items() <= each.get("pod", {}).items()]

    def record(self, namespace: str, name: str, kind: str) -> Object:
        """Wait for the first record of that kind about a pod: an OUTCOME comes a moment after the process is gone."""
        self.until(f"{kind} of {name}", lambda: kind in [each["kind"] for each in self.records(namespace, name)], 90)
        return next(each for each in self.records(namespace, name) if each["kind"] == kind)

    def on_node(self, where: str) -> Path:
        """Where a path of the node is on this machine."""
        return self.node.host(where)

    def leftovers(self) -> list[str]:
        """What the node keeps of claims and pods that are gone: CDI files, checkpoint entries, status folders."""
        claims = {each["metadata"]["uid"] for each in self.cluster.list(path(RESOURCE_V1, "resourceclaims"))[0]}
        pods = {each["metadata"]["uid"] for each in self.cluster.list(path(CORE_V1, PODS))[0]}
        files = [(each, each.stem.removeprefix(CDI_PREFIX)) for each in self.on_node(CDI).glob(f"{CDI_PREFIX}*")]
        files += [(each, each.stem) for each in (self.on_node(STATE) / "claims").glob("*")]
        folders = [each for each in (self.on_node(RUN) / "status").glob("*") if each.name not in pods]
        return [str(file) for file, uid in files if uid not in claims] + [str(folder) for folder in folders]

    # Breaking things

    def no_api_server(self) -> AbstractContextManager[None]:
        """Be without the API server."""
        return breaking.no_api_server(self.bed.plane)

    def stuck(self, namespace: str, name: str) -> AbstractContextManager[bool]:
        """Make a pod's processes unkillable."""
        return breaking.frozen(self.bed.pod(namespace, name)["metadata"]["uid"])

    def device_plugin(self, uuids: Sequence[str]) -> AbstractContextManager[None]:
        """Have another device plugin offer these GPUs."""
        return deviceplugin.running(self.node, uuids)

    def simulator(self, *words: str) -> str:
        """Run ``gpu-share-simulator`` beside the enforcer."""
        name = self.enforcer()["metadata"]["name"]
        command = f"gpu-share-simulator {' '.join(words)}"
        return self.shell(f"kubectl -n {SYSTEM} exec {name} -c simulator -- {command}", seconds=60)

    def viewer(self, namespace: str) -> Path:
        """Kubeconfig of somebody who holds the role ``view`` in a namespace and nothing else."""
        self.shell(
            f"kubectl -n {namespace} create serviceaccount viewer && kubectl -n {namespace} create rolebinding viewer "
            f"--clusterrole view --serviceaccount {namespace}:viewer"
        )
        return self.bed.plane.service_account(namespace, "viewer")

    # Waiting

    def until(self, what: str, check: Check, seconds: float = SECONDS, pause: float | None = None) -> None:
        """Poll until it holds; the API server may be away meanwhile."""
        if not holds_within(lambda: _holds(check), seconds, pause or self.node.pause):
            raise AssertionError(f"waited {patient(seconds):.0f} s in vain until {what}\n{self.report()}")

    def report(self) -> str:
        """Pods, warnings and the ends of the logs, for a failed test."""
        commands = (
            "kubectl get pods -A -o wide",
            "kubectl get events -A --field-selector type=Warning --sort-by=.lastTimestamp | tail -n 25",
            f"kubectl -n {SYSTEM} logs -l {NAME}=gpu-share-enforcer -c enforcer --tail 25",
            f"kubectl -n {SYSTEM} logs -l {NAME}=gpu-share-webhook --tail 10",
        )
        return "\n".join(f"$ {each}\n{self.shell(each, seconds=30, check=False)}" for each in commands)


def _holds(check: Check) -> bool:
    try:
        return bool(check())
    except ClusterError:
        return False


def ready(pod: Object) -> bool:
    """Whether a pod says it is ready."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def restarts(pod: Object) -> dict[str, int]:
    """Restart count of every container of a pod, init containers included."""
    status = pod["status"]
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return {each["name"]: each["restartCount"] for each in every}


def warnings(events: dict[str, str], words: Sequence[str]) -> bool:
    """Whether the note of some event holds all these words."""
    return any(all(word in note for word in words) for note in events.values())
