import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from enforcer.oom.reporter import KEPT, MAX_KNOWN, OomReporter
from enforcer.status.metrics import Metrics
from enforcer.status.node_status import Snapshot
from enforcer.status.node_status import status as of_node
from enforcer.status.pod_status_files import PodStatusWriter
from gpushare.reasons import Reason
from gpushare_cli import node_status
from sidecar import pod_status as read_by_sidecar
from tests.support.clock import FakeClock
from tests.support.wiring import Messages
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD
from tests.unit.enforcer.oom.test_memory_pressure import FINISHED, ended, held, status


class World:
    def __init__(self) -> None:
        self.events, self.metrics, self.now = Messages(), Metrics(), FINISHED - 2
        self.inquest = OomReporter(self.events, self.metrics, FakeClock(lambda: self.now))

    def look(self, *amounts: int) -> Snapshot:
        found = held(*amounts).snapshot
        self.inquest.observe(found)
        return found


@pytest.fixture(name="world")
def _world() -> World:
    return World()


def test_its_owner_is_notified_once_and_operators_learn_who_held_what(world: World) -> None:
    world.look(1000, 2000, 12500)
    with capture_logs() as logs:
        world.inquest.on_event("MODIFIED", status(ended()))
        world.inquest.on_event("MODIFIED", status(ended()))
        world.inquest.on_event("MODIFIED", status(ended(), key="lastState"))
        world.inquest.replace([status(ended())])
    (told,) = world.events.sent
    assert told.reason is Reason.GPU_FULL
    assert "other processes used 14500 MiB" in told.note
    assert "other-0" not in told.note
    (line,) = [each for each in logs if each["event"] != "notice"]
    assert line["holders"] == ["process 3: 12500 MiB", "asr/other-0/model: 2000 MiB", "asr/tts-0/model: 1000 MiB"]
    (finding,) = world.inquest.findings()
    assert finding["holders"] == line["holders"]
    samples = [s for family in world.metrics.failed.collect() for s in family.samples if s.name.endswith("_total")]
    assert [(s.labels, s.value) for s in samples] == [({"reason": "GpuFull", "gpu": GPU}, 1.0)]


def test_a_failure_that_a_pod_claims_of_a_neighbours_container_is_nobodys_message(world: World) -> None:
    world.look(1000, 2000, 12500)
    forged = status(ended(containerID=f"containerd://{NEIGHBOUR}"))
    world.inquest.on_event("MODIFIED", forged)
    assert world.events.sent == []


def test_a_failure_with_room_left_is_nobodys_concern(world: World) -> None:
    world.look(1000, 2000)
    world.inquest.on_event("MODIFIED", status(ended()))
    assert world.events.sent == []
    assert world.inquest.findings() == ()


def test_a_pod_that_is_gone_is_not_looked_into(world: World) -> None:
    world.look(4000)
    world.inquest.on_event("DELETED", status(ended()))
    assert world.events.sent == []


def test_each_run_of_a_container_is_looked_into(world: World) -> None:
    world.look(4000)
    other = ended(containerID="containerd://" + "9" * 64)
    pod = status(ended())
    pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": other}
    world.inquest.on_event("MODIFIED", pod)
    assert [each.reason for each in world.events.sent] == [Reason.QUOTA_REACHED]
    assert world.inquest._known.keys() == {CONTAINER, "9" * 64}


def test_what_it_remembers_is_bounded(world: World) -> None:
    for number in range(MAX_KNOWN + 10):
        world.inquest.on_event("MODIFIED", status(ended(containerID=f"containerd://{number:064x}")))
    assert len(world.inquest._known) == MAX_KNOWN
    assert KEPT < 100


def test_the_sidecar_says_it_and_explain_on_the_node_says_who(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "status" / POD
    folder.mkdir(parents=True)
    files = PodStatusWriter(tmp_path / "run", world.events, lambda _: True)
    world.inquest = OomReporter(world.events, world.metrics, FakeClock(lambda: world.now))

    def show(snapshot: Snapshot) -> None:
        world.inquest.observe(snapshot)
        files.write(snapshot)

    show(held(1000, 2000, 12500).snapshot)
    world.inquest.on_event("MODIFIED", status(ended()))
    last = held(0, 2000, 12500).snapshot
    show(last)
    found = read_by_sidecar.parse((folder / "status.json").read_bytes())
    assert found is not None
    assert [str(each) for each in found.messages if "GpuFull: container model failed" in str(each)]
    assert "other-0" not in (folder / "status.json").read_text()

    raw: dict[str, Any] = json.loads(json.dumps(of_node(replace(last, failures=world.inquest.findings()))))
    mine = next(use for gpu in node_status.read(raw, {}).gpus for use in gpu.uses if use.pod == "tts-0")
    assert "asr/other-0/model: 2000 MiB" in mine.failed[0]
    raw["failures"] = [7, {"podUid": 3}, {**raw["failures"][0], "holders": "x"}]
    mine = next(use for gpu in node_status.read(raw, {}).gpus for use in gpu.uses if use.pod == "tts-0")
    assert "memory in use at that moment: not known" in mine.failed[0]
