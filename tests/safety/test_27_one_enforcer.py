"""Two to five enforcers started at once, and whoever is at work killed: one at a time is, and no kill is made twice.

The enforcers are processes of the product's own, the tenants are real, in real cgroups; NVML alone is scripted. Its
every look leaves a mark, so that the order of the marks says who was at work when.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.audit.log import FOLDER, segments
from enforcer.audit.record import read, verify
from enforcer.quota.checkpoint import Checkpoint
from enforcer.runtime import files
from tests.integration.processes.containers import PROJECT, Container, Kubelet
from tests.safety.enforcers import LOOKS
from tests.support import extent
from tests.support.patience import holds_within
from tests.unit.enforcer.made import GPU

pytestmark = pytest.mark.node

MOST: Final = 5
LOOKED: Final = 8
"""Looks after which a holder is killed, at most: an INTENT comes with the third."""
LEFT: Final = 3
"""Tenants of one time: who was not ended in an enforcer's life is let be for a while by the next."""
TAIL: Final = 256
"""Bytes that hold so many looks, whatever the pids."""
HANDOVER_SECONDS: Final = 10.0
"""Fails beyond this; what it took is told."""


class Node:
    """One machine: a state directory, tenants, and enforcers that want it.

    Args:
        folder: for all of its files.
        stack: ends all there is.
        more: options of the enforcers beside those of every test.
        under: a command that runs the command after it, such as ``setpriv``.
    """

    def __init__(self, folder: Path, stack: ExitStack, *more: str, under: Sequence[str] = ()) -> None:
        self.folder, self.stack, self.kubelet = folder, stack, Kubelet()
        self.state, self.card, self.log = folder / "state", folder / "card.json", folder / "log"
        self.state.mkdir(mode=0o700)
        self.tenants: list[tuple[Container, subprocess.Popen[str]]] = []
        self.started: dict[int, PidHandle] = {}
        self.begun: list[int] = []
        self.show()
        options = ["--node", "gpu-7", "--state", str(self.state), "--run", str(folder), "--poll-seconds", "0.02"]
        options += [
            "--termination-timeout",
            "1",
            "--no-cluster",
            "--no-mps",
            "--no-publish",
            "--allow-any-pid-namespace",
        ]
        command = [*under, sys.executable, "-m", "tests.safety.enforcers", str(folder), str(self.card), *options]
        command += ["--max-kills-per-minute", "1000000", *more]
        log, pipe = stack.enter_context(self.log.open("wb")), subprocess.PIPE
        self.forks = stack.enter_context(
            subprocess.Popen(command, cwd=PROJECT, text=True, stdin=pipe, stdout=pipe, stderr=log)
        )
        stack.callback(self.forks.kill)

    def start(self, count: int) -> None:
        """Start so many at once."""
        assert self.forks.stdin
        assert self.forks.stdout
        self.forks.stdin.write("another\n" * count)
        self.forks.stdin.flush()
        for pid in [int(self.forks.stdout.readline()) for _ in range(count)]:
            handle = PidHandle.open(pid)
            assert handle is not None, self.log.read_text()
            self.begun.append(pid)
            self.started[pid] = self.stack.enter_context(handle)

    def looks(self) -> list[int]:
        """Who looked, in order."""
        try:
            return [int(line) for line in (self.folder / LOOKS).read_text().splitlines()]
        except FileNotFoundError:
            return []

    def last(self) -> int:
        """Who looked last; 0 where nobody did."""
        return next(reversed(self._tail()), 0)

    def let_look(self, pid: int, times: int) -> None:
        """Wait until it has looked so often."""
        assert holds_within(lambda: self._tail().count(pid) >= times, 60, 0.002), self.log.read_text()[-3000:]

    def _tail(self) -> list[int]:
        with suppress(FileNotFoundError), (self.folder / LOOKS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return [int(line) for line in file.read().splitlines()[1:]]
        return []

    def waiting(self) -> int:
        """How many have said that they wait for the lock."""
        return self.log.read_text().count("waiting for the other enforcer to exit")

    def at_work(self, but: int) -> int:
        """Wait until somebody else than this one is at work. Returns who."""
        assert holds_within(lambda: self.last() not in {0, but}, 60, 0.001), self.log.read_text()[-3000:]
        return self.last()

    def kill(self, pid: int) -> None:
        handle = self.started.pop(pid)
        assert handle.send(signal.SIGKILL), f"it ended by itself: {self.log.read_text()[-3000:]}"
        assert handle.ended(60)
        handle.close()

    def tenant(self, *under: str) -> None:
        """Let another container go over its quota."""
        container = self.stack.enter_context(self.kubelet.container())
        for _, process in self.tenants[:-LEFT]:
            process.kill()
            process.wait()
        self.tenants.append((container, container.spawn(*under, "sleep", "3000")))
        self.show()

    def show(self) -> None:
        """Have NVML and the checkpoint say who is there."""
        self.tenants = [each for each in self.tenants if each[1].poll() is None]
        files.replace(self.card, json.dumps({process.pid: 9000 for _, process in self.tenants}).encode())
        Checkpoint(self.state).write([each.quota(GPU, 4096, grace_seconds=0.0) for each, _ in self.tenants])

    def records(self) -> list[dict[str, Any]]:
        lines = [line for file in segments(self.state / FOLDER) for line in file.read_bytes().splitlines(keepends=True)]
        assert verify(lines).ok, "two have written"
        return [read(line) for line in lines]

    def answered(self) -> bool:
        kinds = Counter(record["kind"] for record in self.records())
        return kinds["INTENT"] == kinds["OUTCOME"] + kinds["ABORTED"]


def one_round(node: Node, count: int, chance: random.Random) -> list[float]:
    """Start some at once and kill whoever is at work until none is left. Returns the seconds of each handover."""
    took, waited, before = [], node.waiting(), node.last()
    node.start(count)
    holder = node.at_work(before)
    assert holds_within(lambda: node.waiting() == waited + count - 1, 60, 0.005), node.log.read_text()[-3000:]
    for left in range(count, 0, -1):
        node.tenant()
        node.let_look(holder, chance.randint(1, LOOKED))
        node.kill(holder)  # wherever in a kill it is by then
        began = time.monotonic()
        if left > 1:
            holder = node.at_work(holder)
            took.append(time.monotonic() - began)
    return took


def open_twice(records: list[dict[str, Any]]) -> int:
    """Count INTENTs about a container that had one without its answer."""
    open_: dict[int, str] = {}
    doubled = 0
    for record in records:
        if record["kind"] == "INTENT":
            doubled += record["containerId"] in open_.values()
            open_[record["seq"]] = record["containerId"]
        elif record["kind"] in {"OUTCOME", "ABORTED"}:
            del open_[record["intent"]]
    assert open_ == {}, "without an answer"
    return doubled


def test_one_enforcer_is_at_work_at_any_instant_and_no_intent_is_doubled(tmp_path: Path) -> None:
    handovers, chance, took = extent.trials(5, 500), random.Random(5), list[float]()
    with ExitStack() as stack:
        node = Node(tmp_path, stack)
        while len(took) < handovers:
            took += one_round(node, min(chance.randint(2, MOST), handovers - len(took) + 1), chance)
        node.start(1)
        node.tenant()
        last = node.tenants[-1][1]
        assert holds_within(lambda: last.poll() is not None and node.answered(), 90, 0.1), node.log.read_text()[-3000:]
        turns = [pid for pid, _ in groupby(node.looks())]
        records = node.records()
    again = (Counter(turns) - Counter(node.begun)).total()  # a pid may come round again, for another enforcer
    killed = Counter(record["containerId"] for record in records if record.get("result") == "Killed")
    assert again == 0, "one that had been followed by another was at work again"
    assert open_twice(records) == 0
    assert len(turns) > handovers
    assert set(killed.values()) == {1}
    assert max(took) < HANDOVER_SECONDS
    took.sort()
    extent.figure("27", "instants with more than one enforcer at work", f"{again} in {handovers:,} hand-overs")
    extent.figure("27", "doubled INTENTs", f"{open_twice(records)} of {sum(killed.values()):,} kills")
    p99 = took[int(len(took) * 0.99)]
    extent.figure(
        "27", "handover, from the SIGKILL to the next one's first sample", f"{p99:.2f} s p99, {took[-1]:.2f} s worst"
    )


def test_a_doubled_intent_is_seen() -> None:
    about = {"containerId": "c" * 64}
    records = [
        {"kind": "INTENT", "seq": 1, **about}, {"kind": "INTENT", "seq": 2, **about},
        {"kind": "OUTCOME", "intent": 1}, {"kind": "OUTCOME", "intent": 2},
    ]  # fmt: skip
    assert open_twice(records) == 1
