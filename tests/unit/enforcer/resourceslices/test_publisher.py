"""Slices are written when they say something new, whole pools at a time, and never because of the server's spelling."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.resourceslices.devices import InventoryPolicy, Order, build_devices, resource_slices
from enforcer.resourceslices.publisher import VAIN, SlicePublisher, equivalent
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from tests.fakes.gpu.publish import gpus_of, publish_nodes
from tests.fakes.gpu.state import Machine

GPUS = gpus_of(Machine.named("quad-16g"))


class Server:
    """As much of an API server as the publisher uses, with the server's habits: own spelling, own defaults."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.writes: list[str] = []
        self.conflicts = 0

    def list(self, where: str, **query: str) -> tuple[list[Any], str]:
        assert where == "/apis/resource.k8s.io/v1/resourceslices"
        assert query["fieldSelector"].startswith("spec.driver=gpu-share.io,spec.nodeName=")
        node = query["fieldSelector"].rpartition("=")[2]
        return [copy.deepcopy(i) for i in self.items.values() if i["spec"]["nodeName"] == node], "1"

    def create(self, _: str, body: Any) -> None:
        name = body["metadata"]["name"]
        if name in self.items:
            raise ClusterError("exists", 409)
        self._store(
            "create", name, body | {"metadata": body["metadata"] | {"uid": f"u-{name}", "resourceVersion": "1"}}
        )

    def replace(self, where: str, body: Any) -> None:
        name = where.rpartition("/")[2]
        if self.conflicts:
            self.conflicts -= 1
            raise ClusterError("changed meanwhile", 409)
        if name not in self.items:
            raise ClusterError("gone", 404)
        assert body["metadata"]["uid"] == f"u-{name}"
        assert body["metadata"]["resourceVersion"] == self.items[name]["metadata"]["resourceVersion"]
        self._store("replace", name, body)

    def delete(self, where: str) -> None:
        name = where.rpartition("/")[2]
        self.writes.append(f"delete {name}")
        if self.items.pop(name, None) is None:
            raise ClusterError("gone", 404)

    def _store(self, verb: str, name: str, body: Any) -> None:
        self.writes.append(f"{verb} {name}")
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(len(self.writes))
        for device in stored["spec"]["devices"]:
            device["somethingNew"] = False
            for amount in device.get("capacity", {}).values():
                amount["value"] = amount["value"].replace("16Gi", "16384Mi")
        self.items[name] = stored


@pytest.fixture(name="server")
def _server() -> Any:
    return Server()


@pytest.fixture(name="publisher")
def _publisher(server: Any) -> SlicePublisher:
    return SlicePublisher(server, "n1")


def _wanted(**more: Any) -> tuple[Any, ...]:
    return resource_slices("n1", build_devices(GPUS, InventoryPolicy(), **more).devices, "node-uid")


def _generations(server: Server) -> dict[str, int]:
    return {name: item["spec"]["pool"]["generation"] for name, item in server.items.items()}


def test_nothing_is_written_while_nothing_changes(server: Any, publisher: SlicePublisher) -> None:
    assert publisher.publish(_wanted())
    assert _generations(server) == {"n1-gpu-share.io-0": 1}
    assert not publisher.publish(_wanted())
    assert server.writes == ["create n1-gpu-share.io-0"]


@pytest.mark.parametrize("change", [{"foreign_mib": {GPUS[0].uuid: 1}}, {"reserved_mib": {GPUS[2].uuid: 1}}])
def test_a_change_of_capacity_or_order_is_a_new_generation(
    server: Any, publisher: SlicePublisher, change: dict[str, Any]
) -> None:
    publisher.publish(_wanted())
    assert publisher.publish(_wanted(**change))
    assert _generations(server) == {"n1-gpu-share.io-0": 2}
    assert not publisher.publish(_wanted(**change))


def test_all_slices_of_a_pool_move_together_and_stale_ones_go(server: Any, publisher: SlicePublisher) -> None:
    machine = Machine.named("quad-16g")
    cards = Machine(driver="1.2.3", nvml="1", cuda=12000, gpus=machine.gpus * 40)
    many = resource_slices("n1", build_devices(gpus_of(cards), InventoryPolicy()).devices)
    publisher.publish(many)
    assert set(_generations(server).values()) == {1}
    assert len(server.items) == 3
    fewer = resource_slices("n1", build_devices(gpus_of(cards)[:70], InventoryPolicy()).devices)
    publisher.publish(fewer)
    assert _generations(server) == {"n1-gpu-share.io-0": 2, "n1-gpu-share.io-1": 2}
    assert server.writes[-1] == "delete n1-gpu-share.io-2"


def test_mixed_generations_left_by_a_crash_are_repaired(server: Any, publisher: SlicePublisher) -> None:
    machine = Machine.named("quad-16g")
    many = resource_slices(
        "n1",
        build_devices(
            gpus_of(Machine(driver="1", nvml="1", cuda=12000, gpus=machine.gpus * 17)), InventoryPolicy()
        ).devices,
    )
    publisher.publish(many)
    server.items["n1-gpu-share.io-1"]["spec"]["pool"]["generation"] = 5
    assert publisher.publish(many)
    assert set(_generations(server).values()) == {6}


@pytest.mark.parametrize(
    "tamper",
    [
        lambda spec: spec["devices"][1]["attributes"].update(extra={"string": "x"}),
        lambda spec: spec["devices"][1]["capacity"].pop("clients"),
        lambda spec: spec["devices"][1]["capacity"]["memory"].update(value="15Gi"),
        lambda spec: spec["devices"].reverse(),
        lambda spec: spec["devices"].pop(),
        lambda spec: spec["pool"].update(resourceSliceCount=2),
        lambda spec: spec["devices"][1].update(allowMultipleAllocations=False),
    ],
    ids=["more", "less", "other amount", "other order", "device gone", "other count", "exclusive"],
)
def test_what_others_changed_is_put_right(server: Any, publisher: SlicePublisher, tamper: Any) -> None:
    publisher.publish(_wanted())
    tamper(server.items["n1-gpu-share.io-0"]["spec"])
    assert publisher.publish(_wanted())
    assert not publisher.publish(_wanted())


def test_notes_of_others_in_the_metadata_stay(server: Any, publisher: SlicePublisher) -> None:
    publisher.publish(_wanted())
    server.items["n1-gpu-share.io-0"]["metadata"]["annotations"] = {"chain": "sha256:1"}
    publisher.publish(_wanted(reserved_mib={GPUS[1].uuid: 5}))
    assert server.items["n1-gpu-share.io-0"]["metadata"]["annotations"] == {"chain": "sha256:1"}


def test_a_conflict_is_met_by_reading_again(server: Any, publisher: SlicePublisher) -> None:
    publisher.publish(_wanted())
    server.conflicts = 2
    assert publisher.publish(_wanted(reserved_mib={GPUS[1].uuid: 5}))
    server.conflicts = 3
    with pytest.raises(ClusterError, match="changed meanwhile"):
        publisher.publish(_wanted())


def test_other_nodes_are_never_touched(server: Any, publisher: SlicePublisher) -> None:
    publish_nodes(server, ["n1", "n2"], "h100x4", InventoryPolicy(order=Order.SPREAD))
    publisher.publish(())
    assert list(server.items) == ["n2-gpu-share.io-0"]
    publisher.publish(())


def test_each_published_node_has_uuids_of_its_own(server: Any) -> None:
    found = publish_nodes(server, [f"n{i}" for i in range(100)], "h100x4")
    assert len({gpu.uuid for gpus in found.values() for gpu in gpus}) == 400
    assert len(server.items) == 100


def test_a_refusal_of_the_server_is_passed_on(monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    def refuse(*_: Any) -> None:
        raise ClusterError("forbidden", 403)

    monkeypatch.setattr(server, "create", refuse)
    with pytest.raises(ClusterError, match="forbidden"):
        SlicePublisher(server, "n1").publish(_wanted())


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [("16Gi", "16384Mi", True), ("1Ti", "1024Gi", True), ("100", "0.1k", True), ("16Gi", "16G", False),
     ("GPU-1", "GPU-01", False), ("1", "01", True), (1, 1, True), ("1", 1, False), ([1], [1, 2], False)],
)  # fmt: skip
def test_quantities_are_compared_by_value(mine: Any, theirs: Any, same: bool) -> None:  # noqa: FBT001
    assert equivalent(mine, theirs) is same


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda s: st.lists(s) | st.dictionaries(st.text(max_size=3), s),
    )
)
def test_everything_matches_itself(value: Any) -> None:
    assert equivalent(value, copy.deepcopy(value))


def test_the_publisher_takes_a_cluster() -> None:
    assert {"list", "create", "replace", "delete"} <= set(dir(KubeClient))


def test_an_empty_list_of_taints_is_none_and_a_taint_too_many_is_a_difference() -> None:
    taint = {"key": "gpu-share.io/unhealthy", "value": "GpuLost", "effect": "NoSchedule"}
    assert equivalent({"name": "gpu-0", "taints": []}, {"name": "gpu-0"})
    assert not equivalent({"name": "gpu-0", "taints": []}, {"name": "gpu-0", "taints": [taint]})
    assert not equivalent({"name": "gpu-0", "taints": [taint]}, {"name": "gpu-0"})
    assert equivalent({"name": "gpu-0", "taints": [taint]}, {"name": "gpu-0", "taints": [taint | {"timeAdded": "now"}]})


def without_gate(server: Any, *fields: str) -> None:
    """Let the server drop such fields of every device from now on."""
    store = server._store

    def _store(verb: str, name: str, body: Any) -> None:
        stored = copy.deepcopy(body)
        for device in stored["spec"]["devices"]:
            for field in fields:
                device.pop(field, None)
        store(verb, name, stored)

    server._store = _store


def test_what_the_server_never_keeps_is_not_written_for_ever(server: Any, publisher: SlicePublisher) -> None:
    without_gate(server, "allowMultipleAllocations")
    for _ in range(VAIN):
        assert publisher.publish(_wanted())
    said, written = [], len(server.writes)
    for _ in range(1000):
        try:
            publisher.publish(_wanted())
        except ClusterError as error:
            said.append(error.message)
    assert len(server.writes) - written < 10, "every write wakes every scheduler"
    assert {
        "drops" in each and "feature gate DRAConsumableCapacity, then run gpu-share check" in each for each in said
    } == {True}
    assert publisher.publish(_wanted(foreign_mib={GPUS[0].uuid: 1024})), "what is new is written all the same"


def test_once_the_gate_is_on_everything_is_written_again(server: Any, publisher: SlicePublisher) -> None:
    store = server._store
    without_gate(server, "allowMultipleAllocations")
    for _ in range(VAIN):
        publisher.publish(_wanted())
    server._store = store
    assert publisher.publish(_wanted()), "the fourth time"
    assert not publisher.publish(_wanted())
    next(iter(server.items.values()))["spec"]["devices"][1]["allowMultipleAllocations"] = False
    assert publisher.publish(_wanted()), "and what somebody changes is set right again"


def test_others_who_keep_changing_a_slice_are_no_missing_gate(server: Any, publisher: SlicePublisher) -> None:
    for _ in range(3 * VAIN):
        assert publisher.publish(_wanted())
        for item in server.items.values():
            item["spec"]["devices"][1]["capacity"] = {}
