"""That machine from outside: it is switched on, its power is cut, and what it said on its port is read."""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.patience import patient
from tests.testbed.cluster.errors import BedError
from tests.testbed.vm import disk, rootfs
from tests.testbed.vm.machine import monitor

Line = dict[str, Any]
MEMORY_MIB: Final = 512
SLOW: Final = "throttling.iops-write=10"
"""100 ms for each write."""
START_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.02
SEED_BYTES: Final = 32


@dataclass
class Machine:
    """One machine with a state disk that stays. It is saved when its programs are up, and each life begins there.

    Attributes:
        home: folder of its state disk and of what it says.
        root: its root disk, which nobody writes to.
        file_system: of its state disk, ``ext4`` or ``xfs``.
        slow: whether each write of that disk takes 100 ms.
        syncs: whether its programs' syncs do anything: without, the checks have to see what is lost.
    """

    home: Path
    root: Path
    file_system: str
    slow: bool = False
    syncs: bool = True
    lives: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._state = disk.state(self.home / "state.qcow2", self.file_system)

    @property
    def console(self) -> Path:
        """What its kernel and its programs print, of all lives."""
        return self.home / "console.log"

    @property
    def _saved(self) -> Path:
        """Its memory, which holds nothing of the state disk: machines with the same root disk share it."""
        return self.root.with_suffix(".saved" if self.syncs else ".control")

    @property
    def _said(self) -> Path:
        return self.home / f"said-{self.lives}"

    def power_on(self) -> None:
        """Begin another life."""
        if not self._saved.exists():
            self._save()
        self.lives += 1
        self._start("-incoming", f"exec:cat {self._saved}")
        self._begin()

    def cut(self) -> list[Line]:
        """Take its power, whatever it is doing; returns what it said in this life."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        return self.said()

    def said(self) -> list[Line]:
        """Read whole lines; the last one may have been cut off."""
        text = self._said.read_bytes() if self._said.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def wait(self, true: Callable[[list[Line]], bool]) -> None:
        """Wait until what it has said is enough. Raises AssertionError with the end of its console if it is not."""
        self._until(lambda: true(self.said()))

    def _until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + patient(START_SECONDS)
        while not true():
            off = self._process is None or self._process.poll() is not None
            if off or time.monotonic() > deadline:
                tail = self.console.read_bytes()[-3000:].decode(errors="replace")
                raise AssertionError(f"life {self.lives} {'ended' if off else 'took too long'}:\n{tail}")
            time.sleep(POLL_SECONDS)

    def _start(self, *options: str) -> None:
        for name in ("port", "monitor"):
            (self.home / name).unlink(missing_ok=True)
        with self.console.open("ab") as console:
            command = self._command(options)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)

    def _save(self) -> None:
        """Boot it, and save it when its programs wait for a life to begin."""
        self._start()
        self.wait(bool)
        self._asked("migrate", uri=f"exec:cat > {self._saved}")
        self._until(lambda: self._asked("query-migrate").get("status") == "completed")
        self.cut()

    def _asked(self, command: str, **arguments: Any) -> Line:
        """Ask QEMU's monitor; nothing while it does not listen yet."""
        try:
            return dict(monitor(self.home / "monitor", command, **arguments))
        except BedError:
            return {}

    def _begin(self) -> None:
        self._until(lambda: self._asked("query-status").get("running"))  # its memory is there
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self.home / "port"))
            link.sendall(secrets.token_bytes(SEED_BYTES))
            self._until(self.said)

    def _command(self, options: Sequence[str]) -> list[str]:
        """A flush of the guest's is one of this machine's files: SIGKILL loses what it had not written out yet."""
        tree, limits = rootfs.tree(), f",{SLOW}" if self.slow else ""
        return disk.with_tools(
            "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc", "-no-reboot",
            "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB),
            "-kernel", str(tree / rootfs.KERNEL_FILE), "-initrd", str(tree / rootfs.INITRD_FILE),
            "-append", f"console=ttyS0 quiet panic=1 mitigations=off{'' if self.syncs else ' power.nosync'}",
            "-drive", f"file={self.root},format=raw,if=virtio,readonly=on",
            "-drive", f"file={self._state},format=qcow2,if=virtio,cache=writeback{limits}",
            "-serial", "stdio", "-device", "virtio-serial-pci",
            "-chardev", f"file,id=said,path={self._said}", "-device", "virtserialport,chardev=said,nr=1",
            "-chardev", f"socket,id=port,path={self.home}/port,server=on,wait=off",
            "-device", "virtserialport,chardev=port,nr=2",
            "-qmp", f"unix:{self.home}/monitor,server=on,wait=off",
            *options,
        )  # fmt: skip
