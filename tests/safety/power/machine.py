"""That machine from outside: it is switched on, its power is cut, and what it said on its port is read."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.patience import patient
from tests.testbed.vm import disk, rootfs

Line = dict[str, Any]
MEMORY_MIB: Final = 768
SLOW: Final = "throttling.iops-total=20"
START_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.05


@dataclass
class Machine:
    """One machine with a state disk that stays."""

    home: Path
    root: Path
    file_system: str
    slow: bool = False
    syncs: bool = True
    """Whether its programs' syncs do anything: without, the checks have to see what is lost."""
    boots: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._state = disk.state(self.home / "state.qcow2", self.file_system)

    @property
    def console(self) -> Path:
        """What its kernel and its programs print, of all boots."""
        return self.home / "console.log"

    @property
    def _port(self) -> Path:
        return self.home / f"port-{self.boots}"

    def power_on(self) -> None:
        """Switch it on."""
        self.boots += 1
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=console, stderr=console)

    def cut(self) -> list[Line]:
        """Take its power, whatever it is doing; returns what it said since it was switched on."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        return self.said()

    def said(self) -> list[Line]:
        """Read whole lines; the last one may have been cut off."""
        text = self._port.read_bytes() if self._port.exists() else b""
        return [json.loads(line) for line in text.split(b"\n")[:-1]]

    def wait(self, true: Callable[[list[Line]], bool]) -> None:
        """Wait until what it has said is enough. Raises AssertionError with the end of its console if it is not."""
        deadline = time.monotonic() + patient(START_SECONDS)
        while not true(self.said()):
            off = self._process is None or self._process.poll() is not None
            if off or time.monotonic() > deadline:
                tail = self.console.read_bytes()[-3000:].decode(errors="replace")
                raise AssertionError(f"boot {self.boots} {'ended' if off else 'took too long'}:\n{tail}")
            time.sleep(POLL_SECONDS)

    def _command(self) -> list[str]:
        """A flush of the guest's is one of this machine's files: SIGKILL loses what it had not written out yet."""
        tree, limits = rootfs.tree(), f",{SLOW}" if self.slow else ""
        return disk.with_tools(
            "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "pc", "-no-reboot",
            "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB),
            "-kernel", str(tree / rootfs.KERNEL_FILE), "-initrd", str(tree / rootfs.INITRD_FILE),
            "-append", f"console=ttyS0 quiet panic=1 mitigations=off{'' if self.syncs else ' power.nosync'}",
            "-drive", f"file={self.root},format=raw,if=virtio,snapshot=on,file.locking=off",
            "-drive", f"file={self._state},format=qcow2,if=virtio,cache=writeback{limits}",
            "-serial", "stdio", "-serial", f"file:{self._port}",
        )  # fmt: skip
