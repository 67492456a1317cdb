"""Which test file runs in which lane: a lane is a row of pytest sessions, one after the other, on clusters of its own.

The first lane has the tests of the control plane, and then what starts nodes of its own. The other lanes have a node
each. The rest is dealt so that all end together; the first lane may get some of it too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.versions import NEWEST

NODE_MARK: Final = "node_e2e"
MARK: Final = re.compile(r"\bpytest\.mark\.(controlplane|node_e2e)\b")
START: Final = 45
"""Seconds until a node has the product on it."""
MARKING: Final = ("pytestmark", "pytest.mark.", "@pytest.mark.")
UNKNOWN: Final = 90
"""Seconds of a file that nobody has measured yet."""
SECONDS: Final = {
    "tests/cluster/test_node.py": 109,
    "tests/realnode/test_blocked.py": 99,
    "tests/realnode/test_churn.py": 735,
    "tests/realnode/test_deletion.py": 115,
    "tests/realnode/test_failures.py": 130,
    "tests/realnode/test_grace.py": 185,
    "tests/realnode/test_kill.py": 25,
    "tests/realnode/test_limits.py": 195,
    "tests/realnode/test_modes.py": 180,
    "tests/realnode/test_mps.py": 110,
    "tests/realnode/test_namespaces.py": 30,
    "tests/realnode/test_nvml_away.py": 27,
    "tests/realnode/test_outages.py": 185,
    "tests/realnode/test_resize.py": 123,
    "tests/realnode/test_running.py": 90,
    "tests/realnode/test_several_gpus.py": 160,
    "tests/realnode/test_tampering.py": 26,
    "tests/realnode/test_trouble.py": 280,
    "tests/realnode/test_upgrade_and_uninstall.py": 130,
}
"""Measured with ``python -m tests.e2e``, which prints what each file took."""
CONTROL_PLANE: Final = 580
"""Seconds of all files that need no node, which are one session."""
OWN: Final = ("tests/cluster/test_node.py",)
"""Files that start nodes of their own; they come before those that share one."""
OLDER: Final = (
    "tests/cluster/test_controlplane.py",
    "tests/controlplane/policies/test_resize.py",
    "tests/controlplane/policies/test_rules.py",
    "tests/controlplane/test_chart.py",
    "tests/controlplane/test_check.py",
    "tests/controlplane/test_dra.py",
    "tests/controlplane/test_gates.py",
)
"""Files that run on each older Kubernetes as well: those that depend on the version most."""
OLDER_SECONDS: Final = 200
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


def deal(files: dict[str, bool], nodes: int, kubernetes: Sequence[str] = (NEWEST,)) -> list[Lane]:
    """Deal files (and whether each needs a node) over a first lane and ``nodes`` others; none of them is empty.

    ``kubernetes``: the version for all that needs no node, then those for ``OLDER`` alone. Nodes are the newest.
    """
    plain = [file for file in files if not files[file]]
    own = [file for file in OWN if file in files]
    older = [each for version in kubernetes[1:] for each in _older(files, version)]
    before = CONTROL_PLANE * bool(plain) + OLDER_SECONDS * len(older) + sum(map(seconds, own))
    hands = _hands((file for file in files if files[file] and file not in own), before, nodes)
    first = (*_session("control-plane", plain, kubernetes[0]), *older, *_session("node-0", [*own, *hands[0]]))
    rest = [_session(f"node-{number}", hand) for number, hand in enumerate(hands[1:], 1)]
    return [lane for lane in (first, *rest) if lane]


def _older(files: Iterable[str], version: str) -> Lane:
    return _session(f"plane-{version}", [file for file in files if file in OLDER], version)


def _session(name: str, files: Sequence[str], kubernetes: str = NEWEST) -> Lane:
    return (Session(name=name, files=tuple(files), kubernetes=kubernetes),) if files else ()


def _hands(files: Iterable[str], before: int, nodes: int) -> list[list[str]]:
    """The longest first, each to the hand that has least so far; the first hand has work of ``before`` seconds."""
    load = [before + START, *[START] * nodes]
    hands: list[list[str]] = [[] for _ in load]
    for file in sorted(files, key=lambda each: (-seconds(each), each)):
        least = load.index(min(load))
        hands[least].append(file)
        load[least] += seconds(file)
    return [sorted(hand, key=lambda file: (LAST.index(file) if file in LAST else -1, file)) for hand in hands]


def seconds(file: str) -> int:
    """What a file takes, as far as that is known."""
    return SECONDS.get(file, UNKNOWN)
