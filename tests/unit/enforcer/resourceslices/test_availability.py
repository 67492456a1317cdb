"""ContentionMonitor and the doctor: what is said, to whom, and how often."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import merge_gpu_lists
from enforcer.nvml.device_health import PATIENCE, WELL_AFTER
from enforcer.quota.driver_upgrade import STATE, DriverUpgrade
from enforcer.resourceslices import contention_monitor as contests_module
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.devices import InventoryPolicy, build_devices
from enforcer.resourceslices.health_monitor import GpuHealthMonitor
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder, NodeEvent
from enforcer.status.messages import UserMessage
from gpushare.errors import ClusterError, GpuShareError, KubeletError, MpsError, NvmlError
from gpushare.reasons import Reason
from tests.support.slices import Api
from tests.support.wiring import NodeEvents, Quotas, fixed_modes, limits, sampler
from tests.unit.enforcer.made import GPU, OTHER_GPU, quota
from tests.unit.enforcer.test_loop import card

CARDS = [card(GPU, 0), card(OTHER_GPU, 1)]


class Reporter(NodeEvents):
    def __init__(self) -> None:
        super().__init__()
        self.owners: list[UserMessage] = []

    def record(self, notice: UserMessage) -> None:
        self.owners.append(notice)

    def said(self) -> list[tuple[Reason, bool]]:
        found = [(each.reason, GPU in each.note) for each in self.sent]
        self.sent.clear()
        return found


@dataclass
class Node:
    """What kubelet and API server say; ``None``: they do not answer."""

    plugins: list[tuple[str, list[str]]] | None = field(default_factory=list)
    slices: list[Any] | None = field(default_factory=list)

    def allocatable(self) -> Any:
        if self.plugins is None:
            raise KubeletError("the kubelet is away")
        return self.plugins

    def list(self, _where: str, **query: str) -> Any:
        assert query == {"fieldSelector": "spec.nodeName=gpu-7"}
        if self.slices is None:
            raise ClusterError("the API server is away")
        return self.slices, "1"


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contests_module, "FRESH", 0.0)
    monkeypatch.setattr(contests_module, "QUIET", -1.0)


def contests(node: Node, reporter: Reporter, changed: threading.Event | None = None) -> ContentionMonitor:
    # Stand-ins take the place of the declared types.
    return ContentionMonitor(node, "gpu-7", node.allocatable, reporter, changed or threading.Event())  # type: ignore[arg-type]


def test_a_contest_is_notified_once_and_its_end_once() -> None:
    node, reporter = Node(), Reporter()
    found = contests(node, reporter)
    assert found.check(CARDS) == {}
    node.plugins = [("nvidia.com/gpu", [GPU])]
    for _ in range(3):
        assert found.check(CARDS) == {GPU: "a device plugin offers the GPU as nvidia.com/gpu"}
    assert reporter.said() == [(Reason.CONTENDED, True)]
    node.plugins = []
    for _ in range(3):
        assert found.check(CARDS) == {}
    assert reporter.said() == [(Reason.RECOVERED, True)]


def test_a_plugin_that_restarts_does_not_give_its_gpus_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(contests_module, "QUIET", 10.0)
    monkeypatch.setattr(contests_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    node, reporter = Node(plugins=[("nvidia.com/gpu", [GPU])]), Reporter()
    found = contests(node, reporter)
    assert set(found.check(CARDS)) == {GPU}
    node.plugins = [("nvidia.com/gpu", [])]
    now[0] += 9
    assert set(found.check(CARDS)) == {GPU}
    node.plugins = [("nvidia.com/gpu", [GPU])]
    assert set(found.check(CARDS)) == {GPU}
    assert reporter.said() == [(Reason.CONTENDED, True)]
    node.plugins = []
    now[0] += 11
    assert found.check(CARDS) == {}
    assert reporter.said() == [(Reason.RECOVERED, True)]


def test_what_was_known_stands_while_a_source_is_away() -> None:
    node, reporter = Node(plugins=[("nvidia.com/gpu", [GPU])]), Reporter()
    found = contests(node, reporter)
    found.check(CARDS)
    node.plugins, node.slices = None, None
    assert set(found.check(CARDS)) == {GPU}
    assert [problem.partition(":")[0] for problem in found.problems()] == [
        "the enforcer cannot read the kubelet's PodResources", "the enforcer cannot read other drivers' ResourceSlices",
    ]  # fmt: skip
    assert all("its last answer stays valid" in problem for problem in found.problems())
    node.plugins, node.slices = [], []
    assert (found.check(CARDS), list(found.problems())) == ({}, [])


def test_before_a_source_has_answered_no_gpu_is_ours() -> None:
    """At boot a device plugin may be slower than we are: setting its GPUs' compute mode would break it."""
    node, reporter, changed = Node(plugins=None), Reporter(), threading.Event()
    found = contests(node, reporter, changed)
    assert found.check(CARDS) == dict.fromkeys((GPU, OTHER_GPU), "the kubelet's PodResources cannot be read yet")
    assert ["no GPU is published until" in problem for problem in found.problems()] == [True]
    assert not changed.is_set()
    node.plugins = [("nvidia.com/gpu", [GPU])]
    assert set(found.check(CARDS)) == {GPU}
    assert changed.is_set(), "the other one's daemon has to be started"
    assert reporter.said() == [(Reason.CONTENDED, True)]


def test_either_source_is_enough() -> None:
    device = {"name": "gpu-3", "attributes": {"uuid": {"string": OTHER_GPU}}}
    slices = [{"spec": {"driver": "gpu.nvidia.com", "devices": [device]}}]
    node = Node(plugins=[("nvidia.com/gpu", [GPU])], slices=slices)
    assert set(contests(node, Reporter()).check(CARDS)) == {GPU, OTHER_GPU}


@dataclass
class Examiner:
    found: dict[str, Reason] = field(default_factory=dict)
    xids: list[tuple[str, int]] = field(default_factory=list)
    away: bool = False

    def ailment(self, uuid: str) -> Reason | None:
        if self.away:
            raise NvmlError("away")
        return self.found.get(uuid)

    def critical_errors(self) -> list[tuple[str, int]]:
        if self.away:
            raise NvmlError("away")
        taken, self.xids = self.xids, []
        return taken


@dataclass
class Ward:
    views: list[GpuSnapshot] = field(default_factory=lambda: [GpuSnapshot(gpu=each) for each in CARDS])
    examiner: Examiner = field(default_factory=Examiner)
    failures: dict[str, GpuShareError] = field(default_factory=dict)
    reporter: Reporter = field(default_factory=Reporter)

    changed: threading.Event = field(default_factory=threading.Event)

    def doctor(self) -> GpuHealthMonitor:
        quotas = Quotas(lambda: [quota(pod="tts", gpu=GPU), quota(pod="asr", gpu=OTHER_GPU)])
        return GpuHealthMonitor(sampler(lambda: self.views), self.examiner, self, quotas, self.reporter, self.changed)


def turns(doctor: GpuHealthMonitor, number: int) -> list[bool]:
    return [doctor.check() for _ in range(number)]


def test_a_lost_gpu_is_unhealthy_at_once_and_reported_once() -> None:
    ward = Ward()
    doctor = ward.doctor()
    ward.views[0] = GpuSnapshot(gpu=CARDS[0], problem=NvmlError("lost", Reason.GPU_LOST))
    assert turns(doctor, 3) == [True, False, False]
    assert doctor.unhealthy == {GPU: Reason.GPU_LOST}
    ward.views[0] = GpuSnapshot(gpu=CARDS[0])
    assert turns(doctor, WELL_AFTER) == [False] * (WELL_AFTER - 1) + [True]
    assert ward.reporter.said() == [(Reason.GPU_LOST, True), (Reason.RECOVERED, True)]
    assert [(each.quota.pod, each.reason, each.warning) for each in ward.reporter.owners] == [
        ("tts", Reason.GPU_LOST, True), ("tts", Reason.RECOVERED, False),
    ]  # fmt: skip
    assert "the driver has lost the GPU" in ward.reporter.owners[0].note


def test_a_gpu_that_answers_nonsense_is_not_unhealthy() -> None:
    ward = Ward(views=[GpuSnapshot(gpu=CARDS[0], problem=NvmlError("more than the card", Reason.IMPLAUSIBLE_SAMPLE))])
    doctor = ward.doctor()
    assert not any(turns(doctor, 10))


def test_memory_errors_and_critical_errors_are_asked_for() -> None:
    ward = Ward(examiner=Examiner({GPU: Reason.ECC_UNCORRECTABLE}, [(OTHER_GPU, 79), (GPU, 31)]))
    doctor = ward.doctor()
    doctor.check()
    assert doctor.unhealthy == {GPU: Reason.ECC_UNCORRECTABLE, OTHER_GPU: Reason.CRITICAL_XID}


def test_a_program_that_faults_makes_no_gpu_unhealthy_and_an_examiner_that_is_away_none_either() -> None:
    ward = Ward(examiner=Examiner(xids=[(GPU, 31), (GPU, 13)]))
    doctor = ward.doctor()
    assert not any(turns(doctor, 5))
    ward.examiner.away = True
    assert not any(turns(doctor, 5))


def test_a_daemon_that_cannot_be_kept_up_is_an_health_error_and_a_blocked_one_is_not() -> None:
    ward = Ward(failures={GPU: MpsError("no"), OTHER_GPU: MpsError("silent client", Reason.MPS_CONTROL_BLOCKED)})
    doctor = ward.doctor()
    assert turns(doctor, PATIENCE) == [False] * (PATIENCE - 1) + [True]
    assert doctor.unhealthy == {GPU: Reason.MPS_UNREACHABLE}


def test_a_failure_of_nvml_that_mps_met_is_no_failure_of_mps() -> None:
    ward = Ward(failures={GPU: NvmlError("the driver has lost the GPU", Reason.GPU_LOST)})
    assert not any(turns(ward.doctor(), 10))


def test_a_restart_heals_nothing() -> None:
    api: Any = Api()
    taints = [{"key": "gpu-share.io/unhealthy", "value": "GpuLost", "effect": "NoSchedule"}]
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": GPU}}, "taints": taints}
    odd = {"name": "gpu-1", "attributes": {"uuid": {"string": OTHER_GPU}}, "taints": [{"key": "another"}]}
    api.slices = {"a": {"metadata": {"name": "a"}, "spec": {"devices": [device, odd, {"name": "status"}]}}}
    assert SlicePublisher(api, "gpu-7").unhealthy() == {GPU: Reason.GPU_LOST}
    doctor = Ward().doctor()
    doctor.restore(SlicePublisher(api, "gpu-7"))
    assert doctor.unhealthy == {GPU: Reason.GPU_LOST}
    assert turns(doctor, WELL_AFTER) == [False] * (WELL_AFTER - 1) + [True]


def test_without_a_cluster_nobody_contests() -> None:
    sharing = GpuAvailability(None, None, fixed_modes(), limits(), sampler(tuple), DriverUpgrade())
    assert (sharing.check(CARDS).contended, sharing.cached().unhealthy) == ({}, {})


def test_an_health_error_wakes_whoever_offers_and_is_known_at_once() -> None:
    ward = Ward(failures={GPU: MpsError("no")})
    ward.examiner.found = {GPU: Reason.ECC_UNCORRECTABLE}
    doctor = ward.doctor()
    sharing = GpuAvailability(
        None, doctor, fixed_modes(), limits(lambda: {GPU: "mps-v2"}), sampler(tuple), DriverUpgrade()
    )
    doctor.check()
    assert ward.changed.is_set()
    assert sharing.cached().unhealthy == {GPU: Reason.ECC_UNCORRECTABLE}
    checked = sharing.check(CARDS)
    assert (checked.unhealthy, checked.backends) == (sharing.cached().unhealthy, {GPU: "mps-v2"})
    seen = GpuAvailability(None, doctor, fixed_modes(), limits(), sampler(lambda: ward.views), DriverUpgrade()).health()
    assert seen == {GPU: Reason.ECC_UNCORRECTABLE, OTHER_GPU: None}
    ward.changed.clear()
    doctor.check()
    assert not ward.changed.is_set()


def test_a_contest_is_known_without_asking_once_it_was_found() -> None:
    found = contests(Node(plugins=[("nvidia.com/gpu", [GPU])]), Reporter())
    sharing = GpuAvailability(found, None, fixed_modes(), limits(), sampler(tuple), DriverUpgrade())
    assert sharing.cached().contended == {}
    assert (
        sharing.check(CARDS).contended
        == sharing.cached().contended
        == {GPU: "a device plugin offers the GPU as nvidia.com/gpu"}
    )


def test_news_reach_the_node_as_events_and_a_deaf_api_server_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[tuple[str, Any]] = []

    class Events:
        def create(self, where: str, body: Any) -> None:
            posted.append((where, body))
            if len(posted) > 1:
                raise ClusterError("no")

    monkeypatch.setattr("enforcer.status.api_writer.RETRY_SECONDS", 0.0)
    writer = ApiWriter()
    reporter = EventRecorder(Events(), "gpu-7.example.org", writer)  # type: ignore[arg-type] # a stand-in
    for _ in range(2):
        reporter.record_on_node(NodeEvent(Reason.CONTENDED, "note"))
    assert posted == [], "nobody waits for the API server"
    writer.run_once()
    where, event = posted[0]
    assert where == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Node", "name": "gpu-7.example.org", "uid": "gpu-7.example.org",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "Contended", "note")


def test_a_gpu_off_its_bus_keeps_its_index_and_those_behind_it_theirs() -> None:
    three = card("GPU-3", 0)
    assert [(gpu.uuid, gpu.index) for gpu in merge_gpu_lists(CARDS, [card(OTHER_GPU, 0)])] == [(GPU, 0), (OTHER_GPU, 1)]
    assert [(gpu.uuid, gpu.index) for gpu in merge_gpu_lists(CARDS, [card(OTHER_GPU, 0), three])] == [
        (GPU, 0), (OTHER_GPU, 1), ("GPU-3", 2),
    ]  # fmt: skip
    assert merge_gpu_lists((), CARDS) == tuple(CARDS)


def test_during_a_driver_upgrade_no_gpu_is_offered_and_the_reason_is_noted() -> None:
    upgrade = DriverUpgrade()
    sharing = GpuAvailability(None, None, fixed_modes(), limits(), sampler(tuple), upgrade)
    upgrade.observe({"metadata": {"labels": {STATE: "cordon-required"}}})
    found = build_devices([card(GPU, 0)], InventoryPolicy(), standing=sharing.check([card(GPU, 0)]))
    assert [each.uuid for each in found.left_out] == [GPU]
    assert found.left_out[0].why.startswith(str(Reason.DRIVER_UPGRADE))
    upgrade.observe({"metadata": {"labels": {}}})
    assert build_devices([card(GPU, 0)], InventoryPolicy(), standing=sharing.check([card(GPU, 0)])).left_out == ()
