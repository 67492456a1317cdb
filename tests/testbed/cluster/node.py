"""A real node: containerd, kubelet and kube-proxy in namespaces of their own, joined to a control plane by a bridge.

Mount, network, cgroup and UTS namespaces make it a machine of its own with the usual paths (``/var/lib/kubelet``,
``/run``): several live beside each other, and nothing is written outside their folder. Pids are the machine's: a pod
with ``hostPID`` sees every process here. What it runs lives in one control group, by which it is ended; mounts,
interfaces and routes go with its last process, so that a crash leaves what the next sweep can clear.
"""

import json
import os
import secrets
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.testbed.cluster import archive, cgroups, node_files, packages, pki, versions
from tests.testbed.cluster.binaries import Group, cache_root, find_all
from tests.testbed.cluster.controlplane import NODE_STATE, ControlPlane
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.network import MOST_NODES, Network, run
from tests.testbed.cluster.processes import Process

READY_SECONDS: Final = 90.0
NEEDED: Final = ("ip", "unshare", "nsenter", "mount", "hostname")
SOCKET: Final = "/run/containerd/containerd.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One running node; ``number`` chooses its addresses, ``cgroup`` is its group in every hierarchy."""

    plane: ControlPlane
    name: str
    number: int
    cgroup: str
    pause: ClassVar[float] = 0.3
    """Seconds between two questions of a test."""

    @classmethod
    def start(cls, plane: ControlPlane, name: str = "node-1", labels: dict[str, str] | None = None) -> Self:
        """Start a node on a control plane made with ``nodes=True`` and wait until it is Ready.

        Raises:
            BedError: a right or a program is missing, or it did not become Ready.
        """
        require_rights()
        binaries, tree = find_all(Group.NODE, Group.CHART), packages.tree(packages.NODE_PACKAGES)
        node = cls._register(plane, name)
        try:
            node._start(binaries, tree, labels)
        except BaseException:
            node.stop()
            raise
        return node

    @classmethod
    def load(cls, plane: ControlPlane, name: str = "node-1") -> Self | None:
        """Return a node that was started before, maybe by another process, or None."""
        try:
            state = json.loads((_home(plane, name) / NODE_STATE).read_text())
        except (OSError, ValueError):
            return None
        return cls(plane=plane, name=name, number=state["number"], cgroup=state["cgroup"])

    @property
    def home(self) -> Path:
        """Folder of everything it writes."""
        return _home(self.plane, self.name)

    @property
    def holder(self) -> Process:
        """The process that holds its namespaces."""
        return next(each for each in self.plane.processes if each.name == f"{self.name}-namespaces")

    @property
    def address(self) -> str:
        """Its address, which pods and this machine reach."""
        return self._network.node_address(self.number)

    def host(self, where: str) -> Path:
        """Where a path of the node (below /var or /run) is on this machine. Mounts made on the node are not seen."""
        inside = where.replace("/var/run/", "/run/", 1)
        return self.home / inside.lstrip("/") if inside.startswith(("/var/", "/run/")) else Path(where)

    def command(self, *command: str) -> list[str]:
        """Command line that runs ``command`` on the node: in its namespaces and its control group."""
        files = " ".join(str(file) for file in cgroups.procs_files(self.cgroup, cgroups.hierarchies()))
        enter = ["nsenter", f"--target={self.holder.pid}", "--mount", "--net", "--cgroup", "--uts", "--", *command]
        return ["sh", "-c", 'for file in $0; do echo $$ > "$file"; done; exec "$@"', files, *enter]

    def run(self, *command: str) -> str:
        """Run a program on the node to its end and return what it printed; BedError when it fails."""
        return run(*self.command(*command))

    def load_image(self, file: Path) -> None:
        """Import a docker or OCI archive for pods with ``imagePullPolicy: Never``."""
        ctr = str(find_all(Group.NODE)["ctr"])
        self.run(ctr, f"--address={SOCKET}", "--namespace=k8s.io", "images", "import", str(file.absolute()))

    def start_kubelet(self, labels: dict[str, str] | None = None, group: Group = Group.NODE) -> None:
        """Start the kubelet of a group, with its identity as a node; ``labels`` are set when it registers."""
        command = [
            str(find_all(group)["kubelet"]),
            "--config=/var/lib/kubelet/config.yaml",
            f"--kubeconfig={self.plane.kubeconfig(self.name).absolute()}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in (labels or {}).items())}",
            "--v=2",
        ]
        self._run("kubelet", command)

    def stop_kubelet(self) -> None:
        """End the kubelet; containers go on."""
        self.plane.drop(f"{self.name}-kubelet")

    def restart_containerd(self, group: Group = Group.NODE) -> None:
        """End containerd and start that of a group; containers go on."""
        self.plane.drop(f"{self.name}-containerd")
        self._start_containerd(find_all(group))

    def ready(self) -> bool:
        """Whether its condition says so."""
        try:
            node = self.plane.cluster().get(path(CORE_V1, "nodes", self.name))
        except ClusterError:
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in _conditions(node))

    def stop(self) -> None:
        """End it with all that runs on it, and remove its folder; the Node object stays."""
        for process in [each for each in self.plane.processes if each.name.startswith(f"{self.name}-")]:
            self.plane.drop(process.name)
        cgroups.end(self.cgroup, cgroups.hierarchies())
        self._network.detach(self.number)
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def _network(self) -> Network:
        assert self.plane.network is not None, "ControlPlane.start(..., nodes=True)"
        return self.plane.network

    @property
    def _keys(self) -> Path:
        return self.plane.root.absolute() / "pki"

    @classmethod
    def _register(cls, plane: ControlPlane, name: str) -> Self:
        """Write down what will be made before it is made."""
        taken = {json.loads(file.read_text())["number"] for file in plane.root.glob(f"nodes/*/{NODE_STATE}")}
        number = next(each for each in range(1, MOST_NODES + 1) if each not in taken)
        node = cls(plane=plane, name=name, number=number, cgroup=f"gpu-share-bed-{secrets.token_hex(4)}")
        node.home.mkdir(parents=True)
        (node.home / NODE_STATE).write_text(json.dumps({"number": number, "cgroup": node.cgroup}))
        return node

    def _start(self, binaries: dict[str, Path], tree: Path, labels: dict[str, str] | None) -> None:
        node_files.lay_out(self.home)
        (self.home / "packages").symlink_to(tree)
        self._certify()
        node_files.write(self.home, self.name, self.number, self._network, self._keys)
        self._hold_namespaces()
        self._network.attach(self.number, self.holder.pid)
        self._start_containerd(binaries)
        self.load_image(self._hand_made_images())
        self.start_kubelet(labels)
        self._run("kube-proxy", [str(binaries["kube-proxy"]), "--config=/var/lib/kube-proxy/config.yaml"])
        self._offer_programs(binaries)
        self.plane.wait(f"node {self.name} is Ready", self.ready, READY_SECONDS)

    def _certify(self) -> None:
        pki.issue(self._keys, f"{self.name}-serving", self.name, names=[self.name], addresses=[self.address])
        self.plane.certified(self.name, f"system:node:{self.name}", "system:nodes")
        self.plane.certified("kube-proxy", "system:kube-proxy")

    def _hold_namespaces(self) -> None:
        mounted = cgroups.hierarchies()
        cgroups.create(self.cgroup, mounted)
        keep = [cache_root(), self.plane.root.absolute()]
        script = self.home / "namespaces.sh"
        script.write_text(node_files.namespaces_script(self.home, self.name, self.cgroup, mounted, keep))
        files = " ".join(str(each.where / self.cgroup / cgroups.PROCS) for each in mounted)
        unshare = ["unshare", "--mount", "--net", "--cgroup", "--uts", "--propagation=private", "sh", str(script)]
        command = ["sh", "-c", 'for file in $0; do echo $$ > "$file"; done; exec "$@"', files, *unshare]
        self.plane.add(f"{self.name}-namespaces", command)
        self.plane.wait("the namespaces are laid out", (self.home / "run" / "laid-out").exists)

    def _start_containerd(self, binaries: dict[str, Path]) -> None:
        folders = {str(binaries[name].parent) for name in ("containerd", "containerd-shim-runc-v2")}
        env = {**os.environ, "PATH": ":".join([*folders, "/usr/sbin:/usr/bin:/sbin:/bin"])}
        command = [str(binaries["containerd"]), "--config=/var/lib/containerd/config.toml"]
        self._run("containerd", command, env)
        ctr = [str(binaries["ctr"]), f"--address={SOCKET}", "--timeout=2s", "version"]
        self.plane.wait("containerd answers", lambda: _succeeds(self.command(*ctr)))

    def _hand_made_images(self) -> Path:
        images = {node_files.PAUSE_IMAGE: archive.FOREVER, archive.BUSYBOX_IMAGE: ()}
        return archive.busybox(self.home / "busybox.tar", packages.busybox(), images)

    def _offer_programs(self, binaries: dict[str, Path]) -> None:
        """Put kubectl, helm and a way onto the node into ``bin`` of the cluster's folder, for people and tests."""
        folder = self.plane.root / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("kubectl", "helm"):
            if not (folder / name).exists():
                (folder / name).symlink_to(binaries[name])
        script = folder / f"on-{self.name}"
        own = f"export PATH={binaries['ctr'].parent}:$PATH"
        script.write_text(
            f'#!/bin/sh\n# Runs a command on {self.name}.\n{own}\nexec {shlex.join(self.command())} "$@"\n'
        )
        script.chmod(0o755)

    def _run(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        self.plane.add(f"{self.name}-{name}", self.command(*command), env)


def require_rights() -> None:
    """Raise BedError that says what a node needs and this process lacks."""
    versions.require_newest("a real node")
    if lacking := [program for program in NEEDED if not shutil.which(program)]:
        raise BedError(f"a node needs {', '.join(lacking)} (Debian packages iproute2, util-linux, hostname)")
    if os.geteuid() != 0:
        raise BedError("a node needs root: run this as root, or take `--control-plane-only`")
    try:
        run("unshare", "--mount", "--net", "--cgroup", "--uts", "ip", "link", "set", "lo", "up")
    except BedError as error:
        raise BedError(f"a node needs the right to make namespaces (CAP_SYS_ADMIN, CAP_NET_ADMIN): {error}") from error


def _home(plane: ControlPlane, name: str) -> Path:
    return plane.root.absolute() / "nodes" / name


def _conditions(node: dict[str, Any]) -> list[dict[str, Any]]:
    return list((node.get("status") or {}).get("conditions") or [])


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
