"""One QEMU process without KVM: its command line, its monitor, and ways to take its power."""

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.testbed.cluster.errors import BedError
from tests.testbed.vm import disk, rootfs

MEMORY_MIB: Final = 3072
PROCESSORS: Final = 1
"""Two that wait for each other's locks and interrupts cost more than they bring where this machine is busy: a boot took
67 s of processor time with two and 46 s with one, and 189 s of wall time and 83 s at a load of 10."""
MONITOR_SECONDS: Final = 60.0
KERNEL_LINE: Final = (
    "console=ttyS0 quiet panic=1 net.ifnames=0 mitigations=off apparmor=1 security=apparmor systemd.show_status=0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A virtual machine that may be on or off.

    Attributes:
        home: folder of its disks, console log and monitor.
        name: its host name.
        tap: interface of this machine that is its ``eth0``.
        address: with the length of its prefix, such as ``10.213.0.11/24``.
        gateway: this machine's address on that network.
        mac: of its ``eth0``.
    """

    home: Path
    name: str
    tap: str
    address: str
    gateway: str
    mac: str

    @property
    def console(self) -> Path:
        """What it prints on its serial console."""
        return self.home / "console.log"

    @property
    def root_disk(self) -> Path:
        """Its own layer over the shared root disk."""
        return self.home / "root.qcow2"

    @property
    def state_disk(self) -> Path:
        """The disk of the enforcer's state folder."""
        return self.home / "state.qcow2"

    def command(self, *, state_drive: str = "", options: Sequence[str] = ()) -> list[str]:
        """Command line that powers it on.

        A guest's flush is one of this machine's files. SIGKILL to QEMU therefore loses what the guest had not flushed
        yet, and nothing else.

        Args:
            state_drive: more settings of the state disk, such as ``throttling.iops-total=20``.
            options: more of QEMU's options.
        """
        tree = rootfs.tree()
        line = (
            f"{KERNEL_LINE} systemd.hostname={self.name} testbed.address={self.address} testbed.gateway={self.gateway}"
        )
        more = f",{state_drive}" if state_drive else ""
        return disk.with_tools(
            "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc",
            "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", str(PROCESSORS), "-m", str(MEMORY_MIB),
            "-kernel", str(tree / rootfs.KERNEL_FILE), "-initrd", str(tree / rootfs.INITRD_FILE), "-append", line,
            "-drive", f"file={self.root_disk},format=qcow2,if=virtio,cache=writeback,discard=unmap",
            "-drive", f"file={self.state_disk},format=qcow2,if=virtio,cache=writeback{more}",
            "-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net,mac={self.mac},romfile=",
            "-device", "virtio-rng-pci",
            "-serial", f"file:{self.console}",
            "-qmp", f"unix:{self._socket},server=on,wait=off",
            *options,
        )  # fmt: skip

    @property
    def _socket(self) -> Path:
        return self.home / "qmp"

    def monitor(self, command: str, **arguments: Any) -> Any:
        """Send one command to QEMU's monitor and return its answer.

        Raises:
            BedError: the machine is off, or the monitor refuses.
        """
        return monitor(self._socket, command, **arguments)

    def console_tail(self, lines: int = 40) -> str:
        """The end of what it printed."""
        with suppress(OSError):
            return "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:])
        return ""


def monitor(where: Path, command: str, **arguments: Any) -> Any:
    """Send one command to the monitor of QEMU that listens there. Raises BedError."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(MONITOR_SECONDS)
            link.connect(str(where))
            lines = link.makefile("rw", encoding="utf-8", newline="\n")
            lines.readline()
            _ask(lines, "qmp_capabilities", {})
            return _ask(lines, command, arguments)
    except OSError as error:
        raise BedError(f"monitor at {where}: {error}") from error


def _ask(lines: Any, command: str, arguments: dict[str, Any]) -> Any:
    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    lines.flush()
    deadline = time.monotonic() + MONITOR_SECONDS
    while time.monotonic() < deadline:
        answer = json.loads(lines.readline() or "{}")
        if "error" in answer:
            raise BedError(f"QEMU refused {command}: {answer['error']['desc']}")
        if "return" in answer:
            return answer["return"]
    raise BedError(f"QEMU did not answer {command}")
