"""The parts that a part under test is built from, as far as the test does not care for them."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.descriptors import ControlDevice, DescriptorReader
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.attribution.unaccounted import Holders
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.claim_wait import ClaimWait
from enforcer.detection.hidden import VerifiedLimits
from enforcer.detection.hidden_memory import Consequence, HiddenMemory
from enforcer.limits.applier import LimitApplier
from enforcer.limits.backend import Backend
from enforcer.limits.verifier import LimitVerifier
from enforcer.loop import LoopDependencies
from enforcer.mps.manager import MpsManager
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuSample
from enforcer.oom.reporter import OomReporter
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.informer import WITH_KUBELET, QuotaInformer
from enforcer.quota.prepared_claims import NoClaims
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode, Quota
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.runtime.manager import Manager
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder, NodeEvent
from enforcer.status.hidden_notices import HiddenNotices
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from enforcer.status.mps_clients import MpsClients
from enforcer.status.pod_status_files import PodStatusWriter
from enforcer.status.utilization import UtilizationMonitor
from gpushare.errors import NvmlError
from gpushare.reasons import Reason

if TYPE_CHECKING:
    from enforcer.audit.writer import AuditWriter

NODE = "gpu-7"


class Quotas(Checkpoint):
    """A checkpoint whose quotas a test says."""

    def __init__(self, get: Callable[[], Sequence[Quota]]) -> None:
        super().__init__(Path("/nowhere"))
        self._get = get

    def read(self) -> tuple[Quota, ...]:
        return tuple(self._get())

    @property
    def latest(self) -> tuple[Quota, ...]:
        return self.read()

    def write(self, _: Sequence[Quota]) -> None:
        """What a test says stays."""


class Ids:
    """The containers that run, as a test says: ids by pod UID and name."""

    def __init__(self, running: Mapping[tuple[str, str], str]) -> None:
        self._running = running

    def joined(self, quotas: Sequence[Quota], _: Sequence[Quota]) -> tuple[Quota, ...]:
        ids = self._running
        return tuple(
            each if each.whole_pod else replace(each, container_id=ids.get((each.pod_uid, each.container)))
            for each in quotas
        )


class _Views:
    def __init__(self, get: Callable[[], Sequence[GpuSnapshot]]) -> None:
        self._get = get

    def sample(self) -> tuple[GpuSnapshot, ...]:
        return tuple(self._get())

    @property
    def latest(self) -> tuple[GpuSnapshot, ...]:
        return self.sample()


def sampler(get: Callable[[], Sequence[GpuSnapshot]]) -> UsageSampler:
    """One that sees what a test says."""
    return cast("UsageSampler", _Views(get))


class Usages(UsageSampler):
    """One that sees of each container what a test says."""

    def __init__(self, get: Callable[[Quota], tuple[ProcessUsage, ...] | None]) -> None:
        super().__init__(NoReader(), CgroupAttributor())
        self._get = get

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        return self._get(quota)


class NoReader(GpuReader):
    """Reads no GPU, and knows of no utilization."""

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def sample(self, uuid: str) -> GpuSample:
        raise NvmlError(f"there is no GPU {uuid}")


class Attribution(CgroupAttributor):
    """Attributes processes as a test says; one that it does not know has ended."""

    def __init__(self, identify: Callable[[int], Identity | None]) -> None:
        super().__init__()
        self._identify = identify

    def identify(self, pid: int) -> Identity | None:
        return self._identify(pid)

    def is_alive(self, _: int) -> bool:
        return False


class PreparedClaims(NoClaims):
    """Prepared claims, by the GPUs they are on; ``None``: they were not read yet."""

    def __init__(self, prepared: Mapping[str, Mode] | None = None) -> None:
        self.prepared = prepared

    def modes(self) -> Mapping[str, Mode]:
        return cast("Mapping[str, Mode]", None if self.prepared is None else dict(self.prepared))


def label_modes(
    prepared: Mapping[str, Mode] | None, default: Mode = Mode.MPS, changed: threading.Event | None = None
) -> SharingModeController:
    """Modes that the node's label decides."""
    return SharingModeController(PreparedClaims(prepared), default, changed or threading.Event())


def fixed_modes(mode: Mode = Mode.MPS) -> SharingModeController:
    """Every GPU is shared like this."""
    return SharingModeController(NoClaims(), mode, threading.Event(), labelled=False)


class _Backends:
    def __init__(self, get: Callable[[], Mapping[str, str]]) -> None:
        self._get = get

    def backends(self) -> Mapping[str, Backend]:
        return {gpu: Backend(backend) for gpu, backend in self._get().items()}


def limits(get: Callable[[], Mapping[str, str]] = dict) -> LimitApplier:
    """One whose back ends a test says."""
    return cast("LimitApplier", _Backends(get))


class Messages(EventRecorder):
    """Takes messages for tenants, and hands them on."""

    def __init__(self, sent: list[UserMessage] | Callable[[UserMessage], object] | None = None) -> None:
        super().__init__(None, NODE, ApiWriter())
        self.sent = list[UserMessage]() if sent is None or callable(sent) else sent
        self._take = sent if callable(sent) else self.sent.append

    def record(self, notice: UserMessage) -> None:
        super().record(notice)
        self._take(notice)


class NodeEvents(EventRecorder):
    """Takes Events for operators."""

    def __init__(self, sent: list[NodeEvent] | None = None) -> None:
        super().__init__(None, NODE, ApiWriter())
        self.sent = [] if sent is None else sent

    def record_on_node(self, news: NodeEvent) -> None:
        self.sent.append(news)


class _Supervisor:
    def __init__(self, not_ready_reason: Callable[[str], str | None]) -> None:
        self.not_ready_reason = not_ready_reason


class _Health:
    def __init__(self, get: Callable[[], Mapping[str, Reason | None]]) -> None:
        self._get = get

    def health(self) -> dict[str, Reason | None]:
        return dict(self._get())


def availability(health: Callable[[], Mapping[str, Reason | None]] = dict) -> GpuAvailability:
    """Return availability with the health that a test gives."""
    return cast("GpuAvailability", _Health(health))


def supervisor(not_ready_reason: Callable[[str], str | None] = lambda _: None) -> MpsSupervisor:
    """Return a supervisor whose daemons are as ready as a test says."""
    return cast("MpsSupervisor", _Supervisor(not_ready_reason))


def daemons_on(gpus: Iterable[str]) -> MpsManager:
    """A manager that has daemons on these GPUs."""
    return MpsManager(cast("Any", {gpu: _Noted() for gpu in gpus}))


class _Noted:
    noted = True


class Rule:
    """A rule as the enforcer has it where it prepares claims."""

    kinds = WITH_KUBELET

    def __init__(self, quotas: Callable[[Mapping[str, Sequence[Any]]], tuple[Any, ...]], *also: str) -> None:
        self.quotas, self._also = quotas, also

    def namespaces(self) -> frozenset[str]:
        return frozenset(self._also)


class Pods(QuotaInformer):
    """The pods of a node as a test says them; ``None``: they were never listed."""

    def __init__(self, uids: Iterable[str] | None, claims: Iterable[tuple[str, str]] = ()) -> None:
        self._uids, self._claims = uids, claims

    def pods(self) -> frozenset[str] | None:
        return None if self._uids is None else frozenset(self._uids)

    def claims(self) -> frozenset[tuple[str, str]]:
        return frozenset(self._claims)


class NoDescriptors(DescriptorReader):
    """Sees no process with descriptors, or those that a test says."""

    def __init__(self, get: Callable[[], Holders] = Holders) -> None:
        super().__init__(CgroupAttributor(), ControlDevice())
        self._get = get
        self.looks = 0

    def read(self) -> Holders:
        self.looks += 1
        return self._get()


class NobodyOwn:
    """No process of gpu-share's own, or MPS servers that a test says."""

    def __init__(self, servers: Iterable[int] = ()) -> None:
        self.servers = frozenset(servers)

    def pods(self) -> frozenset[str]:
        return frozenset()

    def mps_servers(self) -> frozenset[int]:
        return self.servers


def hidden_memory(watch: UsageSampler) -> HiddenMemory:
    """What knows of unaccounted memory, where nobody has descriptors."""
    accounts, own = UnaccountedMonitor(Path("/nowhere")), NobodyOwn()
    return HiddenMemory(accounts, watch, NoDescriptors(), own, VerifiedLimits(), Consequence.REPORT)


class _PodStatus:
    def __init__(self) -> None:
        self.peaks = dict[tuple[str, str, str], int]()

    def write(self, _: object) -> None:
        """Pods have no files here."""


class _Executor:
    def __init__(self, executor: Any) -> None:
        self.execute = getattr(executor, "execute", None)
        self.reap_pending = getattr(executor, "reap_pending", lambda: None)


def loop_parts(
    *,
    watch: UsageSampler,
    quotas: Callable[[], Sequence[Quota]],
    executor: Any,
    audit_log: Any,
    events: EventRecorder,
    metrics: Metrics,
    problems: Callable[[], Sequence[str]] = tuple,
    pods: PodStatusWriter | None = None,
    hidden: HiddenMemory | None = None,
) -> LoopDependencies:
    """What a loop is made of, around what a test cares for."""
    manager, checkpoint = Manager(), Quotas(quotas)
    manager.add_problem_check(problems, Reason.AUDIT_UNWRITABLE)
    evidence: Any = None
    return LoopDependencies(
        watch=watch, checkpoint=checkpoint, executor=cast("Any", _Executor(executor)),
        audit_log=cast("AuditWriter", audit_log), pods=pods or cast("PodStatusWriter", _PodStatus()),
        metrics=metrics, manager=manager, events=events, oom=OomReporter(events, metrics), clients=MpsClients(events),
        availability=GpuAvailability(None, None, label_modes(None), limits(), watch, DriverUpgrade()),
        hidden=hidden or hidden_memory(watch), notices=HiddenNotices(events),
        utilization=UtilizationMonitor(watch, NoReader()),
        verifier=LimitVerifier(evidence, watch, checkpoint, events, None, 30.0), claim_wait=ClaimWait(), setup={},
    )  # fmt: skip
