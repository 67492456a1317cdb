"""The audit log's head on a real API server, written with the enforcer's own identity and read by whoever verifies."""

from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import ChainHead, Kind
from enforcer.resourceslices.audit_head_publisher import AnchorPublisher
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, resource_slices
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder, event_of
from enforcer.status.messages import UserMessage
from gpushare.errors import ClusterError
from gpushare.kube_client import EVENTS_V1, KubeClient, path
from gpushare.reasons import Reason
from gpushare_cli.audit import log_reader, remote
from gpushare_cli.audit.remote import Anchor as Seen
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine
from tests.integration.controlplane.policies.test_rules import HEADS, anchored_slice
from tests.integration.controlplane.policies.world import ENFORCER, NODE_NAME, Acting, World, refusal
from tests.unit.enforcer.made import quota

pytestmark = pytest.mark.controlplane
NODE = "node-anchor"


def seen_by(api: Acting) -> tuple[list[Seen], list[str]]:
    told: list[str] = []
    return [each for each in remote.in_cluster(api, told.append) if each.node == NODE], told


def test_an_enforcer_anchors_its_log_beside_its_offer_and_a_cut_log_no_longer_fits(
    world: World, tmp_path: Path
) -> None:
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: NODE})
    reader = Acting.as_user(world.plane, "kubernetes-admin", group="system:masters")
    publisher = SlicePublisher(enforcer, NODE)
    cards = gpus_of(Machine.named("pair-16g"), NODE)

    def offered(**more: int) -> bool:
        taken = {cards[0].uuid: more["taken"]} if more else {}
        found = build_devices(cards, InventoryPolicy(), foreign_mib=taken)
        return publisher.publish(resource_slices(NODE, found.devices))

    assert offered()
    writer = ApiWriter()
    with AuditLog(tmp_path / "audit", segment_bytes=600) as log:
        anchor = AnchorPublisher(enforcer, NODE, log, EventRecorder(enforcer, NODE, writer))
        for grown in (1, 2):
            log.append(Kind.OUTCOME, {"node": NODE, "note": "x" * 300})
            anchor.publish()
            assert anchor.problem is None
            assert not offered(), "the annotation is no change of the offer"
            assert [each.head for each in seen_by(reader)[0]] == [log.head]
            assert log.head.seq == grown
        assert offered(taken=2048), "and an offer that changes keeps it"
        head = log.head
    kill_event(enforcer, world, head)
    found, told = seen_by(reader)
    assert ([each.head for each in found], told) == ([head, head], [])
    assert sorted(each.source.split()[0] for each in found) == ["Event", "ResourceSlice"]
    found, told = seen_by(enforcer)
    assert ([each.source.split()[0] for each in found], len(told)) == (["ResourceSlice"], 1), "it may not read Events"
    known = [(each.head, each.source) for each in found]
    assert log_reader.verified(log_reader.local(tmp_path / "audit"), known).word == "ok"
    segments(tmp_path / "audit")[-1].unlink()
    assert log_reader.verified(log_reader.local(tmp_path / "audit")).word == "ok"
    assert "the log was truncated" in log_reader.verified(log_reader.local(tmp_path / "audit"), known).sentence
    with AuditLog(tmp_path / "audit") as shorter:
        after = AnchorPublisher(enforcer, NODE, shorter, EventRecorder(enforcer, NODE, writer))
        after.publish()
        writer.run_once()
        assert "is not the one that ResourceSlice" in str(after.lost)
    events, _ = reader.list(path(EVENTS_V1, "events", namespace="default"))
    assert Reason.AUDIT_RECORD_LOST in {each["reason"] for each in events if each["regarding"].get("name") == NODE}
    assert publisher.publish(resource_slices(NODE, ()))
    assert [each.head for each in anchors_of_slices(seen_by(reader)[0])] == [head], "an empty slice keeps it"
    SlicePublisher(reader, NODE).publish(())


def kill_event(enforcer: KubeClient, world: World, head: ChainHead) -> None:
    about = quota(namespace=world.namespace)
    notice = UserMessage(quota=about, reason=Reason.KILLED, note=f"ended; audit log {head}", action="Kill")
    enforcer.create(path(EVENTS_V1, "events", namespace=about.namespace), event_of(NODE, notice, datetime.now(UTC)))


def anchors_of_slices(seen: list[Seen]) -> list[Seen]:
    return [each for each in seen if not each.hint]


def test_nobody_anchors_for_another_node(world: World) -> None:
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: "node-elsewhere"})
    slices = path("/apis/resource.k8s.io/v1", "resourceslices")
    world.cluster.create(slices, anchored_slice(HEADS[0]))
    mine = path("/apis/resource.k8s.io/v1", "resourceslices", "node-a-anchored")
    change = {"metadata": {"annotations": {"gpu-share.io/audit-head": HEADS[1]}}}
    assert "its own node" in refusal(lambda: enforcer.patch(mine, change))
    world.cluster.delete(mine)


def test_a_command_for_a_pod_that_is_not_there_is_the_api_servers_answer(world: World) -> None:
    with pytest.raises(ClusterError, match='pods "nobody" not found') as caught:
        list(world.cluster.run("nobody", world.namespace, "enforcer", ["gpu-share", "audit", "export"]))
    assert caught.value.status == HTTPStatus.NOT_FOUND
