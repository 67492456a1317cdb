"""Capabilities given up, seen from inside the process and from what it starts."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enforcer import main as program
from enforcer.main import main
from enforcer.runtime import capabilities
from enforcer.runtime.capabilities import Capability, effective
from gpushare.errors import ConfigError
from tests.support.need import missing
from tests.unit.enforcer.test_loop import Attributor, Reader
from tests.unit.enforcer.test_main import BASE

GIVE_UP = """
import json, subprocess, sys, threading
from enforcer.runtime import capabilities
left = capabilities.limit_to({capabilities.Capability.KILL, capabilities.Capability.SYS_PTRACE})
found = []
thread = threading.Thread(target=lambda: found.append(sorted(capabilities.effective())))
thread.start()
thread.join()
child = "from enforcer.runtime import capabilities; print(sorted(capabilities.effective()))"
said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
print(json.dumps([sorted(left), found[0], json.loads(said)]))
"""


def test_what_is_given_up_is_gone_from_threads_and_from_programs_that_are_started() -> None:
    if os.geteuid() != 0:
        missing("this needs root")
    held = effective() & {Capability.KILL, Capability.SYS_PTRACE}
    done = subprocess.run([sys.executable, "-c", GIVE_UP], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [sorted(held)] * 3
    assert held < effective()


BOUNDED = """
import ctypes, json, sys, threading
from pathlib import Path
from enforcer.runtime import capabilities
from enforcer.nvml.worker_handle import WorkerProcess

def started():
    kept = WorkerProcess([sys.executable, "-c", "import sys; sys.stdin.read()"])
    found.append(sorted(capabilities.effective(Path(f"/proc/{kept.pid}/status"))))
    kept.end(60)

libc = ctypes.CDLL(None, use_errno=True)
left = capabilities.effective() - {capabilities.Capability.SETPCAP}
header = (ctypes.c_uint32 * 2)(capabilities._VERSION_3, 0)
assert libc.capset(header, (ctypes.c_uint32 * 6)(*capabilities._data(left))) == 0
found = [sorted(capabilities.limit_to({capabilities.Capability.KILL, capabilities.Capability.SYS_PTRACE}))]
for _ in range(2):  # the first one, and one started again from whatever thread finds it ended
    thread = threading.Thread(target=started)
    thread.start()
    thread.join()
print(json.dumps(found))
"""


def test_where_the_bounding_set_cannot_be_narrowed_what_is_started_again_regains_nothing() -> None:
    """As in a container without SETPCAP whose bounding set holds more than the enforcer keeps."""
    if os.geteuid() != 0 or Capability.SETPCAP not in effective():
        missing("this needs root, and SETPCAP to give up")
    held = effective() & {Capability.KILL, Capability.SYS_PTRACE}
    done = subprocess.run([sys.executable, "-c", BOUNDED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [sorted(held)] * 3


def test_capabilities_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000200021\nCapBnd:\t0\n")
    assert effective(status) == {0, Capability.KILL, Capability.SYS_ADMIN}


def test_a_kernel_that_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def prctl(self, *_: int) -> int:
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())
    with pytest.raises(ConfigError, match="the kernel refused"):
        capabilities.limit_to(())


@pytest.mark.parametrize(
    ("options", "more"), [([], ("SETGID", "SETUID")), (["--mps-host"], ()), (["--no-mps"], ())], ids=str
)
def test_the_enforcer_keeps_what_the_parts_that_run_need(
    options: list[str], more: tuple[str, ...], monkeypatch: Any, tmp_path: Path
) -> None:
    kept: list[frozenset[Capability]] = []

    def keep_only(wanted: frozenset[Capability]) -> frozenset[int]:
        kept.append(wanted)
        raise ConfigError("far enough")

    monkeypatch.setattr(capabilities, "limit_to", keep_only)
    assert main([*BASE, "--state", str(tmp_path), "--drop-capabilities", *options], reader=Reader()) == 2
    assert {right.name for right in kept[0]} == {"KILL", "SYS_PTRACE", "SYS_ADMIN", *more}
    assert not (tmp_path / "lock").exists(), "before anything else"


def test_they_are_kept_unless_set_otherwise(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(capabilities, "limit_to", pytest.fail)
    monkeypatch.setattr(program, "_serve", lambda _, __, manager: manager.stopped.set())
    options = ["--state", str(tmp_path), "--run", str(tmp_path), "--no-cluster", "--no-mps"]
    options += ["--allow-any-pid-namespace"]
    assert main([*BASE, *options], reader=Reader(), attributor=Attributor()) == 0
