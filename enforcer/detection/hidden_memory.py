"""Keeps what is known of unaccounted memory and its holders, and adds to a container's use what must be its own.

The loop brings samples; a thread of its own looks at the node's open files, while a GPU has unaccounted memory. What it
found counts for a few seconds. A kill looks again itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from enforcer.attribution.descriptors import DescriptorReader
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage, UsageByContainer
from enforcer.attribution.unaccounted import UNKNOWN, Account, Holders
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.hidden import Finding, VerifiedLimits, counted, find
from enforcer.detection.types import KillDecision
from enforcer.quota.types import OnExceed, Quota
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.runtime.manager import Wake

EVERY: Final = 1.0
"""Seconds between looks at open files while there is a reason for them."""
LASTS: Final = 10.0
"""Seconds for which a look counts; after that it is unknown who has descriptors."""
GIB: Final = 1024
"""In MiB."""
NAMED: Final = 3
"""So many containers are spelled out."""


class OwnProcesses(Protocol):
    """Knows gpu-share's own processes on the node; ``enforcer.mps.own_processes.EnforcerProcesses`` does."""

    def pods(self) -> frozenset[str]:
        """Return the UIDs of our own pods."""

    def mps_servers(self) -> frozenset[int]:
        """Return the pids of MPS's daemons and servers that are known now."""


class Consequence(StrEnum):
    """What happens to a container over its quota by memory that nobody is counted for."""

    REPORT = "report"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    holders: Holders
    servers: frozenset[int]


class HiddenMemory:
    """Knows whose unaccounted memory is, as far as that is known.

    Args:
        accounts: keeps the account of each GPU.
        watch: samples a GPU again for a kill.
        descriptors: looks at open files.
        own: knows MPS's servers.
        limits: knows which limits are in force.
        consequence: what the operator wants.
    """

    def __init__(
        self,
        accounts: UnaccountedMonitor,
        watch: UsageSampler,
        descriptors: DescriptorReader,
        own: OwnProcesses,
        limits: VerifiedLimits,
        consequence: Consequence,
        clock: Clock = CLOCK,
    ) -> None:
        self._accounts, self._watch, self._descriptors = accounts, watch, descriptors
        self._own, self._limits, self._consequence, self._clock = own, limits, consequence, clock
        self._look: _Look | None = None
        self._quotas: tuple[Quota, ...] = ()
        self.due: Final = Wake()
        """Set when the open files have to be looked at soon."""
        self.found: Mapping[str, Finding] = {}
        """By GPU, where more than the tolerance is unaccounted for and the open files are known; replaced whole."""

    @property
    def kills(self) -> bool:
        """Whether such memory counts for kills."""
        return self._consequence is Consequence.KILL

    @property
    def amounts(self) -> dict[str, tuple[int, int]]:
        """Return what is unaccounted for and what is known to be the driver's, in MiB, by GPU."""
        return {gpu: (each.mib, each.known_mib) for gpu, each in self._accounts.latest.items()}

    def take(self, views: Sequence[GpuSnapshot], quotas: Sequence[Quota], now: float) -> None:
        """Take in one sample of every GPU; ``now`` on the loop's clock, in seconds. Never waits."""
        self._accounts.take(views, quotas, now)
        self._quotas, look = tuple(quotas), self._fresh_look()
        accounts = {gpu: each for gpu, each in self._accounts.latest.items() if each.matters}
        if accounts and look is None:
            self.due.set()
        self.found = {
            view.gpu.uuid: self._find(accounts[view.gpu.uuid], view, look)
            for view in views
            if look is not None and view.gpu.uuid in accounts
        }

    def _fresh_look(self) -> _Look | None:
        look = self._look
        late = look is not None and self._clock.monotonic() - look.at > LASTS
        return look if look is None or not late else replace(look, holders=UNKNOWN)

    def look(self) -> None:
        """Look at the open files of all processes, if there is a reason. May take a second."""
        if not any(each.matters for each in self._accounts.latest.values()):
            self._look = None
            return
        # A daemon that does not answer still has its server: one known before counts while it holds memory.
        before = frozenset() if self._look is None else self._look.servers
        holding = {each.identity.pid for view in self._watch.latest for each in view.holders}
        servers = self._own.mps_servers() | (before & holding)
        self._look = _Look(self._clock.monotonic(), self._descriptors.read(), servers)

    def readings(self, views: Sequence[GpuSnapshot]) -> dict[str, UsageByContainer | None]:
        """Return what counts for each container, by GPU: its processes by NVML, and with consent what is hidden."""
        return {view.gpu.uuid: self._counted(view) for view in views}

    def enforced(self, quotas: Sequence[Quota]) -> tuple[Quota, ...]:
        """Return the quotas as they are enforced: a container with hidden memory is killed whole, or not at all."""
        return tuple(replace(each, on_exceed=OnExceed.KILL_CONTAINER) if self._whole(each) else each for each in quotas)

    def marked(self, decision: KillDecision) -> KillDecision:
        """Note in a decision how much of the container's use is hidden."""
        return replace(decision, unaccounted_mib=self._owned_mib(decision.quota))

    def usages_of(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        """Return a container's processes now, hidden memory looked at again; ``None`` when blind."""
        if not self._owned_mib(quota):
            return self._watch.usages_of(quota)
        look = _Look(0.0, self._descriptors.read(), frozenset() if self._look is None else self._look.servers)
        view = next(iter(self._watch.sample_some({quota.gpu})), None)
        if view is None or view.reading is None or view.unknown_mib:
            return None
        account = self._accounts.latest[quota.gpu]
        found = self._find(replace(account, level_mib=min(account.level_mib, view.gap_mib)), view, look)
        return counted(found, view.reading).get(quota.container_id or "", ())

    def problems(self) -> list[str]:
        """Return a sentence for each GPU of which new shares get less, in whole GiB: it is written where it changes."""
        return [
            f"{-(-finding.withheld_mib // GIB)} GiB of {gpu} are in use and counted for nobody, so new shares do not "
            f"get them; containers with descriptors of GPU memory: {_names(finding)}{_others(finding)}"
            for gpu, finding in self.found.items()
            if finding.withheld_mib
        ]

    def _find(self, account: Account, view: GpuSnapshot, look: _Look) -> Finding:
        quotas = [each for each in self._quotas if each.gpu == view.gpu.uuid]
        return find(account, view, quotas, look.holders, look.servers, self._limits.latest)

    def _counted(self, view: GpuSnapshot) -> UsageByContainer | None:
        finding = self.found.get(view.gpu.uuid)
        if view.reading is None or finding is None or not self.kills:
            return view.reading
        return counted(finding, view.reading)

    def _owned_mib(self, quota: Quota) -> int:
        finding = self.found.get(quota.gpu)
        mine = finding is not None and finding.owner is not None and finding.owner.container_id == quota.container_id
        return finding.owner_mib if finding is not None and mine and self.kills else 0

    def _whole(self, quota: Quota) -> bool:
        return quota.on_exceed is OnExceed.KILL and self._owned_mib(quota) > 0


def _names(finding: Finding) -> str:
    names = [f"{each.quota.namespace}/{each.quota.pod}/{each.quota.container}" for each in finding.suspects]
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "") or "none"


def _others(finding: Finding) -> str:
    if not finding.complete:
        return "; the open files of some pods could not be read in time, so nobody is charged for it"
    return "; a process outside of its shares may hold it, so nobody is charged for it" if finding.elsewhere else ""
