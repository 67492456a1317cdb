"""Test 28: the API server is away, refuses, is slow or talks nonsense; who is known stays enforced, nobody else dies.

Threads, watches, books, checkpoint and loop are the product's own, over a server on loopback; NVML and the Executor are
scripted, and the loop's clock is.
"""

import json
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.log import AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import KillDecision
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.informer import AllocatedClaims, QuotaInformer, add_informers
from enforcer.runtime.manager import Manager, Wake
from enforcer.status.metrics import Metrics
from gpushare import kube_client as road
from gpushare.informer import Informer
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason
from tests.safety.apiserver import FAULTS, WELL, ApiServer, Object
from tests.support import extent
from tests.support.clock import FakeClock
from tests.support.quotas import of_containers
from tests.support.wiring import Attribution, Ids, Messages, loop_parts
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD
from tests.unit.enforcer.quota.test_from_claims import NODE, claim, container, namespace, piece, pod, result
from tests.unit.enforcer.quota.test_informer import uid
from tests.unit.enforcer.test_loop import CARD, card

LATE_POD: Final = "late-0000"
OVER: Final = 100
LATE: Final = 200
AT_ONCE: Final = 6
IDS: Final = Ids({(POD, "model"): CONTAINER, (LATE_POD, "model"): NEIGHBOUR})


def versioned(item: Object, name: str) -> Object:
    return uid(item, name) | {"metadata": item["metadata"] | {"uid": name, "resourceVersion": "1"}}


def late() -> dict[str, list[Object]]:
    """A pod that came while nobody could learn of it."""
    made = versioned(pod(container("model", "1024")), LATE_POD)
    made["metadata"] |= {"name": "late-0"}
    made["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = "late-0-x"
    its = versioned(claim(result("model", "gpu-0", "1Gi"), users=[LATE_POD]), "claim-2")
    its["metadata"] |= {"name": "late-0-x"}
    return {"pods": [made], "resourceclaims": [its]}


class World(GpuReader):
    """A node whose enforcer follows a scripted API server."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server = ApiServer()
        stack.enter_context(self.server.serving())
        # The Namespace gives no grace: three looks are enough.
        self.server.objects = {
            "pods": [versioned(pod(container("model", "4096")), POD)],
            "resourceclaims": [versioned(claim(result("model", "gpu-0")), "claim-1")],
            "namespaces": [versioned(namespace(grace_period="0s"), "ns-1")],
            "resourceslices": [{"metadata": {"name": "s", "uid": "s", "resourceVersion": "1"}} | piece()],
        }
        self.now, self.held, self.killed = 1000.0, {OVER: 100, LATE: 100}, list[str]()
        manager, changed = Manager(), Wake()
        stack.callback(manager.stop)
        self.checkpoint, books = Checkpoint(folder), QuotaInformer(AllocatedClaims(NODE), changed)
        add_informers(manager, _connect(folder, self.server), books, NODE, Checkpoint(folder), IDS, changed)
        manager.start()
        parts = loop_parts(
            watch=UsageSampler(self, Attribution(self.identify)), quotas=self.checkpoint.read, executor=self,
            audit_log=AuditWriter(AuditLog(folder / "audit"), NODE), events=Messages(), metrics=Metrics(),
        )  # fmt: skip
        self.enforcer = EnforcementLoop(NODE, folder, parts, clock=FakeClock(lambda: self.now))
        stack.callback(self.enforcer.close)

    def gpus(self) -> tuple[Any, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        rows = tuple(GpuProcess(pid, mib) for pid, mib in self.held.items())
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=CARD, processes=rows)

    def identify(self, pid: int) -> Identity:
        owner = ContainerRef(POD, CONTAINER) if pid == OVER else ContainerRef(LATE_POD, NEIGHBOUR)
        return Identity(pid=pid, start=pid, owner=owner, cgroup_inode=pid)

    def execute(self, verdict: KillDecision) -> KillResult:
        assert verdict.quota.container_id
        self.killed.append(verdict.quota.container_id)
        return KillResult(
            Reason.KILLED, (ProcessOutcome(pid=1, start=1, used_mib=1, result=Reason.KILLED, steps=("SIGKILL",)),)
        )

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now += 0.5
            self.enforcer.poll()
            for future in self.enforcer._pending:
                future.result(60)

    def known(self) -> set[str | None]:
        return {each.container_id for each in of_containers(self.checkpoint.read())}


def _connect(folder: Path, server: ApiServer) -> KubeClient:
    where = {"server": f"http://127.0.0.1:{server.server_port}"}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": where}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config))
    return KubeClient.connect(str(folder / "kubeconfig"))


@contextmanager
def world() -> Iterator[World]:
    # Who follows the API server may write once more while the folder goes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        yield World(Path(folder), stack)


def wait_for(true: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scaled: a call waits 0.5 s, a list or a watch as long for each word, and a new attempt 0.2 s at most."""
    monkeypatch.setattr(road, "WATCH_SILENCE", 0.5)
    monkeypatch.setattr(Informer, "MIN_DELAY", 0.02)
    monkeypatch.setattr(Informer, "MAX_DELAY", 0.2)
    defaults = KubeClient._call.__kwdefaults__ or {}
    monkeypatch.setattr(KubeClient._call, "__kwdefaults__", {**defaults, "timeout": 0.5})
    monkeypatch.setattr(road, "BODY_SECONDS", 1.0)
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


def through(fault: str) -> tuple[int, int]:
    """Let an outage come, a known container go over in it and an unknown one; says who was killed of each."""
    with world() as found:
        wait_for(lambda: found.known() == {CONTAINER}, f"{fault}: the quotas are learnt")
        found.server.fault = fault
        for kind, items in late().items():
            found.server.objects[kind] = [*found.server.objects[kind], *items]
        found.server.version += 1
        asked = found.server.asked
        if fault != "away":
            wait_for(lambda: found.server.asked >= asked + 6, f"{fault}: it is asked again and again")
        found.held = {OVER: 9000, LATE: 9000}
        found.look(10)
        killed = (found.killed.count(CONTAINER), found.killed.count(NEIGHBOUR))
        if not fault.startswith("watch: "):
            assert found.known() == {CONTAINER}, fault
        found.server.fault = WELL
        wait_for(lambda: found.known() == {CONTAINER, NEIGHBOUR}, f"{fault}: afterwards it learns without a restart")
        found.look(10)
        assert NEIGHBOUR in found.killed, f"{fault}: known now, and over"
        return killed


def test_whatever_the_api_server_does_the_known_are_enforced_and_nobody_else_is_killed() -> None:
    faults = FAULTS * extent.trials(1, 10)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        killed = list(threads.map(through, faults))
    known = sum(ours > 0 for ours, _ in killed)
    # Where lists still work the late one may be known in time.
    unknown = sum(others for fault, (_, others) in zip(faults, killed, strict=True) if not fault.startswith("watch: "))
    assert (known, unknown) == (len(faults), 0)
    extent.figure(
        "28", "outages of the API server in which a known container was enforced", f"{known} of {len(faults)}"
    )
    extent.figure("28", "containers killed that nobody could know", f"{unknown} in {len(faults)} outages")


def test_after_ten_minutes_without_an_api_server_the_known_are_enforced_and_nobody_else_is_killed() -> None:
    with world() as found:
        wait_for(lambda: found.known() == {CONTAINER}, "the quotas are learnt")
        found.server.fault = "away"
        found.held = {OVER: 100, LATE: 9000}
        found.look(20 * 60)
        assert (found.killed, found.known()) == ([], {CONTAINER})
        found.held = {OVER: 9000, LATE: 9000}
        found.look(10)
        assert (set(found.killed), found.known()) == ({CONTAINER}, {CONTAINER})
        found.server.fault = WELL
        wait_for(lambda: found.known() == {CONTAINER}, "afterwards it learns without a restart")


def _own_threads() -> int:
    return sum("process_request_thread" not in each.name for each in threading.enumerate())


def test_an_outage_takes_no_memory() -> None:
    """So many failures as hours of an outage bring, at the pace of ten seconds each."""
    with world() as found:
        wait_for(lambda: found.known() == {CONTAINER}, "the quotas are learnt")
        found.server.fault = "items that are none"
        more, begun = extent.trials(100, 2000), found.server.asked
        wait_for(lambda: found.server.asked >= begun + 40, "warm")
        threads = _own_threads()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            wait_for(lambda: found.server.asked >= begun + 40 + more, "many failures")
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert _own_threads() <= threads
    assert after - before < 2 * 1024 * 1024
    extent.figure("28", "memory after failures", f"{(after - before) // 1024:+} KiB after {more:,}")
