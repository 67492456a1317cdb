"""What the cases work with: the node with the product on it, as a person with kubectl has it, and the truth."""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpushare.kube_client import CORE_V1, path
from tests.e2e.site import SYSTEM, Site, ready
from tests.gpu.parcel import image, tenants, truth
from tests.gpu.parcel.layout import BINARIES, NODE, ROOT, SITE
from tests.gpu.parcel.node import ParcelNode
from tests.integration.controlplane.bed import PODS, Bed

Object = dict[str, Any]
COMMON: Final = "--set webhook.replicas=1 --set enforcer.unaccounted=kill"
REAL: Final = f"{COMMON} --set mps.setComputeMode=false"
FAKE: Final = f"{COMMON} --set simulate.enabled=true --set simulate.gpus=1 --set simulate.memory=80Gi"


class ParcelSite(Site):
    """The site of the end-to-end tests, with the parcel's programs."""

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.bed.plane.kubeconfig().absolute())}


@dataclass(slots=True, kw_only=True)
class Scene:
    """One run's node and programs; ``figures`` is what the case that runs now has measured."""

    site: ParcelSite
    node: ParcelNode
    backend: str
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether the GPU is one of the simulator's."""
        return self.backend == "fake"

    @property
    def programs(self) -> tenants.Programs:
        """Programs that use this GPU."""
        return tenants.Programs(self.simulated)

    @property
    def options(self) -> str:
        """What ``helm install`` is given here."""
        return FAKE if self.simulated else REAL

    def truth(self) -> dict[str, Any]:
        """What the driver says now."""
        return truth.ask(self.backend)

    def block(self, name: str) -> str:
        """Run a block of the README."""
        return self.site.run_block(name, NODE=NODE, OPTIONS=self.options, IMAGE=image.PLAIN)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Measure the seconds of a part, under that name."""
        began = time.monotonic()
        yield
        self.figures[what] = round(time.monotonic() - began, 2)

    def installed(self) -> bool:
        """Whether the product is there and offers the GPU."""
        return bool(self.site.devices())

    def ensure_installed(self) -> None:
        """Install it where an earlier case did not."""
        if not self.installed():
            self.block("install")
            self.site.until("the GPU is offered", self.installed, 60)

    @contextmanager
    def namespace(self, name: str, **annotations: str) -> Iterator[str]:
        """A namespace that shares, deleted with all in it."""
        made = self.site.namespace(name, **annotations)
        try:
            yield made
        finally:
            for each in self.site.pods(made):
                self.site.remove(made, each["metadata"]["name"], grace=0)
            self.site.drop(made)

    def lines(self, namespace: str, pod: str, *, previous: bool = False) -> list[Object]:
        """The JSON lines that a container has printed."""
        text = self.site.logs(namespace, pod, tenants.MAIN, previous=previous)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def ended(self, namespace: str, pod: str, seconds: float = 60) -> str:
        """Wait until a pod that is not restarted has ended; its phase."""

        def phase() -> str:
            return str(self.site.bed.pod(namespace, pod)["status"].get("phase"))

        self.site.until(f"{pod} has ended", lambda: phase() in {"Succeeded", "Failed"}, seconds)
        return phase()

    def wait_mib(self, at_most: int, seconds: float = 20) -> int:
        """Wait until the GPU has no more than that in use; what it has."""
        self.site.until(f"at most {at_most} MiB are in use", lambda: self.truth()["used_mib"] <= at_most, seconds, 0.5)
        return int(self.truth()["used_mib"])

    def metrics(self, port: int = 9403, host: str = "127.0.0.1") -> str:
        """A page of metrics of a program on the node's network."""
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as page:
            return str(page.read().decode())

    def system_pods(self, app: str) -> list[Object]:
        """Pods of one of the product's programs that are not on their way out."""
        found = self.site.cluster.list(
            path(CORE_V1, PODS, namespace=SYSTEM), labelSelector=f"app.kubernetes.io/name={app}"
        )[0]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def all_ready(self, app: str) -> bool:
        """Whether such pods exist and each is ready."""
        found = self.system_pods(app)
        return bool(found) and all(ready(each) for each in found)


def make(node: ParcelNode, backend: str, work: Path) -> Scene:
    """The scene of a node that is Ready. ``gpu-share`` on the command line is the checkout's."""
    program = work / "bin" / "gpu-share"
    program.parent.mkdir(parents=True)
    main = "import sys; from gpushare_cli.main import main; sys.argv[0] = 'gpu-share'; sys.exit(main())"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:{node.parcel / SITE} exec {sys.executable} -c "{main}" "$@"\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{node.parcel / BINARIES}:{os.environ['PATH']}"
    bed = Bed(plane=node.plane, cluster=node.plane.cluster())
    site = ParcelSite(bed=bed, node=node, work=ROOT)  # type: ignore[arg-type] # it has what a site needs of a node
    return Scene(site=site, node=node, backend=backend)
