"""The pods' status files as their sidecars find them."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.audit.record import ChainHead
from enforcer.detection.detector import evaluate
from enforcer.detection.types import DetectorConfig, DetectorState, Phase
from enforcer.nvml.types import GpuSample
from enforcer.quota.types import Quota
from enforcer.runtime import files as runtime_files
from enforcer.runtime.problem import Problem
from enforcer.status import pod_status as podstatus
from enforcer.status.events import KEPT
from enforcer.status.messages import UserMessage
from enforcer.status.node_status import Snapshot
from enforcer.status.pod_status_files import REFRESH, PodStatusWriter
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from sidecar import pod_status as status
from sidecar.main import KILLING
from tests.support.clock import FakeClock
from tests.support.wiring import Messages
from tests.unit.enforcer.made import GPU, NEIGHBOUR, OTHER_GPU, POD, holder, neighbour, quota
from tests.unit.enforcer.test_loop import card, wait_for

OTHER_POD = neighbour().pod_uid


def seen(*holders: ProcessUsage, uuid: str = GPU, beside: int = 0) -> GpuSnapshot:
    used = sum(each.used_mib for each in holders) + beside
    return GpuSnapshot(
        gpu=card(uuid, 0), sample=GpuSample(uuid=uuid, total_mib=16384, used_mib=used, processes=()), holders=holders
    )


def snapshot(
    *views: GpuSnapshot, quotas: tuple[Quota, ...] = (quota(),), time: str = "2026-11-20T22:16:05.123Z"
) -> Snapshot:
    state, _ = evaluate(
        DetectorState(), quotas, {view.gpu.uuid: view.reading for view in views}, 1000.0, DetectorConfig()
    )
    return Snapshot(
        node="gpu-7", time=time, now=1000.0, enforcing=True, views=views, quotas=quotas, state=state,
        rules=DetectorConfig(), head=ChainHead(0, ""), problems=[Problem("a problem of the node", Reason.UNKNOWN)],
    )  # fmt: skip


def notice(number: int = 1, of: Quota | None = None) -> UserMessage:
    return UserMessage(quota=of or quota(), reason=Reason.KILLED, note=f"note {number}", action="Kill")


class Files:
    def __init__(self, run: Path) -> None:
        self.run, self.now, self.serving = run, 0.0, True
        self.files = self.again()

    def again(self) -> PodStatusWriter:
        self.events = Messages()
        return PodStatusWriter(self.run, self.events, lambda _: self.serving, FakeClock(lambda: self.now))

    def prepare(self, uid: str = POD) -> Path:
        folder = self.run / "status" / uid
        folder.mkdir(parents=True)
        return folder / "status.json"

    def read(self, uid: str = POD) -> dict[str, Any]:
        data = (self.run / "status" / uid / "status.json").read_bytes()
        assert status.parse(data) is not None
        found: dict[str, Any] = json.loads(data)
        return found


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(name="no_umask")
def _no_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_the_enforcer_and_the_sidecar_agree_on_names_and_shape(files: Files) -> None:
    files.prepare()
    files.events.record(notice())
    files.files.write(snapshot(seen(holder(101, 1000), holder(201, 300, NEIGHBOUR), beside=200)))
    found = status.parse((files.run / "status" / POD / status.FILE).read_bytes())
    assert found is not None
    assert found.ready
    (use,) = found.uses
    assert use == status.Use(
        container="model", gpu=GPU, used_mib=1000, peak_mib=1000, quota_mib=4096, state="Within"
    )  # fmt: skip
    assert found.gpus == (status.Gpu(uuid=GPU, memory_mib=16384 - 512, others_mib=500),)
    assert [message.text for message in found.messages] == ["Killed: note 1"]
    assert podstatus.NAME == status.FILE
    assert str(Phase.KILLING) == KILLING


def test_a_look_that_found_all_as_it_was_leaves_files_alone_until_they_grow_old(files: Files) -> None:
    first = replace(snapshot(seen(holder(101, 1000))), edition=7)
    file = files.prepare()
    files.files.write(first)
    before = file.stat().st_ino
    files.now += REFRESH / 2
    files.files.write(replace(first, time="2026-11-20T22:16:06.123Z"))
    assert file.stat().st_ino == before
    files.now += REFRESH
    files.files.write(replace(first, time="2026-11-20T22:16:07.123Z"))
    assert files.read()["time"] == "2026-11-20T22:16:07.123Z"


def test_what_changes_between_looks_alike_is_reported_at_once(files: Files) -> None:
    first = replace(snapshot(seen(holder(101, 1000))), edition=7)
    files.prepare()
    files.files.write(first)
    files.serving = False
    files.files.write(first)
    assert files.read()["ready"] is False
    files.events.record(notice())
    files.files.write(first)
    assert [each["text"] for each in files.read()["messages"]] == ["Killed: note 1"]
    (files.run / "status" / POD / "status.json").unlink()
    files.files.write(first)
    assert files.read()["ready"] is False


def test_another_look_is_reported_at_once_and_one_without_a_number_too(files: Files) -> None:
    files.prepare()
    for edition, used in ((7, 1000), (8, 2000), (0, 3000), (0, 4000)):
        files.files.write(replace(snapshot(seen(holder(101, used))), edition=edition))
        assert files.read()["containers"][0]["usedMiB"] == used


def test_the_peak_stays_over_restarts_of_containers_and_of_the_enforcer(files: Files) -> None:
    files.prepare()
    looks = [seen(), seen(holder(101, 3000)), seen(holder(101, 1000)), GpuSnapshot(gpu=card(GPU, 0)), seen()]
    peaks = []
    for look in looks:
        files.files.write(snapshot(look))
        peaks.append(files.read()["containers"][0]["peakMiB"])
    assert peaks == [0, 3000, 3000, 3000, 3000]
    files.files = files.again()
    files.files.write(snapshot(seen(holder(101, 7))))
    assert (files.read()["containers"][0]["usedMiB"], files.read()["containers"][0]["peakMiB"]) == (7, 3000)


@pytest.mark.parametrize("before", [b"", b"[]", b'{"containers": [3]}', b'{"containers": [{"container": "model"}]}'])
def test_a_file_without_peaks_is_where_they_begin(files: Files, before: bytes) -> None:
    files.prepare().write_bytes(before)
    files.files.write(snapshot(seen(holder(101, 7))))
    assert files.read()["containers"][0]["peakMiB"] == 7


def test_the_peak_of_a_pod_that_has_gone_is_forgotten(files: Files) -> None:
    file = files.prepare()
    files.files.write(snapshot(seen(holder(101, 3000))))
    files.files.write(snapshot(seen(), quotas=()))
    file.unlink()
    files.files.write(snapshot(seen(holder(101, 7))))
    assert files.read()["containers"][0]["peakMiB"] == 7


def test_a_folder_is_never_made(files: Files) -> None:
    files.files.write(snapshot(seen()))
    assert list(files.run.iterdir()) == []
    files.prepare()
    files.files.write(snapshot(seen()))
    assert files.read()["ready"] is True
    assert [file.name for file in (files.run / "status" / POD).iterdir()] == ["status.json"]


@pytest.mark.usefixtures("no_umask")
def test_everybody_may_read_it(files: Files) -> None:
    file = files.prepare()
    files.files.write(snapshot(seen()))
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_it_is_written_when_something_changes_and_every_few_seconds(files: Files) -> None:
    file = files.prepare()

    def wrote(*holders: ProcessUsage, later: float = 0.5) -> bool:
        before = file.stat().st_ino if file.exists() else 0
        files.now += later
        files.files.write(snapshot(seen(*holders)))
        return file.stat().st_ino != before

    assert wrote()
    assert not wrote()
    assert wrote(holder(101, 5))
    assert not wrote(holder(101, 5))
    assert wrote(holder(101, 5), later=REFRESH)
    file.unlink()
    assert wrote(holder(101, 5))


def test_a_folder_that_comes_again_gets_its_file_again(files: Files) -> None:
    file = files.prepare()
    files.files.write(snapshot(seen()))
    file.unlink()
    file.parent.rmdir()
    files.files.write(snapshot(seen()))
    files.prepare()
    files.files.write(snapshot(seen()))
    assert file.exists()


@pytest.mark.parametrize("uid", ["..", "../..", "a/b", ".", "", "x" * 65])
def test_a_uid_that_is_a_path_leads_nowhere(files: Files, uid: str) -> None:
    (files.run / "status").mkdir()
    files.files.write(snapshot(seen(), quotas=(quota(pod_uid=uid),)))
    assert [file for file in files.run.rglob("*") if file.is_file()] == []


def test_what_cannot_be_written_is_reported_once_and_ends_nothing(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.prepare()
    files.prepare(OTHER_POD)

    def full(file: Path, data: bytes, **how: bool) -> None:
        if POD in str(file):
            raise OSError(28, "No space left on device")
        real(file, data, **how)

    real = runtime_files.replace
    monkeypatch.setattr(runtime_files, "replace", full)
    with capture_logs() as logs:
        for _ in range(3):
            files.files.write(snapshot(seen(), quotas=(quota(), neighbour())))
    assert [line["event"] for line in logs] == ["pod status not written"]
    assert files.read(OTHER_POD)["ready"] is True


def test_a_link_in_the_place_of_the_new_file_is_not_followed(files: Files) -> None:
    file = files.prepare()
    (files.run / "precious").write_text("precious")
    (file.parent / ".status.json.new").symlink_to(files.run / "precious")
    files.files.write(snapshot(seen()))
    assert (files.run / "precious").read_text() == "precious"


def test_notices_go_on_and_the_last_few_are_kept(files: Files) -> None:
    files.prepare()
    for number in range(KEPT + 5):
        files.events.record(notice(number))
    files.files.write(snapshot(seen()))
    assert [message["text"] for message in files.read()["messages"]] == [
        f"Killed: note {n}" for n in range(5, KEPT + 5)
    ]
    assert len(files.events.sent) == KEPT + 5


def test_what_an_enforcer_before_reported_stays_reported(files: Files) -> None:
    files.prepare()
    files.events.record(notice(1))
    files.files.write(snapshot(seen()))
    first = files.read()["messages"]
    files.files = files.again()
    files.events.record(notice(2))
    for _ in range(2):
        files.files.write(snapshot(seen()))
    assert files.read()["messages"][:1] == first
    assert [message["text"] for message in files.read()["messages"]] == ["Killed: note 1", "Killed: note 2"]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"messages": 1}', b'{"messages": [1]}', b"[" * 99999, b"\xff"])
def test_a_file_of_another_shape_is_written_again(files: Files, data: bytes) -> None:
    files.prepare().write_bytes(data)
    files.files.write(snapshot(seen()))
    assert files.read()["messages"] == []


def test_of_a_pod_without_quotas_nothing_is_kept(files: Files) -> None:
    files.prepare()
    files.events.record(notice(1))
    files.files.write(snapshot(seen()))
    files.files.write(snapshot(seen(), quotas=()))
    assert files.events.messages(POD) == ()
    assert not files.files._written


def test_a_pod_waits_for_the_daemon_and_for_sight_of_its_gpu(files: Files) -> None:
    files.prepare()
    files.serving = False
    files.files.write(snapshot(seen()))
    assert (files.read()["ready"], files.read()["waiting"]) == (
        False,
        f"the MPS daemon of {GPU} does not accept clients at the moment",
    )
    files.serving = True
    blind = GpuSnapshot(gpu=card(GPU, 0), problem=NvmlError("NVML says process 4711 holds 99999 MiB"))
    files.files.write(snapshot(blind))
    found = files.read()
    assert (found["ready"], found["waiting"]) == (False, f"NVML cannot read {GPU} at the moment")
    assert found["containers"][0]["usedMiB"] is None
    assert found["containers"][0]["state"] == "Unknown"
    assert found["gpus"][0]["usedByOthersMiB"] is None
    files.files.write(snapshot())
    assert files.read()["ready"] is False


def test_a_pod_on_two_gpus_is_reported_of_both(files: Files) -> None:
    files.prepare()
    quotas = (quota(), quota(container="second", container_id=NEIGHBOUR, gpu=OTHER_GPU))
    other = seen(holder(101, 7), holder(301, 5, NEIGHBOUR), uuid=OTHER_GPU)
    files.files.write(snapshot(seen(holder(101, 1000)), other, quotas=quotas))
    found = files.read()
    assert [(use["container"], use["usedMiB"]) for use in found["containers"]] == [("model", 1000), ("second", 5)]
    assert [(gpu["uuid"], gpu["usedByOthersMiB"]) for gpu in found["gpus"]] == [(GPU, 0), (OTHER_GPU, 7)]


def test_a_container_that_has_not_started_holds_nothing_and_does_not_hold_up_the_pod(files: Files) -> None:
    files.prepare()
    files.files.write(snapshot(seen(), quotas=(replace(quota(), container_id=None),)))
    found = files.read()
    assert (found["ready"], found["containers"][0]["usedMiB"], found["containers"][0]["state"]) == (
        True,
        0,
        "NotStarted",
    )


def test_a_disk_that_does_not_answer_holds_up_nobody_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.runtime.background.WAIT_SECONDS", 0.05)
    files = Files(tmp_path)
    fifo = files.prepare().with_name(".status.json.new")
    os.mkfifo(fifo)  # a file that nobody ever opens at its other end
    for _ in range(3):
        files.files.write(snapshot(seen(holder(101, 100))))
    assert "does not answer" in (files.files.problem or "")
    opened = os.open(fifo, os.O_PATH)
    fifo.unlink()
    os.close(os.open(f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_NONBLOCK))
    os.close(opened)
    wait_for(lambda: files.files.problem is None)
    files.files.write(snapshot(seen(holder(101, 100))))
    wait_for((tmp_path / "status" / POD / "status.json").exists)
