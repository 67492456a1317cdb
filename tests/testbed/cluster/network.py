"""The network between this machine and its nodes: one bridge, a veth pair for each node, a route to each node's pods.

The API server listens on the bridge. Addresses come from 10.213.0.0/16, sixteen blocks of a /20, one for each cluster
on this machine: in block ``b`` the bridge is 10.213.16b.1, node ``i`` 10.213.16b.(10+i), its pods 10.213.(16b+i).0/24.
"""

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.errors import BedError

BLOCKS: Final = 16
MOST_NODES: Final = 15
FRONT: Final = "10.213"
STATE: Final = "network.json"


@dataclass(frozen=True, slots=True)
class Network:
    """A block of addresses and the bridge that holds it; ``root`` is the folder of the cluster it belongs to."""

    root: Path
    block: int

    @classmethod
    def create(cls, root: Path) -> Self:
        """Take a free block and make its bridge; what was taken is kept in ``root`` before it is made.

        Raises:
            BedError: no block is free, or this machine does not allow it.
        """
        if not shutil.which("ip"):
            raise BedError("a node needs the program ip (Debian package iproute2)")
        with _alone():
            taken = run("ip", "-4", "-o", "address")
            free = [
                each
                for each in (cls(root.absolute(), block) for block in range(BLOCKS))
                if f" {each.address}/" not in taken
            ]
            if not free:
                raise BedError(f"all {BLOCKS} address blocks of {FRONT}.0.0/16 are in use: end another cluster first")
            network = free[0]
            (root / STATE).write_text(json.dumps({"block": network.block}))
            network.make()
        return network

    def make(self) -> None:
        """Make the bridge of this very block. Raises BedError where it is there already."""
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "link", "set", self.bridge, "alias", self._mark)
        run("ip", "address", "add", f"{self.address}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")

    @classmethod
    def load(cls, root: Path) -> Self | None:
        """Return the network kept in ``root``, or None."""
        with suppress(OSError, ValueError, KeyError):
            return cls(root.absolute(), int(json.loads((root / STATE).read_text())["block"]))
        return None

    @property
    def bridge(self) -> str:
        """Name of the bridge."""
        return f"gpushare{self.block}"

    @property
    def address(self) -> str:
        """This machine's address, where the API server listens."""
        return f"{FRONT}.{16 * self.block}.1"

    @property
    def cluster_cidr(self) -> str:
        """All nodes' pods, and the nodes."""
        return f"{FRONT}.{16 * self.block}.0/20"

    def node_address(self, number: int) -> str:
        """Address of the node, from 1."""
        return f"{FRONT}.{16 * self.block}.{10 + number}"

    def pod_cidr(self, number: int) -> str:
        """Addresses of the node's pods."""
        return f"{FRONT}.{16 * self.block + number}.0/24"

    def attach(self, number: int, pid: int) -> None:
        """Join the network namespace of ``pid`` as node ``number``: its interface is ``eth0``."""
        self.detach(number)
        here = self.interface(number)
        run("ip", "link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "link", "set", here, "master", self.bridge, "up")
        inside = ("nsenter", f"--net=/proc/{pid}/ns/net")
        run(*inside, "ip", "address", "add", f"{self.node_address(number)}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "route", "add", "default", "via", self.address)
        for other in range(1, MOST_NODES + 1):
            via = self.node_address(other)
            if other != number:
                run(*inside, "ip", "route", "add", self.pod_cidr(other), "via", via)
        run("ip", "route", "replace", self.pod_cidr(number), "via", self.node_address(number), "dev", self.bridge)

    def tap(self, number: int) -> str:
        """Make the interface that is ``eth0`` of a virtual machine with node ``number``; returns its name."""
        self.detach(number)
        here = self.interface(number)
        run("ip", "tuntap", "add", "dev", here, "mode", "tap")
        run("ip", "link", "set", here, "master", self.bridge, "up")
        run("ip", "route", "replace", self.pod_cidr(number), "via", self.node_address(number), "dev", self.bridge)
        return here

    def detach(self, number: int) -> None:
        """Remove the node's pair of interfaces; its namespace would take it along, but only some time later."""
        with suppress(BedError):
            run("ip", "link", "delete", self.interface(number))

    def interface(self, number: int) -> str:
        """Name of this machine's end of the link to node ``number``."""
        return f"{self.bridge}n{number}"

    def remove(self) -> None:
        """Remove the bridge with its routes and what is left of its nodes' interfaces.

        After a reboot the block may have become another cluster's: the bridge's alias tells.
        """
        there = links()
        if there.get(self.bridge) == self._mark:
            run("ip", "link", "delete", self.bridge)
            for name in there:
                if name.startswith(f"{self.bridge}n"):
                    self.detach(int(name.rpartition("n")[2]))

    @property
    def _mark(self) -> str:
        return str(self.root)[-200:]


def links() -> dict[str, str]:
    """Interfaces of this network namespace, with their aliases. ``/sys`` may show those of another one."""
    return {each["ifname"]: each.get("ifalias", "") for each in json.loads(run("ip", "-json", "link", "show"))}


def run(*command: str) -> str:
    """Run a program to its end and return what it printed. Raises BedError with what it complained about."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BedError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise BedError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def _alone() -> Iterator[None]:
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "network.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
