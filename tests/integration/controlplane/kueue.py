"""Run the recipe for Kueue with Kueue itself: ``python -m tests.integration.controlplane.kueue``.

It is no part of a test run: building Kueue takes a quarter of an hour and 2 GiB. Kueue's manager is built from its Go
module and runs as a process, with the objects, roles and webhooks of its own chart; nodes and GPUs are API objects.
"""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import yaml

from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane import objects, programs
from tests.integration.controlplane.bed import PODS, Bed
from tests.integration.controlplane.conftest import BUILD
from tests.integration.controlplane.objects import Object
from tests.support import helm
from tests.support.recipes import block
from tests.testbed.cluster.binaries import Group, cache_root, find_all
from tests.testbed.cluster.build import find_go
from tests.testbed.cluster.controlplane import ADMIN, ControlPlane
from tests.testbed.cluster.ports import free_ports

VERSION: Final = "0.19.2"
MODULE: Final = f"sigs.k8s.io/kueue@v{VERSION}"
SYSTEM: Final = "kueue-system"
SERVICE: Final = "kueue-webhook-service"
SECRET: Final = "kueue-webhook-server-cert"
QUEUES: Final = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE: Final = "team"
GATE: Final = "kueue.x-k8s.io/admission"
GANG: Final = 4
WHILE: Final = 6.0
"""Seconds in which a gang that is to wait is looked at."""
BY_COUNT: Final = {"gpu-shares": "6"}
BY_MEMORY: Final = {"gpu-memory": "20Gi"}
BY_PODS: Final = {"pods": "6"}
AMPLE: Final = {"cpu": "100", "memory": "100Gi", "pods": "100", "gpu-share-status": "100", "mig-instances": "8"}
RETENTION: Final = 2
NODES: Final = 4
IN_CHART: Final = frozenset(
    {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret"}
    | {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
)


def build() -> tuple[Path, Path]:
    """Build the manager if need be; returns it, and the module's folder."""
    home = cache_root() / f"kueue-v{VERSION}"
    go, environment = find_go(), {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOBIN": str(home)}
    found = subprocess.run([go, "mod", "download", "-json", MODULE], capture_output=True, check=True, env=environment)
    if not (home / "kueue").exists():
        package = MODULE.replace("@", "/cmd/kueue@")
        subprocess.run([go, "install", "-trimpath", package], check=True, env=environment)
    return home / "kueue", Path(json.loads(found.stdout)["Dir"])


class Kueue:
    """Kueue on a control plane. Its Service is this machine, and its Secret is mounted from here."""

    def __init__(self, bed: Bed, program: Path, module: Path) -> None:
        self.bed, self._program = bed, program
        self._port, self._health = free_ports(2)
        self._folder = bed.plane.root / "kueue"
        (self._folder / "certs").mkdir(parents=True)
        bed.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": SYSTEM}})
        rendered = helm.run("template", "kueue", str(module / "charts" / "kueue"), f"--namespace={SYSTEM}")
        self._apply(each for each in yaml.load_all(rendered, helm.FAST) if each and each["kind"] in IN_CHART)
        spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self._port}]}
        bed.cluster.create(path(CORE_V1, "services", namespace=SYSTEM), {"metadata": {"name": SERVICE}, "spec": spec})

    def _apply(self, found: Iterator[Object]) -> None:
        """Apply objects; calls of webhooks go to the manager's own port."""
        file = self._folder / "chart.yaml"
        file.write_text(yaml.dump_all(_with_port(each, self._port) for each in found))
        command = [str(find_all(Group.NODE)["kubectl"]), f"--kubeconfig={self.bed.plane.kubeconfig(ADMIN)}", "apply"]
        programs.run([*command, "--server-side", f"--filename={file}"], self._folder / "apply.log")

    def start(self, configuration: Object) -> None:
        """Start the manager with these settings, in place of the one that runs."""
        self.bed.plane.drop("kueue")
        own = {
            "namespace": SYSTEM, "leaderElection": {"leaderElect": False}, "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "webhook": {"port": self._port, "certDir": str(self._folder / "certs")},
            "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        }  # fmt: skip
        gates = {**configuration.get("featureGates", {}), "VisibilityOnDemand": False}
        file = self._folder / "config.yaml"
        file.write_text(yaml.safe_dump({**configuration, **own, "featureGates": gates}))
        kubeconfig = self.bed.plane.service_account(SYSTEM, "kueue-controller-manager")
        self.bed.plane.add("kueue", [str(self._program), f"--config={file}", f"--kubeconfig={kubeconfig}"])
        self.bed.until("Kueue's certificates are there", self._mounted, 60)
        self.bed.until("Kueue is ready", self._ready, 120)
        flavor = path(QUEUES, "resourceflavors")
        if self.bed.find(f"{flavor}/all") is None:
            self._create("ResourceFlavor", flavor, {"metadata": {"name": "all"}})

    def _mounted(self) -> bool:
        data = (self.bed.cluster.get(path(CORE_V1, "secrets", SECRET, SYSTEM)).get("data")) or {}
        for name, content in data.items():
            (self._folder / "certs" / name).write_bytes(base64.b64decode(content))
        return "tls.crt" in data

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/readyz", timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def queue(self, namespace: str, quotas: Mapping[str, str]) -> None:
        """Make a ClusterQueue with these quotas, and a LocalQueue for it in the namespace."""
        all_quotas = {**AMPLE, **quotas}
        rows = [{"name": name, "nominalQuota": quota} for name, quota in all_quotas.items()]
        group = {"coveredResources": [*all_quotas], "flavors": [{"name": "all", "resources": rows}]}
        spec = {"namespaceSelector": {}, "resourceGroups": [group]}
        queues = path(QUEUES, "clusterqueues")
        self._create("ClusterQueue", queues, {"metadata": {"name": namespace}, "spec": spec})
        local = {"metadata": {"name": QUEUE}, "spec": {"clusterQueue": namespace}}
        self._create("LocalQueue", path(QUEUES, "localqueues", namespace=namespace), local)

    def _create(self, kind: str, where: str, body: Object) -> None:
        """Create a custom resource, which has to name its kind."""
        self.bed.cluster.create(where, {"apiVersion": QUEUES.removeprefix("/apis/"), "kind": kind, **body})

    def used(self, namespace: str) -> dict[str, str]:
        """Return what the queue counted last."""
        queue = self.bed.cluster.get(path(QUEUES, "clusterqueues", namespace))
        flavors = queue.get("status", {}).get("flavorsReservation", ())
        return {row["name"]: row["total"] for flavor in flavors for row in flavor["resources"]}

    def said(self, namespace: str) -> list[str]:
        """Return the message of each condition of each Workload."""
        found, _ = self.bed.cluster.list(path(QUEUES, "workloads", namespace=namespace))
        return [each["message"] for item in found for each in item.get("status", {}).get("conditions", ())]


def _with_port(item: Object, port: int) -> Object:
    for each in item.get("webhooks") or ():
        each["clientConfig"]["service"]["port"] = port
    conversion = item.get("spec", {}).get("conversion", {}).get("webhook")
    if item["kind"] == "CustomResourceDefinition" and conversion:
        conversion["clientConfig"]["service"]["port"] = port
    return item


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One namespace with a queue, in which gangs of four shares of 4Gi are tried."""

    bed: Bed
    namespace: str

    def pods(self, gang: str) -> list[Object]:
        return [each for each in self.bed.list(PODS, self.namespace) if each["metadata"]["labels"].get("gang") == gang]

    def group(self, gang: str) -> None:
        """Create a group of plain pods."""
        for number in range(GANG):
            pod = objects.pod(f"{gang}-{number}", "4Gi")
            labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/pod-group-name": gang, "gang": gang}
            pod["metadata"]["labels"] = labels
            pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(GANG)
            self.bed.create(self.namespace, pod)

    def job(self, gang: str, *, injected: bool) -> None:
        """Create a Job of as many pods at once, as its author wrote it or as ``gpu-share inject`` writes it."""
        body = objects.job(objects.pod(gang, "4Gi"))
        body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
        body["spec"] |= {"parallelism": GANG, "completions": GANG}
        body["spec"]["template"]["metadata"]["labels"] = {"gang": gang}
        file = self.bed.plane.root / "job.yaml"
        file.write_text(yaml.safe_dump(body))
        if injected:
            command = [
                *programs.PRODUCT,
                "inject",
                "--templates",
                f"--filename={file}",
                f"--namespace={self.namespace}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=programs.environment())
            file.write_text(done.stdout)
        apply = [str(find_all(Group.NODE)["kubectl"]), "apply", f"--namespace={self.namespace}", f"--filename={file}"]
        kubeconfig = f"--kubeconfig={self.bed.plane.kubeconfig(ADMIN)}"
        programs.run([*apply, kubeconfig], self.bed.plane.log("job"))

    def starts(self, gang: str) -> None:
        def all_bound() -> bool:
            found = self.pods(gang)
            return len(found) == GANG and all(each["spec"].get("nodeName") for each in found)

        self.bed.until(f"all of {gang} have a node", all_bound, 60)

    def waits(self, gang: str) -> None:
        """Look for a while whether any pod of a gang is let go."""
        end = time.monotonic() + WHILE
        while time.monotonic() < end:
            found = self.pods(gang)
            assert all(GATE in map(_name, each["spec"].get("schedulingGates") or ()) for each in found), found
            time.sleep(0.2)

    def finish(self, gang: str) -> None:
        """Let all pods of a gang succeed, as a kubelet would say."""
        for each in self.pods(gang):
            where = path(CORE_V1, PODS, each["metadata"]["name"], self.namespace)
            self.bed.cluster.patch(f"{where}/status", {"status": {"phase": "Succeeded"}})

    def one_after_the_other(self, make: Callable[[str], None]) -> None:
        """Try two gangs of which one fits."""
        make("first")
        self.starts("first")
        make("second")
        self.waits("second")
        self.finish("first")
        self.starts("second")


def _name(item: Object) -> str:
    return str(item["name"])


def try_all(bed: Bed, kueue: Kueue) -> None:
    """Run the recipe as the page has it, then with quotas in GiB, and say what came of each way."""
    written = yaml.safe_load(block("Kueue"))
    written["integrations"]["frameworks"] = ["batch/job", "pod"]
    for name, quotas, configuration in (("count", BY_COUNT, written), ("memory", BY_MEMORY, by_memory(written))):
        kueue.start(configuration)
        try_one(bed, kueue, f"{name}-group", quotas, Trial.group)
        try_one(bed, kueue, f"{name}-injected-job", quotas, partial(Trial.job, injected=True))
        try_one(bed, kueue, f"{name}-job", {**quotas, **BY_PODS}, partial(Trial.job, injected=False))
    try_one(bed, kueue, "amounts-group", BY_MEMORY, Trial.group, **{contract.COUNT_AMOUNTS: "true"})


def try_one(
    bed: Bed, kueue: Kueue, name: str, quotas: Mapping[str, str], make: Callable[["Trial", str], None], **notes: str
) -> None:
    """Try two gangs of which one fits, in a namespace and with a queue of their own."""
    trial, began = Trial(bed=bed, namespace=bed.namespace(name, annotations=notes)), time.monotonic()
    kueue.queue(trial.namespace, quotas)
    try:
        trial.one_after_the_other(partial(make, trial))
        print(f"{name}: one gang after the other, each whole ({time.monotonic() - began:.0f} s)", flush=True)
    except AssertionError as error:
        print(f"{name}: NOT, {str(error).splitlines()[0]}", flush=True)
        print("".join(f"  Kueue: {each}\n" for each in kueue.said(trial.namespace)), flush=True)
    print(f"  reserved at last: {kueue.used(trial.namespace)}", flush=True)
    for gang in ("first", "second"):
        trial.finish(gang)


def by_memory(configuration: Object) -> Object:
    """Count the memory of shares instead of shares, as the page has it."""
    changed = yaml.safe_load(block("Kueue", 1))
    mappings = [*changed["resources"]["deviceClassMappings"], *configuration["resources"]["deviceClassMappings"][1:]]
    return {**configuration, **changed, "resources": {"deviceClassMappings": mappings}}


def main() -> int:
    program, module = build()
    plane = ControlPlane.start(BUILD / f"kueue-{os.getpid()}")
    try:
        bed = Bed.install(plane, replicas=1, retention=RETENTION)
        for number in range(NODES):
            bed.node(f"node-{number}", 16384)
        try_all(bed, Kueue(bed, program, module))
    finally:
        print(plane.tails(["kueue"], lines=5), flush=True)
        plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
