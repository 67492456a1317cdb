"""Which back end keeps a container within its memory limit on a GPU: chosen from what the driver can. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Backend(StrEnum):
    """Who keeps the limit."""

    MPS_V2 = "mps-v2"
    """MPS: each process of its own, by the variable it started with. A process that grows beyond it gets no memory."""
    DRIVER_CGROUP = "driver-cgroup"
    """The driver: all processes of the container's cgroup together."""
    WATCH_ONLY = "watch-only"
    """No limit: a container that stays above its quota is killed."""
    MIG_INSTANCE = "mig-instance"
    """The hardware: nothing beyond the instance is there."""

    @property
    def by_mps(self) -> bool:
        """Whether MPS keeps it, so that only its clients are limited."""
        return self is Backend.MPS_V2

    @property
    def applies_immediately(self) -> bool:
        """Whether another limit binds running processes too, and not only those that start later."""
        return self in {Backend.DRIVER_CGROUP, Backend.WATCH_ONLY}


class RequestedBackend(StrEnum):
    """What the operator says (``--limit-backend``)."""

    AUTO = "auto"
    MPS_V2 = "mps-v2"
    DRIVER_CGROUP = "driver-cgroup"
    WATCH_ONLY = "watch-only"


@dataclass(frozen=True, slots=True)
class Choice:
    """A back end; ``problem`` is a sentence where the operator wanted one that cannot work."""

    backend: Backend
    problem: str | None = None


_LACKING: Final = {
    RequestedBackend.MPS_V2: "this sharing mode runs no MPS daemon for the GPU",
    RequestedBackend.DRIVER_CGROUP: "the driver does not limit cgroups (R615 and newer do, on cgroup v2)",
}


def choose(*, mps: bool, cgroups: bool, wanted: RequestedBackend = RequestedBackend.AUTO) -> Choice:
    """Choose what prevents best on a GPU that is shared: per container before per process, and anything before nothing.

    Args:
        mps: whether it has an MPS daemon.
        cgroups: whether its driver keeps limits of cgroups.
        wanted: what the operator says.
    """
    best = _best(mps=mps, cgroups=cgroups)
    needed = {RequestedBackend.MPS_V2: mps, RequestedBackend.DRIVER_CGROUP: cgroups}
    if not needed.get(wanted, True):
        return Choice(
            best,
            f"--limit-backend {wanted} cannot work: {_LACKING[wanted]}; the enforcer uses {best}; write auto into the "
            "chart value enforcer.limitBackend",
        )
    return Choice(best if wanted is RequestedBackend.AUTO else Backend(wanted))


def _best(*, mps: bool, cgroups: bool) -> Backend:
    if cgroups:
        return Backend.DRIVER_CGROUP
    if mps:
        return Backend.MPS_V2
    return Backend.WATCH_ONLY
