"""Which test file runs in which worker: a worker is a pytest session on a cluster of its own.

Files that need a node are dealt over nodes so that all end together. Those that need none have two workers for each
version of Kubernetes: one control plane that they share, and those that files start for themselves.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.extent import trials
from tests.testbed.cluster.versions import NEWEST

NODE_MARK: Final = "node_e2e"
MARK: Final = re.compile(r"\bpytest\.mark\.(controlplane|node_e2e)\b")
VM: Final = "vm"
"""Word that asks for the tests on a virtual node."""
VM_FOLDER: Final = "tests/e2e/vm/"
"""Files that need a virtual node."""
MARKING: Final = ("pytestmark", "pytest.mark.", "@pytest.mark.")
UNKNOWN: Final = 90
"""Seconds of a file that nobody has measured yet."""
SECONDS: Final = {
    "tests/attack/controlplane/test_boundary.py": 22,
    "tests/attack/controlplane/test_large_objects.py": 60,
    "tests/attack/controlplane/test_policies_agree.py": 15,
    "tests/attack/node/test_exceeding.py": trials(900, 2900),
    "tests/attack/node/test_ways_to_a_gpu.py": 40,
    "tests/testbed/cluster/test_node.py": 104,
    "tests/integration/controlplane/test_client_certificates.py": 12,
    "tests/integration/controlplane/test_foreign_claims.py": trials(50, 170),
    "tests/e2e/test_blocked.py": 44,
    "tests/e2e/test_churn.py": trials(210, 690),
    "tests/e2e/test_deletion.py": 71,
    "tests/e2e/test_failures.py": 90,
    "tests/e2e/test_grace.py": 187,
    "tests/e2e/test_hidden.py": 120,
    "tests/e2e/test_kill.py": 90,
    "tests/e2e/test_lending.py": 40,
    "tests/e2e/test_limits.py": 179,
    "tests/e2e/test_modes.py": 177,
    "tests/e2e/test_mps.py": 102,
    "tests/e2e/test_namespaces.py": 32,
    "tests/e2e/test_nvml_away.py": 22,
    "tests/e2e/test_outages.py": 110,
    "tests/e2e/test_rehearsal.py": 205,
    "tests/e2e/test_resize.py": 92,
    "tests/e2e/test_running.py": 60,
    "tests/e2e/test_several_gpus.py": 117,
    "tests/e2e/test_tampering.py": 30,
    "tests/e2e/test_trouble.py": 273,
    "tests/e2e/test_upgrade_and_uninstall.py": 370,
}
"""Measured with ``python -m tests.testbed.parallel``, which prints what each file took."""
VM_SECONDS: Final = {
    "tests/e2e/vm/test_capabilities.py": 310,
    "tests/e2e/vm/test_faults.py": 600,
    "tests/e2e/vm/test_life.py": 632,
    "tests/e2e/vm/test_memory_pressure.py": 196,
    "tests/e2e/vm/test_power_cuts.py": 102,
    "tests/e2e/vm/test_reboot.py": 1101,
    "tests/e2e/vm/test_smoke.py": 85,
    "tests/e2e/vm/test_user_namespaces.py": 71,
}
"""The same on a virtual node: ``make e2e ARGS=vm``."""
VM_NODES: Final = 2
"""As many as there are processors: each virtual node keeps one busy."""
APART: Final = (
    "tests/integration/controlplane/test_chart.py",
    "tests/integration/controlplane/test_check.py",
    "tests/integration/controlplane/test_check_large.py",
    "tests/integration/controlplane/test_client_certificates.py",
    "tests/integration/controlplane/test_gates.py",
    "tests/testbed/cluster/test_controlplane.py",
)
"""Files that start control planes of their own and take long, and those that ask whether all of a cluster is well."""
OWN: Final = ("tests/testbed/cluster/test_node.py",)
"""Files that start nodes of their own; they come before those that share one."""
BY_VERSION: Final = (
    "tests/attack/controlplane/",
    "tests/integration/controlplane/policies/",
    "tests/integration/controlplane/test_admission.py",
    "tests/integration/controlplane/test_chart.py",
    "tests/integration/controlplane/test_dra.py",
    "tests/integration/controlplane/test_gates.py",
    "tests/integration/controlplane/test_placement.py",
)
"""Files, or folders of them, that show what differs between versions: these run on older ones too, in full all do."""
LAST: Final = ("tests/e2e/test_churn.py", "tests/e2e/test_upgrade_and_uninstall.py", "tests/e2e/vm/test_life.py")
"""Files at the end of their worker, in that order: one wants a machine that has done with starting clusters, the other
removes the product from its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of pytest: its name, which is that of its log, its files in order, and the Kubernetes they run on.

    ``virtual``: its node is a virtual machine.
    """

    name: str
    files: tuple[str, ...]
    kubernetes: str = NEWEST
    virtual: bool = False


Worker = tuple[Session, ...]


def marked(root: Path) -> dict[str, bool]:
    """Every test file below ``root/tests`` that needs a cluster, and whether it needs a real node."""
    found: dict[str, bool] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        lines = (line.strip() for line in file.read_text().splitlines())
        marks = {mark for line in lines if line.startswith(MARKING) for mark in MARK.findall(line)}
        if marks:
            found[file.relative_to(root).as_posix()] = NODE_MARK in marks
    return found


def on_nodes(files: Iterable[str], nodes: int) -> list[Worker]:
    """Deal files over so many nodes, the longest first, each to the one that is done first; no worker is empty."""
    hands = _dealt(files, nodes, seconds)
    return [_worker(f"node-{number}", sorted(hand, key=_turn)) for number, hand in enumerate(hands, 1)]


def _dealt(files: Iterable[str], count: int, seconds: Callable[[str], int]) -> list[list[str]]:
    hands: list[list[str]] = [[] for _ in range(count)]
    for file in sorted(files, key=lambda each: (-seconds(each), each)):
        min(hands, key=lambda hand: sum(map(seconds, hand))).append(file)
    return [hand for hand in hands if hand]


def on_planes(files: Sequence[str], versions: Sequence[str], *, full: bool) -> list[Worker]:
    """Deal files over control planes of these versions; no worker is empty.

    All files run on the newest version, or if it is not among them. Other versions run the files of ``BY_VERSION``, or
    all of them in full.
    """

    def whole(version: str) -> bool:
        return full or version == NEWEST or NEWEST not in versions

    workers = []
    for name, apart in (("shared", False), ("apart", True)):
        for version in versions:
            part = [
                file for file in files if (file in APART) is apart and (whole(version) or file.startswith(BY_VERSION))
            ]
            workers += [_worker(f"{name}-{version}", part, version)] if part else []
    return workers


def for_vm(asked: Sequence[str]) -> bool:
    """Whether a virtual node is asked for: by its word, or by nothing but files that need one."""
    return bool(asked) and all(each == VM or each.startswith(VM_FOLDER) for each in asked)


def on_vm(files: Iterable[str]) -> list[Worker]:
    """Deal the files that need a virtual node over two workers with one each."""
    mine = [file for file in files if file.startswith(VM_FOLDER)]
    hands = _dealt(mine, VM_NODES, vm_seconds)
    return [
        (Session(name=f"{VM}-{number}", files=tuple(sorted(hand, key=_turn)), virtual=True),)
        for number, hand in enumerate(hands, 1)
    ]


def _worker(name: str, files: Sequence[str], kubernetes: str = NEWEST) -> Worker:
    return (Session(name=name, files=tuple(files), kubernetes=kubernetes),)


def _turn(file: str) -> tuple[int, str]:
    """When a file of a node's session runs: see ``OWN`` and ``LAST``."""
    return (LAST.index(file) + 1 if file in LAST else -(file in OWN), file)


def work(worker: Worker) -> int:
    """Seconds of a worker, as far as they are known."""
    return sum(seconds(file) for session in worker for file in session.files)


def vm_seconds(file: str) -> int:
    """What a file takes on a virtual node, as far as that is known."""
    return VM_SECONDS.get(file, UNKNOWN)


def seconds(file: str) -> int:
    """What a file takes, as far as that is known."""
    return SECONDS.get(file, UNKNOWN)
