"""What tests do to a node from outside: take the API server away, freeze processes, meddle with simulated GPUs."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.processes import end

API_SERVER: Final = "kube-apiserver"
FREEZER: Final = Path("/sys/fs/cgroup/freezer")


@contextmanager
def no_api_server(plane: ControlPlane) -> Iterator[None]:
    """End the API server, and start it again with the same arguments."""
    (server,) = [each for each in plane.processes if each.name == API_SERVER]
    command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    end([server], patience=2)
    plane.processes.remove(server)
    try:
        yield
    finally:
        plane.add(API_SERVER, command)
        time.sleep(1)


@contextmanager
def frozen(pod_uid: str) -> Iterator[bool]:
    """Freeze a pod's processes so that not even SIGKILL ends them, like a process that waits for a broken driver.

    The pod's own group is frozen and not its containers': runc thaws those before it kills. Says False where that
    cannot be had: only the freezer of cgroup v1 keeps a killed process from ending, that of v2 lets it die.
    """
    # Other groups come and go meanwhile: this passes over them, where Path.glob fails.
    folders = (Path(folder) for folder, _, _ in os.walk(FREEZER))
    found = (folder / "freezer.state" for folder in folders if folder.name == f"pod{pod_uid}")
    states = [state for state in found if state.is_file()]
    for state in states:
        state.write_text("FROZEN")
    try:
        yield bool(states)
    finally:
        for state in states:
            if state.exists():
                state.write_text("THAWED")
