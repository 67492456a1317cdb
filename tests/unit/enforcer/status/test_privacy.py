"""What a tenant is given names nobody else: no notice, Event, status file or log line of a pod tells of another."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import ChainHead
from enforcer.detection.detector import evaluate
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision
from enforcer.nvml.types import GpuSample
from enforcer.oom.diagnosis import Failure, diagnose, diagnosis_message
from enforcer.oom.memory_pressure import update_pressure
from enforcer.quota.types import OnExceed, Quota
from enforcer.runtime.problem import Problem
from enforcer.status import messages
from enforcer.status.events import event_of
from enforcer.status.messages import Message, UserMessage, message
from enforcer.status.node_status import Snapshot, status
from enforcer.status.pod_status import Seen, by_pod, pod_status
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from sidecar import metrics
from sidecar import pod_status as read_by_sidecar
from tests.unit.enforcer.made import GPU, OTHER_GPU
from tests.unit.enforcer.test_loop import card

GPUS = (GPU, OTHER_GPU)
FIRST_PID = 1_000_000
"""So high that no pid is taken for an amount, which stays below it."""
HEX = "0123456789abcdef"
thoroughly = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Tenant:
    """One container: its quota, and what its processes hold on each GPU."""

    quota: Quota
    used: dict[str, list[int]]
    number: int

    def holders(self, gpu: str) -> Iterator[ProcessUsage]:
        for index, mib in enumerate(self.used[gpu]):
            pid = FIRST_PID + 100 * self.number + 10 * GPUS.index(gpu) + index
            owner = ContainerRef(self.quota.pod_uid, self.quota.container_id or "")
            yield ProcessUsage(Identity(pid=pid, start=pid, owner=owner, cgroup_inode=pid), mib)

    def names(self) -> set[str]:
        """All that tells this tenant from others."""
        quota = self.quota
        pids = {str(holder.identity.pid) for gpu in GPUS for holder in self.holders(gpu)}
        texts = (quota.namespace, quota.pod, quota.pod_uid, quota.container, quota.container_id, quota.claim_uid)
        return {*pids, *(text for text in texts if text)}


def tenant(number: int, values: dict[str, Any], used: dict[str, list[int]]) -> Tenant:
    made = Quota(
        claim_uid=f"claim{number}x", namespace=f"ns{number}x", pod=f"pod{number // 2}x", pod_uid=f"uid{number // 2}x",
        container=f"box{number}x", container_id=HEX[number] * 64, **values,
    )  # fmt: skip
    return Tenant(made, used, number)


AMOUNTS = st.lists(st.integers(0, 90_000), max_size=3)
VALUES = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(GPUS),
        "memory_mib": st.integers(1, 90_000),
        "compute_percent": st.none() | st.integers(1, 100),
        "on_exceed": st.sampled_from(OnExceed),
        "grace_seconds": st.floats(0, 60),
        "tolerance_mib": st.none() | st.integers(0, 500),
    }
)
USED = st.fixed_dictionaries(dict.fromkeys(GPUS, AMOUNTS))
TENANTS = st.lists(st.tuples(VALUES, USED), min_size=2, max_size=8).map(
    lambda rows: [tenant(number, *row) for number, row in enumerate(rows)]
)
"""Two containers of a pod each, so that pods have neighbours and so have containers."""


def view(gpu: str, tenants: list[Tenant], *, blind: bool) -> GpuSnapshot:
    if blind:
        return GpuSnapshot(
            gpu=card(gpu, 0), problem=NvmlError(f"NVML says process {FIRST_PID} of pod0x holds too much")
        )
    holders = tuple(holder for each in tenants for holder in each.holders(gpu))
    sample = GpuSample(uuid=gpu, total_mib=999_999, used_mib=sum(h.used_mib for h in holders) + 7, processes=())
    return GpuSnapshot(gpu=card(gpu, GPUS.index(gpu)), sample=sample, holders=holders)


def world(tenants: list[Tenant], *, blind: bool) -> tuple[Snapshot, list[KillDecision]]:
    """Look often enough for every decision there can be."""
    quotas = [each.quota for each in tenants]
    views = [view(GPU, tenants, blind=blind), view(OTHER_GPU, tenants, blind=False)]
    state = DetectorState()
    decisions: list[KillDecision] = []
    for look in range(8):
        state, reported = evaluate(
            state, quotas, {each.gpu.uuid: each.reading for each in views}, 1000.0 + look, DetectorConfig()
        )
        decisions += reported
    hindered = f"process {FIRST_PID} of ns0x/pod0x and {FIRST_PID + 200} of ns2x/pod1x hinder this node"
    found = Snapshot(
        node="gpu-7", time="2026-11-20T22:16:05.123Z", now=1008.0, enforcing=True, views=views, quotas=quotas,
        state=state, rules=DetectorConfig(), head=ChainHead(42, "sha256:ab"),
        problems=[Problem(hindered, Reason.UNKNOWN)],
    )  # fmt: skip
    return found, decisions


def notices(decision: KillDecision) -> Iterator[UserMessage]:
    """Every notice there is about a decision."""
    yield from (words(decision) for words in messages.DECIDED.values())
    yield messages.audit_unavailable(decision)
    targets = decision.targets
    for result in messages.RESULTS:
        ended = [
            ProcessOutcome(pid=each.identity.pid, start=1, used_mib=each.used_mib, result=result, steps=("SIGTERM",))
            for each in targets
        ]
        yield messages.killed(decision, result, ended, ChainHead(42, "sha256:ab"))


def foreign(text: str, own: set[str], tenants: list[Tenant]) -> set[str]:
    """Whose names stand in a text that are not the pod's own."""
    others = {name for each in tenants for name in each.names()} - own
    return others & set(re.findall(r"[A-Za-z0-9]+", text))


def own_names(uid: str, tenants: list[Tenant]) -> set[str]:
    return {name for each in tenants if each.quota.pod_uid == uid for name in each.names()}


@thoroughly
@given(tenants=TENANTS, blind=st.booleans())
def test_no_notice_and_no_event_names_another_pod(*, tenants: list[Tenant], blind: bool) -> None:
    _, decisions = world(tenants, blind=blind)
    for decision in decisions:
        own = own_names(decision.quota.pod_uid, tenants)
        for each in notices(decision):
            event = event_of("gpu-7", each, datetime(2026, 11, 20, tzinfo=UTC))
            assert event["metadata"]["namespace"] == event["regarding"]["namespace"] == decision.quota.namespace
            assert not foreign(json.dumps(event), own, tenants)


@thoroughly
@given(tenants=TENANTS, blind=st.booleans(), serves=st.booleans())
def test_no_status_file_page_or_log_line_names_another_pod(*, tenants: list[Tenant], blind: bool, serves: bool) -> None:
    snapshot, decisions = world(tenants, blind=blind)
    for uid, quotas in by_pod(snapshot.quotas).items():
        reported = [message(each, "2026") for one in decisions if one.quota.pod_uid == uid for each in notices(one)]
        data = json.dumps(pod_status(Seen.of(snapshot), quotas, reported[-20:], lambda _: serves, {})).encode()
        found = read_by_sidecar.parse(data)
        assert found is not None
        page = metrics.render(found, messages=1, rss_bytes=1).decode()
        lines = "\n".join(map(str, found.messages)) + found.waiting
        assert not foreign(data.decode() + page + lines, own_names(uid, tenants), tenants)


@thoroughly
@given(TENANTS)
def test_what_is_reported_of_a_container_that_failed_names_another_pod_to_nobody_but_operators(
    tenants: list[Tenant],
) -> None:
    snapshot, _ = world(tenants, blind=False)
    marks = update_pressure({}, Seen.of(snapshot), 5.0).values()
    for mark in marks:
        uid = mark.quota.pod_uid
        failed = Failure(pod_uid=uid, container_id=mark.quota.container_id or "", exit_code=1, finished=5.0)
        decision = diagnose(failed, [replace(mark, ended=None)])
        assert decision is not None
        words = diagnosis_message(failed, *decision)
        event = event_of("gpu-7", words, datetime(2026, 11, 20, tzinfo=UTC))
        assert not foreign(json.dumps(event) + message(words, "2026").text, own_names(uid, tenants), tenants)
    with_neighbours = [mark for mark in marks if len(mark.holders) > 1]
    assert all(any(each.mib for each in mark.holders) for mark in with_neighbours), "operators see which"


@thoroughly
@given(TENANTS)
def test_of_others_there_is_what_they_hold_together(tenants: list[Tenant]) -> None:
    snapshot, _ = world(tenants, blind=False)
    views = {each.gpu.uuid: each for each in snapshot.views}
    for uid, quotas in by_pod(snapshot.quotas).items():
        for gpu in pod_status(Seen.of(snapshot), quotas, (), lambda _: True, {})["gpus"]:
            mine = [each for each in tenants if each.quota.pod_uid == uid and each.quota.gpu == gpu["uuid"]]
            own = sum(holder.used_mib for each in mine for holder in each.holders(gpu["uuid"]))
            sample = views[gpu["uuid"]].sample
            assert sample is not None
            assert gpu["usedByOthersMiB"] == sample.used_mib - own


def test_the_test_would_see_a_name() -> None:
    """The node's own status, which is for operators, names everybody."""
    tenants = [tenant(n, {"gpu": GPU, "memory_mib": 1}, {GPU: [5], OTHER_GPU: []}) for n in range(4)]
    snapshot, _ = world(tenants, blind=False)
    found = foreign(json.dumps(status(snapshot)), own_names("uid0x", tenants), tenants)
    assert found >= {"pod1x", "uid1x", "ns2x", "box3x", HEX[2] * 64, str(FIRST_PID + 200)}


def test_every_reason_to_have_ended_somebody_is_among_the_notices() -> None:
    decision = KillDecision(
        decision=Decision.KILL, quota=tenant(0, {"gpu": GPU, "memory_mib": 1}, {}).quota, used_mib=5, over_for=1.0
    )
    assert {each.reason for each in notices(decision)} >= {Reason.KILLED, Reason.AUDIT_UNWRITABLE, Reason.OVER_QUOTA}


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "x" * 5000, "ü" * 3000, "\ud800"])
def test_a_message_is_one_harmless_line(text: str) -> None:
    quota = tenant(0, {"gpu": GPU, "memory_mib": 1}, {}).quota
    found = message(UserMessage(quota=quota, reason=Reason.KILLED, note=text, action="Kill"), "2026")
    assert found.text.isprintable()
    assert len(found.text.encode()) <= messages.NOTE_BYTES
    assert found == Message("2026", found.text)
