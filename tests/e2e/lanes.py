"""Which test file runs in which lane: a lane is a row of pytest sessions, one after the other, on clusters of its own.

The first lane has the tests of the control plane, the others have a node each. All is dealt so that they end together;
sessions on control planes of their own may be in any lane.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.versions import NEWEST

NODE_MARK: Final = "node_e2e"
PLANE: Final = "control-plane"
PLANES: Final = "planes"
MARK: Final = re.compile(r"\bpytest\.mark\.(controlplane|node_e2e)\b")
START: Final = 75
"""Seconds until a node has the product on it, which is not counted to the file that waits for it."""
MARKING: Final = ("pytestmark", "pytest.mark.", "@pytest.mark.")
UNKNOWN: Final = 90
"""Seconds of a file that nobody has measured yet."""
SECONDS: Final = {
    "tests/cluster/test_node.py": 115,
    "tests/realnode/test_blocked.py": 55,
    "tests/realnode/test_churn.py": 770,
    "tests/realnode/test_deletion.py": 90,
    "tests/realnode/test_failures.py": 86,
    "tests/realnode/test_grace.py": 172,
    "tests/realnode/test_kill.py": 22,
    "tests/realnode/test_limits.py": 190,
    "tests/realnode/test_modes.py": 190,
    "tests/realnode/test_mps.py": 112,
    "tests/realnode/test_namespaces.py": 30,
    "tests/realnode/test_nvml_away.py": 23,
    "tests/realnode/test_outages.py": 175,
    "tests/realnode/test_resize.py": 131,
    "tests/realnode/test_running.py": 50,
    "tests/realnode/test_several_gpus.py": 97,
    "tests/realnode/test_tampering.py": 22,
    "tests/realnode/test_trouble.py": 270,
    "tests/realnode/test_upgrade_and_uninstall.py": 108,
}
"""Measured with ``python -m tests.e2e``, which prints what each file took."""
CONTROL_PLANE: Final = 800
"""Seconds of the files that share one control plane, which are one session."""
APART: Final = (
    "tests/cluster/test_controlplane.py",
    "tests/controlplane/test_chart.py",
    "tests/controlplane/test_gates.py",
)
"""Files that start control planes of their own and take long: a session that may be in any lane."""
APART_SECONDS: Final = 220
OWN: Final = ("tests/cluster/test_node.py",)
"""Files that start nodes of their own; they come before those that share one."""
LAST: Final = ("tests/realnode/test_churn.py", "tests/realnode/test_upgrade_and_uninstall.py")
"""Files at the end of their lane, in that order: one wants a machine that has done with starting clusters, the other
removes the product from its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of pytest: its name, which is that of its log, its files in order, and the Kubernetes they run on."""

    name: str
    files: tuple[str, ...]
    kubernetes: str = NEWEST


Lane = tuple[Session, ...]


def marked(root: Path) -> dict[str, bool]:
    """Every test file below ``root/tests`` that needs a cluster, and whether it needs a real node."""
    found: dict[str, bool] = {}
    for file in sorted((root / "tests").rglob("test_*.py")):
        lines = (line.strip() for line in file.read_text().splitlines())
        marks = {mark for line in lines if line.startswith(MARKING) for mark in MARK.findall(line)}
        if marks:
            found[file.relative_to(root).as_posix()] = NODE_MARK in marks
    return found


def fitting(files: dict[str, bool], kubernetes: str) -> dict[str, bool]:
    """Those of ``marked`` that can run there: nodes are the newest version, too new for an older control plane."""
    return {file: node for file, node in files.items() if not node or kubernetes == NEWEST}


def deal(files: dict[str, bool], nodes: int, kubernetes: str = NEWEST) -> list[Lane]:
    """Deal files (and whether each needs a node) over a first lane and ``nodes`` others; none of them is empty.

    ``kubernetes``: the version of what needs no node. Nodes are the newest.
    """
    shared = [file for file in files if not files[file] and file not in APART]
    planes = _session(PLANES, [file for file in files if not files[file] and file in APART], kubernetes)
    node = {file: seconds(file) for file in files if files[file]}
    hands = _hands({each.name: _work(each) for each in planes}, node, CONTROL_PLANE * bool(shared), nodes)
    lanes: list[Lane] = []
    for number, hand in enumerate(hands):
        lane = _session(PLANE, shared, kubernetes) if number == 0 else ()
        lane += planes if PLANES in hand else ()
        lanes.append(lane + _session(f"node-{number}", sorted((each for each in hand if each in node), key=_turn)))
    return [lane for lane in lanes if lane]


def _session(name: str, files: Sequence[str], kubernetes: str = NEWEST) -> Lane:
    return (Session(name=name, files=tuple(files), kubernetes=kubernetes),) if files else ()


def _hands(whole: Mapping[str, int], node: Mapping[str, int], before: int, nodes: int) -> list[list[str]]:
    """The longest first, each to the hand that is done with it first; the first hand has work of ``before`` seconds.

    What needs a node costs its start where the hand has none yet. Beside such work no node is started if others have
    one: it would be one cluster more for all of them.
    """
    parts = {**whole, **node}
    load = [before, *[0] * nodes]
    hands: list[list[str]] = [[] for _ in load]
    for part in sorted(parts, key=lambda each: (-parts[each], each)):
        took = [parts[part] + START * (part in node and not node.keys() & hand) for hand in hands]
        done = [each + more for each, more in zip(load, took, strict=True)]
        beside = int(part in node and before > 0 and nodes > 0)
        least = min(range(beside, len(hands)), key=done.__getitem__)
        hands[least].append(part)
        load[least] = done[least]
    return hands


def _turn(file: str) -> tuple[int, str]:
    """When a file of a node's session runs: see ``OWN`` and ``LAST``."""
    return (LAST.index(file) + 1 if file in LAST else -(file in OWN), file)


def work(lane: Lane) -> int:
    """Seconds of a lane, as far as they are known."""
    return sum(_work(session) for session in lane)


def _work(session: Session) -> int:
    if session.name.startswith("node-"):
        return START + sum(map(seconds, session.files))
    return APART_SECONDS if session.name == PLANES else CONTROL_PLANE


def seconds(file: str) -> int:
    """What a file takes, as far as that is known."""
    return SECONDS.get(file, UNKNOWN)
