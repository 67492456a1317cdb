"""The audit log's head stands in the node's slice: brought up after kills, never taken back, missed when lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind, published_head
from enforcer.resourceslices.audit_head_publisher import EVERY, GAP, AnchorPublisher
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, resource_slices
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.runtime.manager import Manager
from enforcer.status.events import NodeEvent
from gpushare.contract import AUDIT_HEAD
from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine
from tests.support.clock import FakeClock
from tests.support.patience import holds_within
from tests.support.wiring import NodeEvents
from tests.unit.enforcer.resourceslices.test_publisher import Server

GPUS: Final = gpus_of(Machine.named("quad-16g"))
SLICE: Final = "n1-gpu-share.io-0"


class Patchable(Server):
    def __init__(self) -> None:
        super().__init__()
        self.problem: ClusterError | None = None

    def patch(self, where: str, body: Any) -> None:
        if self.problem is not None:
            raise self.problem
        name = where.rpartition("/")[2]
        self.writes.append(f"patch {name}")
        self.items[name]["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])

    @property
    def patches(self) -> int:
        return sum(write.startswith("patch") for write in self.writes)


@pytest.fixture
def server() -> Any:
    return Patchable()


@pytest.fixture
def audit_log(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog(tmp_path / "audit", segment_bytes=900) as log:
        yield log


def watching(server: Any, audit_log: AuditLog, told: list[NodeEvent] | None = None) -> AnchorPublisher:
    return AnchorPublisher(server, "n1", audit_log, NodeEvents(told))


@pytest.fixture
def anchor(server: Any, audit_log: AuditLog) -> AnchorPublisher:
    return watching(server, audit_log)


def offered(server: Any, **more: Any) -> bool:
    return SlicePublisher(server, "n1").publish(
        resource_slices("n1", build_devices(GPUS, InventoryPolicy(), **more).devices)
    )


def told(audit_log: AuditLog, count: int = 1, kind: Kind = Kind.WARNED) -> None:
    for number in range(count):
        audit_log.append(kind, {"note": f"{number}"})


def test_the_head_is_written_once_and_again_when_the_log_grew(
    server: Any, audit_log: AuditLog, anchor: AnchorPublisher
) -> None:
    offered(server)
    anchor.publish()
    assert server.patches == 0, "an empty log has no head"
    for turns in (1, 2):
        told(audit_log, 3)
        anchor.publish()
        anchor.publish()
        assert published_head(server.items[SLICE]) == audit_log.head
        assert server.patches == turns
    assert anchor.problem is None


def test_the_offer_is_not_written_for_it_and_keeps_it(
    server: Any, audit_log: AuditLog, anchor: AnchorPublisher
) -> None:
    offered(server)
    told(audit_log)
    anchor.publish()
    assert not offered(server)
    assert offered(server, foreign_mib={GPUS[0].uuid: 1})
    assert published_head(server.items[SLICE]) == audit_log.head
    anchor.publish()
    assert server.patches == 1


def test_slices_that_were_taken_away_get_it_again(server: Any, audit_log: AuditLog, anchor: AnchorPublisher) -> None:
    told(audit_log)
    anchor.publish()
    assert server.writes == [], "no slice, nothing to write on"
    for patches in (1, 2):
        offered(server)
        anchor.publish()
        assert (published_head(server.items[SLICE]), server.patches) == (audit_log.head, patches)
        server.items.clear()


@pytest.mark.parametrize("keep", [0, 1])
def test_a_log_that_was_cut_is_notified_and_its_anchor_left_alone_however_far_it_grows(
    server: Any, audit_log: AuditLog, anchor: AnchorPublisher, tmp_path: Path, keep: int
) -> None:
    offered(server)
    told(audit_log, 6)
    anchor.publish()
    seen = published_head(server.items[SLICE])
    audit_log.close()
    for file in segments(tmp_path / "audit")[keep:]:
        file.unlink()
    with AuditLog(tmp_path / "audit", segment_bytes=900) as shorter:
        news: list[NodeEvent] = []
        after = watching(server, shorter, news)
        for records in (1, 8):
            told(shorter, records, Kind.OUTCOME)
            after.publish()
            assert published_head(server.items[SLICE]) == seen
            assert after.lost is not None
            assert seen is not None
            assert f"record {seen.seq} of this node" in after.lost
            assert f"kubectl annotate resourceslice {SLICE} {AUDIT_HEAD}-" in after.lost
            assert news == [NodeEvent(Reason.AUDIT_RECORD_LOST, after.lost)], "told once"
        del server.items[SLICE]["metadata"]["annotations"][AUDIT_HEAD]
        after.publish()
        assert (published_head(server.items[SLICE]), after.lost) == (shorter.head, None)


def test_an_enforcer_that_starts_again_goes_on_from_what_it_finds(
    server: Any, audit_log: AuditLog, anchor: AnchorPublisher, tmp_path: Path
) -> None:
    offered(server)
    told(audit_log, 6)
    anchor.publish()
    told(audit_log, 6)
    audit_log.close()
    with AuditLog(tmp_path / "audit") as again:
        after = watching(server, again)
        after.publish()
        assert (published_head(server.items[SLICE]), after.lost) == (again.head, None)


@pytest.mark.parametrize("text", ["", "x", "0:sha256:0", "7", "9" * 40])
def test_what_is_no_head_is_written_over(server: Any, audit_log: AuditLog, anchor: AnchorPublisher, text: str) -> None:
    offered(server)
    server.items[SLICE]["metadata"]["annotations"] = {AUDIT_HEAD: text}
    told(audit_log)
    anchor.publish()
    assert published_head(server.items[SLICE]) == audit_log.head


def test_a_refusal_is_a_problem_until_it_passes(server: Any, audit_log: AuditLog, anchor: AnchorPublisher) -> None:
    offered(server)
    told(audit_log)
    server.problem = ClusterError("never back", 403)
    anchor.publish()
    assert anchor.problem == "the enforcer cannot write the audit log's anchor: never back"
    server.problem = None
    anchor.publish()
    assert [anchor.problem, published_head(server.items[SLICE])] == [None, audit_log.head]


def test_it_looks_at_once_for_a_kill_and_else_slowly_and_rests_after_each_write(tmp_path: Path, server: Any) -> None:
    now = [1000.0]
    with AuditLog(tmp_path / "pressed") as log:
        anchor = AnchorPublisher(server, "n1", log, NodeEvents(), FakeClock(lambda: now[0]))
        offered(server)
        told(log, 1, Kind.OUTCOME)
        anchor.run_once()
        assert server.patches == 1
        told(log, 1, Kind.OUTCOME)
        anchor.run_once()
        assert server.patches == 1, "right after a write"
        now[0] += GAP
        anchor.run_once()
        assert server.patches == 2, "it was not forgotten"
        told(log)
        now[0] += EVERY - 1.0
        anchor.run_once()
        assert server.patches == 2, "a warning can wait"
        now[0] += 1.0
        anchor.run_once()
        assert server.patches == 3


def test_beside_an_enforcer_a_kill_is_anchored_without_waiting_for_the_next_look(server: Any, tmp_path: Path) -> None:
    offered(server)
    manager = Manager()
    with AuditLog(tmp_path / "beside") as log:
        anchor = AnchorPublisher(server, "n1", log, NodeEvents())
        manager.add("anchor", anchor.run_once, every=3600.0, wake=log.pressing.wake)
        manager.start()
        told(log, 1, Kind.OUTCOME)
        assert holds_within(lambda: published_head(server.items[SLICE]) == log.head, 20)
        manager.stop()
        assert anchor.problem is None
