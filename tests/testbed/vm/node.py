"""A real node in a virtual machine, joined to a control plane by a tap device on its bridge.

It offers what ``tests.testbed.cluster.node.Node`` offers, so that the same tests run on it: commands by ssh, files by
sshfs. In addition its power can be cut, and it can reboot.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import yaml

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.support.patience import holds_within, patient
from tests.testbed.cluster import packages, pki
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.network import links, run
from tests.testbed.cluster.processes import Process, alive, kill
from tests.testbed.vm import disk, rootfs, settings, store
from tests.testbed.vm.machine import Machine

BOOT_SECONDS: Final = 120.0
READY_SECONDS: Final = 240.0
PREFIX: Final = 24
ASK_SECONDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VmNode:
    """One virtual node; ``number`` chooses its addresses."""

    plane: ControlPlane
    name: str
    number: int
    machine: Machine
    pause: ClassVar[float] = 1.5
    """Seconds between two questions of a test: with one in 0.3 s their encryption took a third of its processor."""

    @classmethod
    def start(cls, plane: ControlPlane, name: str = "node-1", number: int = 1, file_system: str = "ext4") -> Self:
        """Power on a fresh node and wait until it is Ready.

        Args:
            plane: made with ``nodes=True``.
            name: of the node.
            number: from 1; of no other node of the plane.
            file_system: of the disk with the enforcer's state, ``ext4`` or ``xfs``.

        Raises:
            BedError: a right or a program is missing, or it did not become Ready.
        """
        require_programs()
        node = cls.at(plane, name, number)
        node.machine.home.mkdir(parents=True)
        try:
            disk.overlay(node.machine.root_disk)
            disk.state(node.machine.state_disk, file_system)
            node.power_on()
            node._configure()
            node.wait_ready()
        except BaseException:
            node.stop()
            raise
        return node

    @classmethod
    def at(cls, plane: ControlPlane, name: str, number: int = 1) -> Self:
        """A node that is off: nothing is made of it yet."""
        network = plane.network
        assert network is not None, "ControlPlane.start(..., nodes=True)"
        machine = Machine(
            home=plane.root.absolute() / "nodes" / name,
            name=name,
            tap=network.interface(number),
            address=f"{network.node_address(number)}/{PREFIX}",
            gateway=network.address,
            mac=f"52:54:00:00:{network.block:02x}:{number:02x}",
        )
        return cls(plane=plane, name=name, number=number, machine=machine)

    @property
    def address(self) -> str:
        """Its address, which pods and this machine reach."""
        return self.machine.address.partition("/")[0]

    # Its power

    def power_on(
        self, *, state_drive: str = "", options: Sequence[str] = (), started: Callable[[Self], None] = lambda _: None
    ) -> None:
        """Switch it on and wait until it can be logged in to; units that are enabled start by themselves.

        ``started`` is called once QEMU runs.
        """
        if self.machine.tap not in links():
            assert self.plane.network is not None
            self.plane.network.tap(self.number)
        self.plane.add(self._qemu, self.machine.command(state_drive=state_drive, options=options))
        started(self)
        self.wait_boot()

    def cut(self) -> None:
        """Take its power: what it has not flushed to its disks is lost."""
        self.forget_connections()
        for process in self._processes():
            kill(process)
        self.plane.drop(self._qemu)

    def off(self) -> bool:
        """Whether it is switched off."""
        return not any(alive(process) for process in self._processes())

    def reboot(self) -> None:
        """Have it shut down in order and start again; returns once it can be logged in to."""
        before = self.boot_id()
        with suppress(BedError):
            self.run("systemctl", "reboot")
        self._wait_other_boot(before)

    def reset(self) -> None:
        """Press its reset button; returns once it can be logged in to."""
        before = self.boot_id()
        self.machine.monitor("system_reset")
        self._wait_other_boot(before)

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return self.run("cat", "/proc/sys/kernel/random/boot_id").strip()

    def _wait_other_boot(self, before: str) -> None:
        self.forget_connections()
        self._wait("it has rebooted", lambda: self._answers() and self.boot_id() != before, BOOT_SECONDS * 2)
        self._mount()

    def wait_boot(self) -> None:
        """Wait until it can be logged in to, and show its files."""
        self._wait("it can be logged in to", self._answers, BOOT_SECONDS)
        self._mount()

    def wait_ready(self) -> None:
        """Wait until its condition says so."""
        self._wait("it is Ready", self.ready, READY_SECONDS)

    def _wait(self, what: str, check: Any, seconds: float) -> None:
        def check_alive() -> bool:
            if self.off():
                raise BedError(f"{self.name} is off:\n{self.machine.console_tail()}\n{self.plane.tails([self._qemu])}")
            return bool(check())

        if not holds_within(check_alive, seconds, 0.3):
            raise BedError(f"waited {patient(seconds):.0f} s in vain until {what}:\n{self.machine.console_tail()}")

    # What is done on it

    def host(self, where: str) -> Path:
        """Where a path of the node is on this machine. ``/var/run`` is a link, which would lead elsewhere here."""
        return self._files / re.sub("^/var/run/", "/run/", where).lstrip("/")

    def command(self, *command: str) -> list[str]:
        """Command line that runs ``command`` on the node as root."""
        return [*self._ssh(), shlex.join(command)]

    def run(self, *command: str) -> str:
        """Run a program on the node to its end and return what it printed; BedError when it fails."""
        return run(*self.command(*command))

    def write(self, where: str, content: str | bytes) -> None:
        """Write a file of the node, which only root may read."""
        script = (
            f"mkdir -p $(dirname {shlex.quote(where)}) && cat > {shlex.quote(where)} && chmod 600 {shlex.quote(where)}"
        )
        data = content.encode() if isinstance(content, str) else content
        done = subprocess.run([*self._ssh(), script], input=data, capture_output=True, check=False)
        if done.returncode:
            raise BedError(f"{where} of {self.name}: {done.stderr.decode()}")

    def load_image(self, file: Path) -> None:
        """Import an archive for pods with ``imagePullPolicy: Never``, unless the disk was made with it."""
        if file in store.files():
            return
        with file.open("rb") as archive:
            command = [*self._ssh(), "ctr --namespace=k8s.io images import -"]
            done = subprocess.run(command, stdin=archive, capture_output=True, check=False)
        if done.returncode:
            raise BedError(f"{file.name} on {self.name}: {done.stderr.decode()}")

    def start_kubelet(self, labels: dict[str, str] | None = None) -> None:
        """Start the kubelet; ``labels`` are set when it registers."""
        if labels:
            listed = ",".join(f"{key}={value}" for key, value in labels.items())
            self.run("sed", "-i", f"s|^NODE_LABELS=.*|NODE_LABELS={listed}|", "/var/lib/kubelet/node.env")
        self.run("systemctl", "start", "kubelet")

    def stop_kubelet(self) -> None:
        """End the kubelet; containers go on."""
        self.run("systemctl", "stop", "kubelet")

    def restart_containerd(self) -> None:
        """End containerd and start it again; containers go on."""
        self.run("systemctl", "restart", "containerd")

    def ready(self) -> bool:
        """Whether its condition says so."""
        try:
            node = self.plane.cluster().get(path(CORE_V1, "nodes", self.name))
        except ClusterError:
            return False
        conditions = (node.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def stop(self) -> None:
        """Take its power and remove its disks; the Node object stays."""
        self.cut()
        if self.plane.network is not None:
            self.plane.network.detach(self.number)
        shutil.rmtree(self.machine.home, ignore_errors=True)

    # How it is reached

    @property
    def _qemu(self) -> str:
        return f"{self.name}-qemu"

    @property
    def _sshfs(self) -> str:
        return f"{self.name}-sshfs"

    @property
    def _files(self) -> Path:
        return self.machine.home / "files"

    def _processes(self) -> list[Process]:
        return [each for each in self.plane.processes if each.name == self._qemu]

    def _ssh(self, *more: str) -> list[str]:
        """Command line of ssh up to the command; one connection serves all of them."""
        flags = [f"-oControlPath={self.machine.home}/ssh", "-oControlMaster=auto", "-oControlPersist=yes", *more]
        return [*self._client(), *flags, f"root@{self.address}", "--"]

    def _client(self) -> list[str]:
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ServerAliveInterval=5",
        )
        flags = [f"-o{each}" for each in (*options, f"ConnectTimeout={ASK_SECONDS}")]
        return ["ssh", "-F", "none", "-i", str(rootfs.tree() / rootfs.KEY), *flags]

    def _answers(self) -> bool:
        try:
            command = self.command("systemctl", "is-active", "--quiet", "testbed-network")
            return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def forget_connections(self) -> None:
        """Let go of the ssh connection and of its files, which end with the machine."""
        unmount(self._files)
        self.plane.drop(self._sshfs, patience=0)
        subprocess.run(self._ssh("-Oexit")[:-1], capture_output=True, check=False)
        (self.machine.home / "ssh").unlink(missing_ok=True)

    def _mount(self) -> None:
        """Show the node's files by sshfs. Nothing of them is cached here."""
        self._files.mkdir(exist_ok=True)
        tree = packages.tree(rootfs.HOST_PACKAGES)
        program = shutil.which("sshfs") or str(tree / "usr/bin/sshfs")
        options = f"ssh_command={shlex.join(self._client())},direct_io,dcache_timeout=0,attr_timeout=0,entry_timeout=0"
        command = [program, "-f", f"root@{self.address}:/", str(self._files), "-o", options]
        self.plane.add(self._sshfs, command, {**os.environ, "LD_LIBRARY_PATH": str(tree / "usr/lib/x86_64-linux-gnu")})
        self._wait("its files are there", (self._files / "etc/fstab").exists, 30)

    def _configure(self) -> None:
        """Give it its certificates and settings, and start its servers; a reboot starts them by itself."""
        assert self.plane.network is not None
        keys = self.plane.root.absolute() / "pki"
        pki.issue(keys, f"{self.name}-serving", self.name, names=[self.name], addresses=[self.address])
        files: dict[str, str | bytes] = dict(settings.files(self.plane.network, self.number, self.name))
        for suffix in ("crt", "key"):
            files[f"{settings.KEYS}/serving.{suffix}"] = (keys / f"{self.name}-serving.{suffix}").read_bytes()
        files[f"{settings.KEYS}/ca.crt"] = (keys / "ca.crt").read_bytes()
        self.plane.certified(self.name, f"system:node:{self.name}", "system:nodes")
        self.plane.certified("kube-proxy", "system:kube-proxy")
        files["/var/lib/kubelet/kubeconfig.yaml"] = _self_contained(self.plane.kubeconfig(self.name))
        files["/var/lib/kube-proxy/kubeconfig.yaml"] = _self_contained(self.plane.kubeconfig("kube-proxy"))
        for where, content in files.items():
            self.write(where, content)
        self.run("sync")
        self.run("systemctl", "restart", "containerd")
        self.run("systemctl", "start", "kubelet", "kube-proxy")


def _self_contained(file: Path) -> str:
    """A kubeconfig with the content of the files that it names."""
    config = yaml.safe_load(file.read_text())
    for entry in (config["clusters"][0]["cluster"], config["users"][0]["user"]):
        for key in ("certificate-authority", "client-certificate", "client-key"):
            if key in entry:
                entry[f"{key}-data"] = base64.b64encode(Path(entry.pop(key)).read_bytes()).decode()
    return str(yaml.safe_dump(config))


def unmount(where: Path) -> None:
    """Let go of a mount, whether its server answers or not."""
    if str(where) in Path("/proc/self/mounts").read_text():
        subprocess.run(["umount", "--lazy", str(where)], capture_output=True, check=False)


def require_programs() -> None:
    """Raise BedError that says what a virtual node needs and this machine lacks."""
    if os.geteuid() != 0:
        raise BedError("a virtual node needs root")
    if lacking := [
        each for each in ("ip", "unshare", "ssh", "ssh-keygen", "mke2fs", "systemctl") if not shutil.which(each)
    ]:
        raise BedError(
            f"a virtual node needs {', '.join(lacking)} (Debian packages iproute2, openssh-client, e2fsprogs, systemd)"
        )
    if not Path("/dev/net/tun").exists():
        raise BedError("a virtual node needs /dev/net/tun")
    find_all(Group.NODE, Group.CHART)
    packages.tree(rootfs.HOST_PACKAGES)
