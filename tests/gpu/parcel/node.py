"""The node of the parcel: control plane, containerd and kubelet, started in the namespaces this process is in."""

import fcntl
import json
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.gpu.parcel import container_spec, image, node_settings
from tests.gpu.parcel.layout import ADDRESS, BINARIES, NODE
from tests.testbed.cluster import pki
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.network import Network, run

SOCKET: Final = "/run/containerd/containerd.sock"
SYSTEM: Final = "gpu-share-system"
API_PORT: Final = 443
READY_SECONDS: Final = 90.0
SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFNETMASK, UP = 0x8916, 0x8913, 0x8914, 0x891C, 0x1
HOST_NETWORK: Final = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": "parcel-host-network"},
    "spec": {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ],
        },
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{spec: Object.spec{hostNetwork: true}}"},
            }
        ],
    },
}
"""Pods have no network here, and the product's own have to reach the API server."""


class OwnNetwork(Network):
    """A network namespace of which the one node has loopback and an address on it."""

    @property
    def address(self) -> str:
        """Where the API server listens."""
        return ADDRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcelNode:
    """One running node; ``home`` is what it sees as ``/var`` and ``/run``, ``parcel`` what was unpacked."""

    plane: ControlPlane
    home: Path
    parcel: Path
    name: str = NODE
    pause: ClassVar[float] = 0.2

    @classmethod
    def start(cls, run: Path, parcel: Path) -> Self:
        """Start everything and wait until the node is Ready. Raises ``BedError``."""
        bring_up_loopback()
        plane = ControlPlane.start(run / "cluster", network=OwnNetwork(run, 0), nodes=True, port=API_PORT)
        node = cls(plane=plane, home=run / "node", parcel=parcel)
        plane.certified(NODE, f"system:node:{NODE}", "system:nodes")
        pki.issue(run / "cluster" / "pki", f"{NODE}-serving", NODE, names=[NODE], addresses=[ADDRESS])
        node._start_containerd()
        node._load_images()
        node._start_kubelet()
        _share_the_network(plane.cluster())
        plane.wait(f"node {NODE} is Ready", node.ready, READY_SECONDS)
        return node

    def host(self, where: str) -> Path:
        """Where a path of the node is: here, it is the same."""
        return Path(where)

    def ready(self) -> bool:
        """Whether its condition says so."""
        try:
            node = self.plane.cluster().get(path(CORE_V1, "nodes", NODE))
        except ClusterError:
            return False
        conditions: list[dict[str, Any]] = (node.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def describe_gpus(self, uuids: list[str]) -> None:
        """Stand in for NVIDIA's toolkit: name the GPUs to the container runtime."""
        Path("/run/cdi").mkdir(exist_ok=True)
        Path("/run/cdi/nvidia.json").write_text(json.dumps(node_settings.toolkit(uuids)))

    def _start_containerd(self) -> None:
        container_spec.write(Path("/var/lib/containerd/base.json"), self.parcel)
        self.plane.add("containerd", ["containerd", "--config=/var/lib/containerd/config.toml"])
        self.plane.wait("containerd answers", lambda: _succeeds(["ctr", f"--address={SOCKET}", "version"]))

    def _load_images(self) -> None:
        file = self.home / "images.tar"
        image.write(file, self.parcel / BINARIES / "busybox", container_spec.environment())
        ctr = ["ctr", f"--address={SOCKET}", "--namespace=k8s.io", "images", "import", "--no-unpack"]
        run(*ctr, str(file))

    def _start_kubelet(self) -> None:
        command = [
            "kubelet",
            "--config=/var/lib/kubelet/config.yaml",
            f"--kubeconfig={self.plane.kubeconfig(NODE).absolute()}",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
            "--v=2",
        ]
        self.plane.add("kubelet", command)


def bring_up_loopback() -> None:
    """Give loopback its flag and our address, by the calls that need no program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        flags = struct.unpack("16sh", fcntl.ioctl(door, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(door, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | UP))
        for call, value in ((SIOCSIFADDR, ADDRESS), (SIOCSIFNETMASK, "255.255.255.255")):
            told = struct.pack("16sHH4s8x", b"lo:0", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(door, call, told)


def _share_the_network(cluster: KubeClient) -> None:
    base = "/apis/admissionregistration.k8s.io/v1"
    cluster.create(path(base, "mutatingadmissionpolicies"), HOST_NETWORK)
    name = HOST_NETWORK["metadata"]["name"]  # type: ignore[index] # an object of Kubernetes
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    cluster.create(path(base, "mutatingadmissionpolicybindings"), binding)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
