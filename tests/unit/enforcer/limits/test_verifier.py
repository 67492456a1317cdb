"""The loop that proves limits: who is looked at, who is asked, what is reported to whom and how often."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.limits.applier import AppliedLimit
from enforcer.limits.backend import Backend
from enforcer.limits.environ_limits import EnvironLimit
from enforcer.limits.verifier import LimitVerifier, NodeEvidence
from enforcer.nvml.types import GpuSample
from enforcer.quota.types import LimitStatus, Quota
from enforcer.status.messages import UserMessage
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Messages, Quotas, sampler
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, holder, neighbour, quota
from tests.unit.enforcer.test_loop import CARD, card

KEY = (CONTAINER, GPU)


class Node(NodeEvidence):
    """One container with one process that is well, until a test changes that."""

    def __init__(self) -> None:
        self.quotas: list[Quota] = [quota()]
        self.used: dict[str, dict[int, tuple[int, str]]] = {GPU: {7: (1000, CONTAINER)}, OTHER_GPU: {}}
        self.backend = {GPU: Backend.MPS_V2, OTHER_GPU: Backend.MPS_V2}
        self.mps: dict[str, set[int]] = {GPU: {7, 8}, OTHER_GPU: set()}
        self.environ: dict[int, EnvironLimit | None] = {}
        self.applied = AppliedLimit()
        self.blind = False
        self.asked: list[Collection[str]] = []
        self.notices = list[UserMessage]()
        self.changes: list[dict[str, str]] = []
        self.takes = True
        self.clock = 0.0
        watch, checkpoint, sink = sampler(self.views), Quotas(lambda: self.quotas), Messages(self.notices)
        self.prover = LimitVerifier(self, watch, checkpoint, sink, self, 8.0, FakeClock(lambda: self.clock))

    def backends(self) -> Mapping[str, Backend]:
        return self.backend

    def read(self, quota: Quota) -> AppliedLimit:
        return self.applied

    def clients(self, gpus: Collection[str]) -> Mapping[str, Collection[int]]:
        self.asked.append(set(gpus))
        return {gpu: pids for gpu, pids in self.mps.items() if gpu in gpus}

    def limit_of(self, pid: int, start: int) -> EnvironLimit | None:
        return self.environ.get(pid, EnvironLimit(4096))

    def views(self) -> list[GpuSnapshot]:
        return [self._view(number, uuid) for number, uuid in enumerate(self.used)]

    def _view(self, number: int, uuid: str) -> GpuSnapshot:
        if self.blind:
            return GpuSnapshot(gpu=card(uuid, number), problem=NvmlError("away"))
        rows = tuple(holder(pid, mib, container) for pid, (mib, container) in self.used[uuid].items())
        sample = GpuSample(uuid=uuid, total_mib=CARD, used_mib=0, processes=())
        return GpuSnapshot(gpu=card(uuid, number), sample=sample, holders=rows)

    def write_conditions(self, claim: str, proofs: Sequence[tuple[Quota, LimitStatus]]) -> bool:
        self.changes.append({each.container: str(found.state) for each, found in proofs})
        return self.takes

    def look(self, times: int = 1) -> Reason | None:
        for _ in range(times):
            self.prover.verify_all()
        found = self.prover.proven.get(KEY)
        return None if found is None else found.state


@pytest.fixture(name="node")
def _node() -> Node:
    return Node()


def test_a_state_is_reported_once(node: Node) -> None:
    assert node.look(3) is Reason.IN_FORCE
    assert node.changes == [{"model": "InForce"}]
    assert not node.notices


def test_an_escape_is_reported_after_two_looks_to_the_claim_and_the_pod(node: Node) -> None:
    node.look()
    node.environ[7] = EnvironLimit(4096, "1")
    assert node.look() is Reason.IN_FORCE
    assert node.prover.suspected
    assert node.look() is Reason.LIMIT_ESCAPED
    assert not node.prover.suspected
    node.look(3)
    assert node.changes[1:] == [{"model": "LimitEscaped"}]
    (reported,) = node.notices
    assert (reported.reason, reported.warning, reported.quota) == (Reason.LIMIT_ESCAPED, True, node.quotas[0])
    assert "container model" in reported.note
    assert "(mps-v2)" in reported.note


def test_a_limit_that_is_got_around_again_and_again_is_reported_its_pod_once_in_five_minutes(node: Node) -> None:
    for _ in range(20):
        node.environ[7] = EnvironLimit(4096, "1")
        assert node.look(2) is Reason.LIMIT_ESCAPED
        node.environ.clear()
        assert node.look() is Reason.IN_FORCE
        node.clock += 40
    assert [each.reason for each in node.notices] == [Reason.LIMIT_ESCAPED] * 3
    assert node.changes == [{"model": state} for _ in range(20) for state in ("LimitEscaped", "InForce")], (
        "each in the claim"
    )


def test_another_thing_that_is_wrong_is_reported_at_once(node: Node) -> None:
    node.environ[7] = EnvironLimit(4096, "1")
    node.look(2)
    node.environ[7] = EnvironLimit()
    node.look(2)
    assert [each.reason for each in node.notices] == [Reason.LIMIT_ESCAPED, Reason.NOT_APPLIED]


def test_a_process_that_is_no_client_and_one_without_its_variable_are_found(node: Node) -> None:
    node.mps[GPU] = set()
    assert node.look(2) is Reason.LIMIT_ESCAPED
    node.mps[GPU], node.environ[7] = {7}, EnvironLimit()
    assert node.look(2) is Reason.NOT_APPLIED
    node.environ.clear()
    assert node.look() is Reason.IN_FORCE


def test_another_tolerance_is_reported_though_the_state_is_the_same(node: Node) -> None:
    node.look(2)
    node.quotas[0] = replace(node.quotas[0], tolerance_mib=1000)
    node.look(2)
    assert node.changes == [{"model": "InForce"}] * 2
    assert node.prover.proven[KEY].sentence.endswith("the enforcer tolerates up to 1000 MiB more")
    assert not node.notices


def test_what_the_api_server_did_not_take_is_reported_again(node: Node) -> None:
    node.takes = False
    node.look(2)
    node.takes = True
    node.look(2)
    assert node.changes == [{"model": "InForce"}] * 3


def test_one_daemon_is_asked_however_many_containers_it_has_and_others_are_not(node: Node) -> None:
    node.quotas.append(neighbour())
    node.used[GPU][8] = (500, NEIGHBOUR)
    node.look()
    assert node.asked == [{GPU}]


def test_where_nobody_holds_anything_nobody_is_asked_and_nothing_reported(node: Node) -> None:
    """An init container that is done leaves the state of the others in its request alone."""
    node.used[GPU].clear()
    assert node.look(2) is None
    assert node.asked == [set(), set()]
    assert node.changes == [{}], "once, because an earlier enforcer may have left something"


def test_what_an_earlier_enforcer_or_a_gpu_that_was_away_left_is_taken_away(node: Node) -> None:
    """What stands of an idle container after a trouble is what stands of one that starts after it."""
    node.used[GPU].clear()
    node.blind = True
    assert node.look(2) is Reason.UNKNOWN
    node.blind = False
    assert node.look(2) is None
    assert node.changes == [{"model": "Unknown"}, {}]


def test_of_what_cannot_be_verified_the_newest_cause_is_reported(node: Node) -> None:
    node.blind = True
    node.look(2)
    node.blind = False
    del node.mps[GPU]
    node.look()
    assert "MPS daemon" in node.prover.proven[KEY].sentence
    assert node.changes == [{"model": "Unknown"}, {"model": "Unknown"}]


def test_a_silent_daemon_accuses_nobody(node: Node) -> None:
    node.look()
    del node.mps[GPU]
    assert node.look(2) is Reason.UNKNOWN
    assert not node.notices


def test_blindness_accuses_nobody(node: Node) -> None:
    node.look()
    node.environ[7] = EnvironLimit()
    node.blind = True
    assert node.look() is Reason.IN_FORCE
    assert node.look(2) is Reason.UNKNOWN
    assert not node.notices


def test_a_container_limited_by_its_cgroup_is_evaluated_by_what_is_read_back(node: Node) -> None:
    node.backend[GPU] = Backend.DRIVER_CGROUP
    node.applied = AppliedLimit(4096)
    node.environ[7] = EnvironLimit(4096, "1")
    assert node.look() is Reason.IN_FORCE
    node.applied = AppliedLimit(9999)
    assert node.look(2) is Reason.NOT_APPLIED
    node.applied = AppliedLimit(why="away")
    assert node.look(2) is Reason.UNKNOWN
    assert node.asked[-1] == set()


def test_where_nothing_prevents_that_is_reported_and_no_event_made_of_it(node: Node) -> None:
    node.backend[GPU] = Backend.WATCH_ONLY
    assert node.look(3) is Reason.NOT_APPLIED
    assert node.changes == [{"model": "NotApplied"}]
    assert not node.notices


def test_a_container_that_is_gone_is_forgotten(node: Node) -> None:
    node.environ[7] = EnvironLimit()
    node.look()
    node.quotas[0] = quota(container_id=None)
    assert node.look() is None
    assert not node.prover.suspected
    assert node.changes == [{}]


def test_where_nothing_was_given_nothing_can_be_in_force(node: Node) -> None:
    node.quotas[0] = quota(memory_mib=0)
    assert node.look(3) is None
    assert (node.changes, node.notices) == ([], [])


def test_a_gpu_nobody_was_asked_about_yet_is_left_out(node: Node) -> None:
    node.backend.clear()
    assert node.look() is None


def test_what_was_seen_once_is_looked_at_again_sooner(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, suspects = list[int](), {2, 3}
    monkeypatch.setattr(LimitVerifier, "suspected", property(lambda _: node.clock in suspects))
    monkeypatch.setattr(node.prover, "verify_all", lambda: looks.append(int(node.clock)))
    for second in range(12):
        node.clock = float(second)
        node.prover.run_once()
    assert looks == [0, 2, 10]


def test_a_container_that_was_given_nothing_has_no_limit_to_prove(node: Node) -> None:
    node.quotas = [quota(memory_mib=0)]
    assert node.look(3) is None
    assert not node.changes
    assert not node.notices
