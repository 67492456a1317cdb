"""Start and end etcd, kube-apiserver, kube-scheduler and kube-controller-manager as one thing.

Everything lives under one folder: keys, kubeconfigs, etcd's data, logs and ``state.json`` with the pids. RBAC and the
default admission plugins are on, service accounts included: roles are part of what is tested. Without ``nodes`` it all
listens on loopback, and nodes are API objects without heartbeats; with them the API server listens on a bridge that
real nodes (``tests.testbed.cluster.node``) are joined to.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import yaml

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.support.patience import holds_within, patient
from tests.testbed.cluster import cgroups, pki, servers, used_rights
from tests.testbed.cluster.binaries import find_all
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.network import Network
from tests.testbed.cluster.ports import free_ports
from tests.testbed.cluster.processes import (
    PATIENCE_SECONDS,
    Process,
    alive,
    end,
    require_alive,
    spawn,
    start_time,
    tail,
)

ADMIN: Final = "admin"
OPERATOR: Final = "operator"
TENANT: Final = "tenant"
SCHEDULER: Final = "scheduler"
CONTROLLER_MANAGER: Final = "controller-manager"
IDENTITIES: Final = {
    ADMIN: ("admin", "system:masters"),
    OPERATOR: ("operator", "operators"),
    TENANT: ("tenant", "tenants"),
    SCHEDULER: ("system:kube-scheduler", ""),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", ""),
}
SERVERS: Final = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
STATE: Final = "state.json"
NODE_STATE: Final = "node.json"
READY_SECONDS: Final = 60.0
TOKEN_SECONDS: Final = 24 * 3600
RBAC_V1: Final = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """A running control plane. ``root`` is its folder, ``url`` the API server's address.

    ``processes`` holds the servers; programs of the product under test may be added with :meth:`add`, so that they end
    with the cluster, also from another process.
    """

    root: Path
    url: str
    processes: list[Process] = field(default_factory=list)
    network: Network | None = None

    @classmethod
    def start(
        cls,
        root: Path,
        *,
        client_rate: int | None = 100,
        nodes: bool = False,
        network: Network | None = None,
        port: int | None = None,
    ) -> Self:
        """Start all four servers and wait until they work.

        Args:
            root: folder for everything; a stale one is cleaned up first.
            client_rate: requests per second that scheduler and controller-manager allow themselves; ``None`` is
                their own default, 50 and 20, which decides how fast claims are made.
            nodes: whether real nodes will join it; needs root.
            network: one that is there already, for ``nodes``.
            port: where the API server listens; any that is free.

        Raises:
            BedError: a server is missing, ended or did not become ready.
        """
        binaries = find_all()
        remove(root)
        (root / "kubeconfigs").mkdir(parents=True)
        network = network or (Network.create(root) if nodes else None)
        address = network.address if network else "127.0.0.1"
        pki.write(root / "pki", [address])
        pki.issue(root / "pki", servers.KUBELET_CLIENT, servers.KUBELET_CLIENT)
        ports = [*free_ports(3)[:2], port] if port else free_ports(3)
        plane = cls(root=root, url=f"https://{address}:{ports[2]}", network=network)
        plane._save()
        plane._write_identities()
        try:
            plane._start_all(binaries, ports, client_rate)
        except BaseException:
            plane._end()
            raise
        return plane

    @classmethod
    def load(cls, root: Path) -> Self | None:
        """Return the control plane kept in ``root``, running or not, or None when there is none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((root / STATE).read_text())
            processes = [Process(**each) for each in state["processes"]]
            return cls(root=root, url=state["url"], processes=processes, network=Network.load(root))
        return None

    @classmethod
    def resume(cls, root: Path) -> Self:
        """Start the servers of the control plane kept in ``root`` again, on the addresses they had.

        Raises:
            BedError: nothing is kept there, or a server did not become ready.
        """
        plane = cls.load(root)
        if plane is None:
            raise BedError(f"{root} holds no control plane")
        commands = {each.name: each for each in plane.processes}
        plane.processes = []
        try:
            for names in (SERVERS[:2], SERVERS[2:]):
                plane.again(commands[name] for name in names)
        except BaseException:
            plane._end()
            raise
        return plane

    def pause(self) -> None:
        """End the servers. The folder keeps their data and command lines for :meth:`resume`."""
        ended = [process for name in reversed(SERVERS) for process in self.drop(name)]
        self.processes += ended
        self._save()

    def stop(self) -> None:
        """End every process and remove the folder."""
        self._end()
        used_rights.keep(self.root)
        shutil.rmtree(self.root, ignore_errors=True)

    def _end(self) -> None:
        _end_nodes(self.root)
        _end_all(self.processes)
        _remove_network(self.root)

    @property
    def running(self) -> bool:
        """Whether all of its processes are alive."""
        return bool(self.processes) and all(alive(process) for process in self.processes)

    def kubeconfig(self, identity: str = ADMIN) -> Path:
        """File with the credentials of one of ``IDENTITIES``, or of a service account made known before."""
        return self.root / "kubeconfigs" / f"{identity}.yaml"

    def cluster(self, identity: str = ADMIN) -> KubeClient:
        """Open a connection as one of the identities."""
        return KubeClient.connect(str(self.kubeconfig(identity)))

    def service_account(self, namespace: str, name: str, node: dict[str, Any] | None = None) -> Path:
        """Kubeconfig with a token of that service account, made by the API server; bound to ``node`` where given.

        A token bound to a node carries the node's name, as a pod's token on it does; claim status and slices are
        granted by it.
        """
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_SECONDS}
        label = f"{namespace}.{name}"
        if node is not None:
            meta = node["metadata"]
            spec["boundObjectRef"] = {"kind": "Node", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
            label = f"{label}.{meta['name']}"
        where = f"{path(CORE_V1, 'serviceaccounts', name, namespace)}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.cluster().create(where, request)["status"]["token"]
        return self._write_kubeconfig(label, {"token": token})

    def add(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Process:
        """Start one more program that ends with the cluster."""
        process = spawn(name, command, self.log(name), env)
        self.processes.append(process)
        self._save()
        return process

    def drop(self, name: str, patience: float = PATIENCE_SECONDS) -> list[Process]:
        """End programs of that name, which need not run any more; :meth:`again` takes what is returned.

        ``patience`` is what they have to end by themselves, in seconds: an API server with watchers takes all of it.
        """
        gone = [process for process in self.processes if process.name == name]
        end(gone, patience)
        self.processes[:] = [process for process in self.processes if process not in gone]
        self._save()
        return gone

    def again(self, dropped: Iterable[Process]) -> None:
        """Start dropped programs with the same command lines (in this process's environment); wait for the API."""
        started = [self.add(process.name, list(process.command)) for process in dropped]
        self.wait("the API server is ready", self._ready, alive=started)

    def log(self, name: str) -> Path:
        """File with the output of one program."""
        return self.root / "logs" / f"{name}.log"

    def tails(self, names: Iterable[str] = (), lines: int = 15) -> str:
        """Return the ends of the given logs (all of them when none is named), for the report of a failed test."""
        logs = [self.log(name) for name in names] or sorted((self.root / "logs").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{tail(log, lines)}" for log in logs)

    def _start_all(self, binaries: dict[str, Path], ports: list[int], rate: int | None) -> None:
        store, root = ports[0], self.root
        self.add("etcd", servers.etcd(binaries["etcd"], root, *ports[:2]))
        self.add("kube-apiserver", servers.apiserver(binaries["kube-apiserver"], root, store, ports[2], self.network))
        self.wait("the API server is ready", self._ready)
        _grant(self.cluster(), "cluster-admin", "Group", "operators")
        _grant(self.cluster(), "system:kubelet-api-admin", "User", servers.KUBELET_CLIENT)
        self.add(
            "kube-scheduler", servers.scheduler(binaries["kube-scheduler"], root, self.kubeconfig(SCHEDULER), rate)
        )
        manager, nodes = binaries["kube-controller-manager"], self.network is not None
        command = servers.manager(manager, root, self.kubeconfig(CONTROLLER_MANAGER), rate, nodes=nodes)
        self.add("kube-controller-manager", command)
        self.wait("the controller-manager works", self._controllers_work)

    def wait(
        self,
        what: str,
        check: Callable[[], bool],
        seconds: float = READY_SECONDS,
        *,
        alive: Sequence[Process] | None = None,
    ) -> None:
        """Poll until ``check()``; a dead server or the end of patience raises ``BedError`` with the logs' ends.

        Who has to be ``alive`` is everybody by default: tests end some of their own programs on purpose.
        """

        def check_alive() -> bool:
            require_alive(self.processes if alive is None else alive)
            return check()

        if not holds_within(check_alive, seconds):
            raise BedError(f"waited {patient(seconds):.0f} s in vain until {what}:\n{self.tails()}")

    def _ready(self) -> bool:
        try:
            self.cluster().get("/apis", timeout=2)
            _readyz(self.cluster())
        except ClusterError:
            return False
        return True

    def _controllers_work(self) -> bool:
        try:
            self.cluster().get(path(CORE_V1, "serviceaccounts", "default", "default"))
        except ClusterError:
            return False
        return True

    def _save(self) -> None:
        state = {
            "url": self.url,
            "owner": {"pid": os.getpid(), "started": start_time(os.getpid())},
            "processes": [asdict(process) for process in self.processes],
        }
        fresh = self.root / f"{STATE}.new"
        fresh.write_text(json.dumps(state, indent=1))
        fresh.replace(self.root / STATE)

    def _write_identities(self) -> None:
        rows = []
        for identity, (user, group) in IDENTITIES.items():
            token = secrets.token_hex(16)
            self._write_kubeconfig(identity, {"token": token})
            rows.append(f'{token},{user},{user},"{group}"' if group else f"{token},{user},{user}")
        tokens = self.root / "pki" / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("\n".join(rows) + "\n")

    def certified(self, name: str, user: str, group: str = "") -> Path:
        """Kubeconfig of ``user`` with a certificate of this cluster's CA: what kubelets and kube-proxy come with."""
        keys = (self.root / "pki").absolute()
        pki.issue(keys, name, user, group=group)
        files = {"client-certificate": f"{keys}/{name}.crt", "client-key": f"{keys}/{name}.key"}
        return self._write_kubeconfig(name, files)

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        ca = str((self.root / "pki" / "ca.crt").absolute())
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": ca}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
            "current-context": name,
        }
        target = self.kubeconfig(name)
        target.touch(mode=0o600)
        target.write_text(yaml.safe_dump(content))
        return target


def remove(root: Path) -> None:
    """End what an earlier run left in ``root`` and remove the folder; nothing there is fine."""
    _end_nodes(root)
    if left := ControlPlane.load(root):
        _end_all(left.processes)
    _remove_network(root)
    if root.exists():
        shutil.rmtree(root)


def _end_nodes(root: Path) -> None:
    """End the nodes of a cluster with all that runs on them. Their mounts go with the last process.

    What this machine sees of a virtual node's files is a mount of its own, and stays where sshfs was killed.
    """
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if Path(line.split()[1]).is_relative_to(root.absolute()):
            subprocess.run(["umount", "--lazy", line.split()[1]], capture_output=True, check=False)
    for state in root.glob(f"nodes/*/{NODE_STATE}"):
        cgroups.end(json.loads(state.read_text())["cgroup"], cgroups.hierarchies())


def _remove_network(root: Path) -> None:
    if network := Network.load(root):
        network.remove()


def sweep(parent: Path) -> None:
    """Remove control planes under ``parent`` whose owner is gone: what a killed test run left behind."""
    for state in parent.glob(f"*/{STATE}"):
        with suppress(OSError, ValueError, KeyError):
            owner = json.loads(state.read_text())["owner"]
            if start_time(owner["pid"]) != owner["started"]:
                remove(state.parent)


def _end_all(processes: list[Process]) -> None:
    """Let the product's programs end in their own way; Kubernetes' servers, whose data goes as well, at once."""
    end(process for process in processes if process.name not in SERVERS)
    end((process for process in processes if process.name in SERVERS), patience=0)


def _readyz(cluster: KubeClient) -> None:
    """``/readyz`` answers in plain text, which the client reports as unreadable: its status tells."""
    try:
        cluster.get("/readyz", timeout=2)
    except ClusterError as error:
        if error.status != 200:
            raise


def _grant(cluster: KubeClient, role: str, kind: str, name: str) -> None:
    group = "rbac.authorization.k8s.io"
    cluster.create(
        path(RBAC_V1, "clusterrolebindings"),
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": kind, "name": name}],
        },
    )
