"""A control plane with its virtual node, kept while both stand still, and started again from there within seconds.

What is kept is the folder of the control plane: keys, etcd's data, the node's disks, and the node's memory in a file.
It goes on at the addresses it had, so one at a time can; a network namespace of its own makes that no limit.
"""

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from gpushare.kube_client import path
from tests.support.patience import holds_within, patient
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.network import Network
from tests.testbed.vm.node import VmNode

MEMORY: Final = "memory"
ROOT: Final = "snapshot.json"
LEASES: Final = "/apis/coordination.k8s.io/v1"
SAVE_SECONDS: Final = 120.0
BACK_SECONDS: Final = 120.0
LET_GO_SECONDS: Final = 2.0
"""For the node's programs to notice that the API server is gone: then they look for it again afterwards."""


def save(plane: ControlPlane, node: VmNode, target: Path) -> None:
    """Stop both and keep them in ``target``; ``plane.stop`` removes what is left of them here.

    Raises:
        BedError: QEMU did not write the memory.
    """
    node.run("sync")
    plane.pause()
    time.sleep(LET_GO_SECONDS)
    node.forget_connections()
    machine = node.machine
    machine.monitor("stop")
    machine.monitor("migrate-set-parameters", **{"max-bandwidth": 2**40})
    machine.monitor("migrate", uri=f"exec:cat > {shlex.quote(str(machine.home / MEMORY))}")
    _poll("its memory is written", lambda: machine.monitor("query-migrate").get("status") == "completed", SAVE_SECONDS)
    with suppress(BedError):  # it ends while it answers
        machine.monitor("quit")
    _poll("QEMU has ended", node.off, SAVE_SECONDS)
    (plane.root / ROOT).write_text(json.dumps(str(plane.root.absolute())))
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    _copy(plane.root, fresh)
    fresh.rename(target)


def resume(saved: Path, root: Path, name: str = "node-1") -> tuple[ControlPlane, VmNode]:
    """Start a control plane and its node from where ``save`` stopped them, in the folder ``root``.

    Raises:
        BedError: their addresses are in use, or one of them did not come back.
    """
    _copy(saved, root)
    before = json.loads((root / ROOT).read_text())
    for file in (*root.glob("*.json"), *root.glob("*.yaml"), *root.glob("kubeconfigs/*.yaml")):
        file.write_text(file.read_text().replace(before, str(root.absolute())))
    network = Network.load(root)
    assert network is not None
    network.make()
    plane = ControlPlane.resume(root)
    try:
        node = VmNode.at(plane, name)
        memory = node.machine.home / MEMORY
        node.power_on(options=("-incoming", f"exec:cat {shlex.quote(str(memory))}"), started=_going_on)
        memory.unlink()
        node.run("date", "--set", f"@{time.time():.3f}")
        began = time.time()
        _poll("its kubelet is back", lambda: _renewed(plane, name) >= began, BACK_SECONDS)
    except BaseException:
        plane.stop()
        raise
    return plane, node


def _going_on(node: VmNode) -> None:
    """Let the machine go on once its memory is read."""
    machine = node.machine
    _poll("its memory is read", lambda: machine.monitor("query-status")["status"] == "paused", BACK_SECONDS)
    machine.monitor("cont")


def _renewed(plane: ControlPlane, name: str) -> float:
    """When the kubelet last renewed its lease."""
    lease = plane.cluster().get(path(LEASES, "leases", name, "kube-node-lease"))
    return datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()


def _copy(source: Path, target: Path) -> None:
    done = subprocess.run(
        ["cp", "--archive", "--sparse=always", "--reflink=auto", str(source), str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BedError(f"{source}: {done.stderr[-2000:]}")


def _poll(what: str, check: Callable[[], object], seconds: float) -> None:
    def holds() -> bool:
        with suppress(BedError):
            return bool(check())
        return False

    if not holds_within(holds, seconds, 0.1):
        raise BedError(f"waited {patient(seconds):.0f} s in vain until {what}")
