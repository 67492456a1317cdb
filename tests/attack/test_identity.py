"""Whatever a tenant writes into the status of its pods, and whatever its containers hide from the node.

The attacker owns a namespace (Role ``*``): it writes ``pods/status``. Its containers are root in mount namespaces of
their own: a container has no name, or that of another container of its pod. No history lets its pod hold more than its
claims reserved for longer than a grace period, and none hurts a neighbour.
"""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision
from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.kept_fields import kept_pod
from enforcer.quota.types import Quota
from gpushare import contract
from tests.support.wiring import Quotas
from tests.unit.enforcer.attribution.test_container_names import Node, mount, named
from tests.unit.enforcer.dra.objects import NODE, Object, claim, container, namespace, pod
from tests.unit.enforcer.made import DEVICE, GPU
from tests.unit.enforcer.test_loop import CARD, card

SHARE: Final = 512
TOLERANCE: Final = 256
POLL: Final = 0.5
GRACE: Final = 2.0
LATEST: Final = 2 * GRACE + 10 * POLL
"""Seconds in which a container over its quota is killed, then another of its pod, then what is beyond the pod's sum."""
RULES: Final = DetectorConfig(kills=100)
"""The rate limit of kills has tests of its own."""
NAMES: Final = ("a", "b", "setup")
MINE: Final = {name: letter * 64 for name, letter in zip(NAMES, "abc", strict=True)}
THEIRS: Final = "d" * 64
ATTACKER: Final = pod(
    "attacker", {contract.MEMORY_OF + name: f"{SHARE}Mi" for name in NAMES}, container("a"), container("b"),
    inits=(container("setup"),),
)  # fmt: skip
VICTIM: Final = pod("victim", {contract.MEMORY: f"{SHARE}Mi"}, container("model"))
PREPARED: Final = [
    compute_limits(NODE, PrepareRequest(claim(each), each, namespace()), {DEVICE: card(GPU, 0)})
    for each in (ATTACKER, VICTIM)
]
SUM: Final = PREPARED[0].mib_on(GPU)


@dataclass
class World(GpuReader):
    """A node with both pods. Pids 1 to 3 are the attacker's containers, 9 is the victim."""

    folder: Path
    now: float = 100.0
    used_mib: dict[int, int] = field(default_factory=dict)
    status: Object = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node, self.quotas = Node(self.folder / "proc"), tuple[Quota, ...]()
        self.checkpoint, self.state = Quotas(lambda: self.quotas), DetectorState()
        self.who = CgroupAttributor(self.node.proc, self.folder)
        for pid, name in enumerate(NAMES, 1):
            self.node.start(pid, named(name, ATTACKER["metadata"]["uid"]), MINE[name], ATTACKER["metadata"]["uid"])
        self.node.start(9, named("model", VICTIM["metadata"]["uid"]), THEIRS, VICTIM["metadata"]["uid"])
        self.restart()

    def restart(self) -> None:
        """Another enforcer on the same disk."""
        self.names = self.node.names()
        self.watch = UsageSampler(self, self.who, (), self.checkpoint, self.names)

    def gpus(self) -> tuple[Gpu, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        rows = tuple(GpuProcess(pid, mib) for pid, mib in self.used_mib.items() if mib)
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=sum(self.used_mib.values()), processes=rows)

    def poll(self) -> tuple[KillDecision, ...]:
        """What happens from one look to the next: quotas are worked out, the GPU is read, decisions are made."""
        self.now += POLL
        pods = [kept_pod({**ATTACKER, "status": {**ATTACKER["status"], **self.status}}), kept_pod(VICTIM)]
        before = self.checkpoint.read()
        found = quotas_of_prepared(PREPARED, pods, [namespace({contract.GRACE_PERIOD: f"{GRACE:.0f}s"})], before)
        self.quotas = self.names.joined(found, before)
        (view,) = self.watch.sample()
        self.state, decided = evaluate(self.state, self.quotas, {GPU: view.reading}, self.now, RULES)
        for decision in decided:
            if decision.decision is Decision.KILL:
                self.used_mib |= {each.identity.pid: 0 for each in decision.targets}
                self.state = record_kill_result(self.state, decision.quota, self.now, RULES, acted=True)
        return decided


def container_statuses() -> st.SearchStrategy[list[Object]]:
    ids = st.sampled_from([*MINE.values(), THEIRS, "e" * 64, ""])
    return st.lists(
        st.builds(
            lambda name, found: {"name": name, "containerID": f"containerd://{found}", "state": {"running": {}}},
            st.sampled_from([*NAMES, "model"]), ids,
        ),
        max_size=4,
    )  # fmt: skip


def statuses() -> st.SearchStrategy[Object]:
    made = st.lists(
        st.sampled_from([{"name": contract.CLAIM, "resourceClaimName": f"victim-{contract.CLAIM}"}]), max_size=1
    )
    return st.fixed_dictionaries({}, optional={
        "phase": st.sampled_from(["Running", "Succeeded", "Failed"]),
        "containerStatuses": container_statuses(), "initContainerStatuses": container_statuses(),
        "resourceClaimStatuses": made,
    })  # fmt: skip


def mounts() -> st.SearchStrategy[str]:
    uid, other = ATTACKER["metadata"]["uid"], VICTIM["metadata"]["uid"]
    shown = [named(name, uid) for name in NAMES]
    return st.sampled_from([*shown, shown[0] + shown[1], mount("/", "/", "0:50"), named("model", other)])


PIDS: Final = st.sampled_from([1, 2, 3])
USED: Final = st.dictionaries(PIDS, st.sampled_from([0, SHARE, SHARE + TOLERANCE, 900, 9216]))
STEPS: Final = st.lists(
    st.tuples(st.one_of(st.none(), statuses()), st.dictionaries(PIDS, mounts()), USED, st.booleans()),
    min_size=1, max_size=4,
)  # fmt: skip


@given(STEPS, st.sampled_from([0, SHARE]))
def test_no_history_lets_a_pod_exceed_its_sum_or_hurts_a_neighbour(steps: list[Any], victim: int) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.used_mib[9] = victim
        for status, shown, used, restarts in steps:
            world.status = world.status if status is None else status
            for pid, table in shown.items():
                (world.node.proc / str(pid) / "mountinfo").write_text(table)
            world.used_mib |= used
            if restarts:
                world.restart()
            for _ in range(round(LATEST / POLL)):
                for decision in world.poll():
                    assert decision.quota.pod == "attacker"
                    assert {each.identity.pid for each in decision.targets} <= {1, 2, 3}
            assert world.used_mib[9] == victim
            assert sum(world.used_mib.values()) - victim <= SUM + (len(NAMES) + 1) * TOLERANCE


def test_a_container_id_that_its_tenant_writes_changes_nothing(tmp_path: Path) -> None:
    """A share of 512Mi held 9,216 MiB for as long as its owner wrote another id four times a second."""
    for number, found in enumerate(("e" * 64, THEIRS)):
        (folder := tmp_path / str(number)).mkdir()
        world = World(folder)
        world.used_mib = {1: 9216, 9: SHARE}
        killed = []
        for turn in range(12):
            forged = "f" * 64 if turn % 2 else found
            world.status = {"containerStatuses": [{"name": "a", "containerID": f"containerd://{forged}"}]}
            killed += [each for each in world.poll() if each.decision is Decision.KILL]
        assert [(each.quota.pod, each.quota.container, each.quota.container_id) for each in killed[:1]] == [
            ("attacker", "a", MINE["a"])
        ]
        assert {each.quota.pod for each in killed} == {"attacker"}
