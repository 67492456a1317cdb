"""Test 15: the victim ends and an innocent gets its pid, at every step of a kill."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from tests.integration.processes.containers import PROJECT, Kubelet
from tests.safety.reuse import GPU
from tests.support import extent
from tests.support.need import missing

WORKERS = 2
pytestmark = pytest.mark.node


def reuses(kubelet: Kubelet, count: int) -> dict[str, Any]:
    """Run so many trials in a pid namespace of their own."""
    with kubelet.container() as home, kubelet.container() as away:
        quota = json.dumps(asdict(home.quota(GPU, 4096, grace_seconds=0.0)))
        places = [str(home.cgroup), str(away.cgroup)]
        command = [sys.executable, "-m", "tests.safety.reuse", str(count), *places, quota]
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", *command], cwd=PROJECT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode != 0 and ("unshare" in done.stderr or "Permission denied" in done.stderr):
        missing(f"pids cannot be made to come round here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_at_no_step_of_a_kill_is_a_process_hit_that_got_the_victims_pid() -> None:
    count, kubelet = extent.trials(400, 100_000), Kubelet()
    with ThreadPoolExecutor(WORKERS) as workers:
        found = [*workers.map(lambda _: reuses(kubelet, count // WORKERS), range(WORKERS))]
    tried, hits = Counter[str](), Counter[str]()
    for each in found:
        assert each["pidfd"]["hits"] == {}, "at which step, and how often, an innocent was hit"
        assert {"INTENT durable", "terminate_client asked", "SIGTERM begun", "SIGKILL begun"} <= each["pidfd"][
            "doors"
        ].keys()
        for name in ("pidfd", "bare"):
            tried[name] += each[name]["tried"]
            hits[name] += sum(each[name]["hits"].values())
    assert tried["pidfd"] == count
    assert hits["bare"] > 0, "the test bites: a bare pid does hit the innocent"
    extent.figure("15", "innocents signalled, their pid taken over at each step of a kill", said(hits, tried, "pidfd"))
    extent.figure("15", "the same by a killer with bare pids (the control)", said(hits, tried, "bare"))


def said(hits: Counter[str], tried: Counter[str], name: str) -> str:
    return f"{hits[name]:,} in {tried[name]:,}"
