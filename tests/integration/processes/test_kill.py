"""The whole enforcer in a process of its own: simulated NVML library, real processes in real cgroups."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.log import segments
from enforcer.audit.verification import LOOK
from enforcer.quota.types import OnExceed
from tests.fakes.gpu.state import Fault
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import POLL, Node
from tests.support.need import missing

pytestmark = pytest.mark.node

GRACE = 1.0
SLACK = 1.0
"""Seconds that a busy machine may take to end a process, once that is decided."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        stack.callback(made.end)
        yield made


def outcome(node: Node, seconds: float = 10) -> dict[str, Any]:
    wait_for(lambda: bool(node.records("OUTCOME")), seconds)
    return node.records("OUTCOME")[0]


def gone(node: Node, tenant: subprocess.Popen[str]) -> tuple[float, float]:
    """Wait for a process's end; returns how long that took, and the longest time between two looks meanwhile.

    It is over its quota: what the enforcer says of it changes with each look, so that each is written down.
    """
    times, last = [time.monotonic()], node.status()["time"]

    def ended() -> bool:
        nonlocal last
        if (now := node.status()["time"]) != last:
            last = now
            times.append(time.monotonic())
        return not alive(tenant)

    took = wait_for(ended, 20)
    return took, max(later - earlier for earlier, later in pairwise([*times, time.monotonic()]))


def test_over_quota_is_gone_within_grace_and_two_polls_and_its_neighbour_lives(node: Node) -> None:
    greedy, modest = node.container(), node.container()
    neighbour = modest.tenant(node.sim, "--mib", "4096")
    tenant = greedy.tenant(node.sim, "--mib", "2000")
    node.allow(greedy.quota(node.gpu, 4096), modest.quota(node.gpu, 4096))
    node.start()
    node.looks(3)
    assert node.state_of(greedy) == "Within"
    node.sim.register(tenant.pid, node.gpu, 9000)
    took, look = gone(node, tenant)
    print(f"gone after {took:.2f}s; grace {GRACE}s, poll {POLL}s, looks {look:.2f}s apart at most")
    assert GRACE - POLL <= took <= GRACE + 2 * max(POLL, look) + SLACK
    assert alive(neighbour)
    assert node.sim.used(node.gpu) == 4096
    final = outcome(node)
    intent, warned = node.records("INTENT")[0], node.records("WARNED")[0]
    assert (intent["pid"], intent["usedMiB"], intent["quotaMiB"]) == (tenant.pid, 9000, 4096)
    assert intent["pod"]["uid"] == greedy.pod_uid
    assert warned["seq"] < intent["seq"] < final["seq"]
    assert final["result"] == "Killed"
    assert final["targets"][0]["steps"] == "SIGTERM"
    assert node.verified()
    assert node.stop() == 0
    assert alive(neighbour)


def test_a_process_that_ignores_sigterm_is_killed_all_the_same(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000", "--ignore-term")
    node.allow(container.quota(node.gpu, 4096))
    node.start()
    assert outcome(node)["targets"][0]["steps"] == "SIGTERM,SIGKILL"
    assert tenant.wait(5) == -signal.SIGKILL


def test_back_under_quota_in_time_is_spared(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "2000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=10.0))
    node.start()
    node.sim.register(tenant.pid, node.gpu, 9000)
    wait_for(lambda: node.state_of(container) == "Warned", 10)
    node.sim.register(tenant.pid, node.gpu, 2000)
    time.sleep(11.0)
    assert alive(tenant)
    assert [record["kind"] for record in node.records()] == ["GRACE_STARTED", "WARNED"]


def test_only_a_warning_where_only_a_warning_is_wanted(node: Node) -> None:
    warned, watched = node.container(), node.container()
    tenants = [each.tenant(node.sim, "--mib", "6000") for each in (warned, watched)]
    node.allow(warned.quota(node.gpu, 4096, on_exceed=OnExceed.WARN, grace_seconds=0.0))
    node.start()
    wait_for(lambda: len(node.records()) == 2, 20)
    node.looks(3)
    assert all(map(alive, tenants))
    assert [record["kind"] for record in node.records()] == ["GRACE_STARTED", "WARNED"]
    strangers = {row["containerId"] for row in node.status()["strangers"]}
    assert strangers == {watched.container_id}, "no quota: shown, never ended"


def test_a_switched_off_enforcer_ends_nobody(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    node.start("--no-enforce")
    time.sleep(2.0)
    assert alive(tenant)
    assert node.status()["enforcing"] is False


def test_processes_each_within_quota_count_together(node: Node) -> None:
    container, other = node.container(), node.container()
    first = container.tenant(node.sim, "--mib", "2500")
    second = container.tenant(node.sim, "--mib", "2000")
    neighbour = other.tenant(node.sim, "--mib", "4096")
    node.allow(container.quota(node.gpu, 4096), other.quota(node.gpu, 4096))
    node.start()
    wait_for(lambda: not alive(first), 20)
    outcome(node)
    node.looks(10)
    assert alive(second), "the largest is enough"
    assert alive(neighbour)
    assert node.verified()


def test_the_whole_container_where_that_is_wanted(node: Node) -> None:
    container = node.container()
    tenants = [container.tenant(node.sim, "--mib", "2500"), container.tenant(node.sim, "--mib", "2000")]
    node.allow(container.quota(node.gpu, 4096, on_exceed=OnExceed.KILL_CONTAINER))
    node.start()
    wait_for(lambda: not any(map(alive, tenants)), 20)
    assert outcome(node)["ended"] == 2


PASSING_ON = """
import os, signal, sys, time
from tests.fakes.gpu.state import Sim
sim, gpu, following = Sim.from_environment(), sys.argv[1], []
for _ in range(3):
    before, following = following, []
    pid = os.fork()
    if pid == 0:
        following = before
        break
    following = [*before, pid]
    if len(following) == 3:
        sim.register(os.getpid(), gpu, 9000)
        print("ready", flush=True)
def hand_over(*_):
    if following:
        sim.register(following[-1], gpu, 9000)
signal.signal(signal.SIGTERM, hand_over)
while True:
    time.sleep(1)
"""
"""Each process, told to end, lets its younger sibling hold the memory instead: as a tenant that forks meanwhile."""


def test_processes_that_appear_meanwhile_are_covered_by_an_intent_for_the_whole_container(node: Node) -> None:
    container, other = node.container(), node.container()
    neighbour = other.tenant(node.sim, "--mib", "1000")
    tenant = container.spawn(sys.executable, "-c", PASSING_ON, node.gpu, env=node.sim.environment())
    assert tenant.stdout
    assert tenant.stdout.readline() == "ready\n"
    node.allow(container.quota(node.gpu, 4096), other.quota(node.gpu, 4096))
    node.start()
    wait_for(lambda: len(node.records("OUTCOME")) == 2, 20)
    first, whole = (each["targets"] for each in node.records("OUTCOME"))
    assert [target["steps"] for target in first] == ["SIGTERM,SIGKILL"]
    assert {target["steps"] for target in whole} <= {"SIGTERM,SIGKILL", "SIGKILL"}
    assert len({target["pid"] for target in (*first, *whole)}) > 1
    node.looks(3)
    assert len(node.records("INTENT")) == 2
    assert node.sim.used(node.gpu) == 1000
    assert alive(neighbour)
    assert node.verified()


def test_blind_moments_end_nobody_and_sight_comes_back(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096))
    node.sim.fail(Fault(call="nvmlDeviceGetComputeRunningProcesses_v3", error=999))
    node.start()
    wait_for(lambda: node.state_of(container) == "Unknown", 30)
    time.sleep(2.0)
    assert alive(tenant)
    assert node.status()["problems"]
    node.sim.fail()
    wait_for(lambda: not alive(tenant), 20)
    assert node.verified()


@pytest.mark.parametrize("pid_memory", ["none", 99_000_000])
def test_what_cannot_be_true_ends_nobody(node: Node, pid_memory: Any) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "1000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    node.sim.fail(Fault(gpu=node.gpu, pid=tenant.pid, memory_mib=pid_memory))
    node.start()
    time.sleep(2.0)
    assert alive(tenant)
    assert node.records() == []


def test_a_log_that_cannot_be_written_spares_everybody(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    audit = node.state / "audit"
    audit.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,mode=0700", "tmpfs", audit], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        missing(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        (audit / "filler").write_bytes(b"x" * 4096)
        node.start()
        wait_for(lambda: "AuditUnwritable" in node.log(), 30)
        time.sleep(3.0)
        assert alive(tenant)
        (audit / "filler").unlink()
        wait_for(lambda: not alive(tenant), 30)
        assert node.verified()
    finally:
        node.end()
        subprocess.run(["umount", audit], check=True)


def test_a_restart_charges_nobody_and_the_chain_runs_on(node: Node) -> None:
    container, other = node.container(), node.container()
    tenant, neighbour = container.tenant(node.sim, "--mib", "9000"), other.tenant(node.sim, "--mib", "1000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=5.0), other.quota(node.gpu, 4096))
    node.start()
    wait_for(lambda: node.state_of(container) == "Warned", 10)
    wait_for(lambda: bool(node.records("WARNED")), 10)
    node.stop(signal.SIGKILL)
    assert alive(tenant)
    node.start()
    wait_for(lambda: not alive(tenant), 20)
    assert outcome(node)["result"] == "Killed"
    assert float(node.records("INTENT")[0]["overFor"].removesuffix("s")) >= 5.0, "not shortened"
    assert len(node.records("WARNED")) == 1, "and remembered"
    assert alive(neighbour)
    assert node.verified()


def test_an_enforcer_that_died_in_a_kill_says_so_when_it_is_back(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000", "--ignore-term")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    node.start("--termination-timeout", "30")
    wait_for(lambda: bool(node.records("INTENT")), 20)
    node.stop(signal.SIGKILL)
    node.start("--termination-timeout", "0.2")
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: len(node.records("OUTCOME")) == 2, 10)
    assert [record["result"] for record in node.records("OUTCOME")] == ["Interrupted", "Killed"]
    assert node.verified()


def test_a_second_enforcer_waits_and_takes_over(node: Node) -> None:
    node.start()
    first, held = node.enforcer, node.state / "lock"
    assert first
    with (node.state.parent / "enforcer.log").open("ab") as log:
        node.launch(stderr=log)
    second = node.enforcer
    assert second
    wait_for(lambda: f"another enforcer (pid {first.pid})" in node.log(), 20)
    assert held.read_text() == f"{first.pid}\n"
    first.kill()
    first.wait(10)
    wait_for(lambda: held.read_text() == f"{second.pid}\n", 10)


def test_quotas_are_taken_up_while_it_runs_and_bad_ones_change_nothing(node: Node) -> None:
    container = node.container()
    held = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 10000))
    node.start()
    node.looks(2)
    (node.state / "checkpoint.json").write_text("{")
    wait_for(lambda: any("checkpoint" in problem for problem in node.status()["problems"]), 10)
    assert node.state_of(container) == "Within"
    other = node.container()
    tenant = other.tenant(node.sim, "--mib", "5000")
    node.allow(container.quota(node.gpu, 4096), other.quota(node.gpu, 4096))
    wait_for(lambda: not alive(tenant), 20)
    assert (alive(held), node.state_of(container)) == (True, "Lowered"), "a lowered quota counts ten minutes later"


def test_a_name_protects_nobody(node: Node) -> None:
    container = node.container()
    code = (
        "import ctypes,sys,time; ctypes.CDLL(None).prctl(15, b'nvidia-cuda-mps', 0, 0, 0);"
        "from tests.fakes.gpu.state import Sim; import os;"
        "Sim.from_environment().register(os.getpid(), sys.argv[1], 9000);"
        "print('ready', flush=True); time.sleep(60)"
    )
    tenant = container.spawn(sys.executable, "-c", code, node.gpu, env=node.sim.environment())
    assert tenant.stdout
    assert tenant.stdout.readline() == "ready\n"
    node.allow(container.quota(node.gpu, 4096))
    node.start()
    wait_for(lambda: not alive(tenant), 20)


def test_a_dead_leader_whose_threads_live_is_still_found(node: Node) -> None:
    container = node.container()
    code = (
        "import ctypes, os, sys, threading, time; from tests.fakes.gpu.state import Sim;"
        "sim = Sim.from_environment(); sim.register(os.getpid(), sys.argv[1], 9000);"
        "threading.Thread(target=time.sleep, args=(60,)).start(); print('ready', flush=True);"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    )
    tenant = container.spawn(sys.executable, "-c", code, node.gpu, env=node.sim.environment())
    assert tenant.stdout
    assert tenant.stdout.readline() == "ready\n"
    stat: Callable[[], str] = lambda: Path(f"/proc/{tenant.pid}/stat").read_text().rpartition(")")[2].split()[0]  # noqa: E731
    wait_for(lambda: stat() == "Z", 5)
    node.allow(container.quota(node.gpu, 4096))
    node.start()
    final = outcome(node, 20)
    assert final["result"] == "Killed"
    assert tenant.wait(5) is not None


def test_a_record_cut_off_the_log_is_a_problem_within_seconds(node: Node) -> None:
    container = node.container()
    container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096))
    node.start()
    outcome(node)
    assert node.verified()
    file = segments(node.state / "audit")[-1]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    took = wait_for(lambda: any("the audit log is broken" in each for each in node.status()["problems"]), LOOK + 15)
    print(f"found after {took:.1f}s")
