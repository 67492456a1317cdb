"""Is a container's limit in force? One answer from what was declared, applied and observed. Pure.

- ``InForce``: nothing speaks against it, and the back end speaks for it. What is within the tolerance above the quota
  speaks against nothing, so the sentence says how much that is.
- ``PerProcessOnly``: each process is limited, and there are several: together they may hold more.
- ``NotApplied``: the limit is not there.
- ``LimitEscaped``: it is there, and somebody got around it.
- ``Unknown``: there is no evidence now.

No state ends anybody: lists may be a moment old, and environments are the tenants' own. What is above its quota is
ended, whatever stands here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.limits.backend import Backend
from enforcer.limits.environ_limits import EnvironLimit
from enforcer.quota.types import LimitStatus
from gpushare.reasons import Reason

BAD: Final = frozenset({Reason.NOT_APPLIED, Reason.LIMIT_ESCAPED})
STEADY: Final = frozenset({Reason.IN_FORCE, Reason.UNKNOWN})
"""States whose sentences name no process, and change only with what they state."""
NAMED: Final = 5
"""So many processes are spelled out in a sentence."""
GPU_UNREAD: Final = "the enforcer cannot read the GPU, so it does not know whether the limit is in force"
NO_LIMIT: Final = (
    "neither MPS nor the driver limits the container; if it exceeds its quota, the enforcer kills it or warns"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process that holds memory of the GPU.

    ``environ`` is ``None`` where its environment cannot be read, ``client`` where MPS's clients cannot.
    """

    pid: int
    used_mib: int
    environ: EnvironLimit | None = None
    client: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All about one container on one GPU, MiB.

    ``ceiling_mib`` is the quota with its tolerance, ``reserved_mib`` the most that the container could be given.
    ``applied_mib`` is what the back end reads back (``None``: no limit), and ``unread`` why it could not be read.
    ``processes`` is ``None`` while the GPU cannot be read.
    """

    backend: Backend
    quota_mib: int
    ceiling_mib: int
    reserved_mib: int
    processes: tuple[Process, ...] | None
    applied_mib: int | None = None
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class VerificationHistory:
    """What was reported of one container last, and what was found once and is not believed yet."""

    reported: LimitStatus | None = None
    suspected: Reason | None = None


def verify_limit(evidence: Evidence) -> LimitStatus:
    """Answer from one look."""
    state, sentence = _VERIFIERS[evidence.backend](evidence)
    return LimitStatus(state=state, backend=str(evidence.backend), sentence=sentence)


def debounce(before: VerificationHistory, found: LimitStatus, *, idle: bool) -> VerificationHistory:
    """Take in one look.

    A state that is bad for the container, and any doubt about one that was well, has to be seen twice in a row. A
    container that holds nothing now (``idle``) gives no reason for doubt: its limit stays in force, and nothing else
    that was reported outlives its processes, or the trouble of a GPU. What is reported of a bad state stays as it was
    first reported, because it names processes that come and go.

    Args:
        before: what was known.
        found: what this look found.
        idle: it holds no memory of the GPU.
    """
    reported = before.reported
    if idle and found.state is Reason.UNKNOWN:
        return VerificationHistory(reported if reported is not None and reported.state is Reason.IN_FORCE else None)
    if reported is not None and found.state is reported.state:
        return VerificationHistory(found if found.state in STEADY else reported)
    at_once = found.state is Reason.IN_FORCE or (reported is None and found.state is Reason.UNKNOWN)
    if at_once or before.suspected is found.state:
        return VerificationHistory(found)
    return VerificationHistory(reported, found.state)


def _of_mps(evidence: Evidence) -> tuple[Reason, str]:
    processes = evidence.processes
    if processes is None:
        return Reason.UNKNOWN, GPU_UNREAD
    if not processes:
        return Reason.UNKNOWN, "the container holds no GPU memory, so there is no process to verify"
    against = next(_against(processes, evidence), None)
    if against is not None:
        return against
    return next(_doubts(processes), None) or _well(processes, evidence)


def _doubts(processes: Sequence[Process]) -> Iterator[tuple[Reason, str]]:
    if any(each.client is None for each in processes):
        yield Reason.UNKNOWN, "the enforcer cannot list the clients of the GPU's MPS daemon"
    if any(each.environ is None for each in processes):
        yield Reason.UNKNOWN, "the enforcer cannot read the limit in the environment of a process"


def _well(processes: Sequence[Process], evidence: Evidence) -> tuple[Reason, str]:
    if len(processes) > 1:
        return (
            Reason.PER_PROCESS_ONLY,
            f"MPS limits each process alone: each of {_named(processes)} may hold {evidence.quota_mib} MiB",
        )
    limit = f"the container's process is an MPS client with a limit of {evidence.quota_mib} MiB or less"
    return Reason.IN_FORCE, f"{limit}{_unseen(evidence)}"


def _named(processes: Sequence[Process]) -> str:
    """Say how many processes of the container there are, and which: the largest first. They are its owner's own."""
    ordered = sorted(processes, key=lambda each: (-each.used_mib, each.pid))
    some = ", ".join(f"pid {each.pid}: {each.used_mib} MiB" for each in ordered[:NAMED])
    more = f", and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return f"the container's {len(ordered)} processes (when verified: {some}{more})"


def _against(processes: Sequence[Process], evidence: Evidence) -> Iterator[tuple[Reason, str]]:
    """What speaks against the limit, the worst first."""
    yield from ((Reason.LIMIT_ESCAPED, escape) for each in processes for escape in _escapes(each, evidence))
    for each in processes:
        if _binds(evidence) and each.environ is not None and each.environ.limit_mib is None:
            yield Reason.NOT_APPLIED, f"process {each.pid} started without the MPS limit in its environment"
        if (mib := _kept(each, evidence)) is not None:
            yield (
                Reason.NOT_APPLIED,
                f"process {each.pid} started with a limit of {mib} MiB and keeps this limit until it exits",
            )


def _escapes(process: Process, evidence: Evidence) -> Iterator[str]:
    environ = process.environ
    if environ is not None and environ.unseen is not None:
        yield (
            f"the MPS limit in the environment of process {process.pid} names a GPU that the process does "
            "not see, so MPS ignores all its limits"
        )
    beyond = max(evidence.quota_mib, evidence.reserved_mib)
    if _binds(evidence) and environ is not None and environ.limit_mib is not None and environ.limit_mib > beyond:
        yield f"process {process.pid} started with a limit of {environ.limit_mib} MiB, not {evidence.quota_mib} MiB"
    if process.client is False:
        yield f"process {process.pid} holds GPU memory but is not an MPS client"
    if process.used_mib > evidence.ceiling_mib and _kept(process, evidence) is None:
        yield f"process {process.pid} holds {process.used_mib} MiB, although its limit is {evidence.quota_mib} MiB"


def _binds(evidence: Evidence) -> bool:
    """Whether its environment is what limits a process: a namespace's limit holds without, and beyond a higher one."""
    return evidence.backend is Backend.MPS_V2


def _kept(process: Process, evidence: Evidence) -> int | None:
    """The limit of a process that was started before its quota was lowered; ``None`` where that is not so."""
    limit = None if process.environ is None else process.environ.limit_mib
    return limit if limit is not None and evidence.quota_mib < limit <= evidence.reserved_mib else None


def _of_cgroup(evidence: Evidence) -> tuple[Reason, str]:
    if evidence.unread is not None:
        return Reason.UNKNOWN, f"the enforcer cannot read the limit from the NVIDIA driver: {evidence.unread}"
    if evidence.applied_mib is None:
        return Reason.NOT_APPLIED, "no GPU memory limit is set in the NVIDIA driver for the container's cgroup"
    if evidence.applied_mib != evidence.quota_mib:
        return (
            Reason.NOT_APPLIED,
            f"the limit of the container's cgroup is {evidence.applied_mib} MiB, not {evidence.quota_mib} MiB",
        )
    if evidence.processes is None:
        return Reason.UNKNOWN, GPU_UNREAD
    used = sum(each.used_mib for each in evidence.processes)
    if used > evidence.ceiling_mib:
        return Reason.LIMIT_ESCAPED, f"the container holds {used} MiB, although its limit is {evidence.quota_mib} MiB"
    return (
        Reason.IN_FORCE,
        f"the NVIDIA driver limits the container's cgroup to {evidence.quota_mib} MiB{_unseen(evidence)}",
    )


def _unseen(evidence: Evidence) -> str:
    """Name the usage above the quota that is not acted upon, as a clause; empty where there is none."""
    tolerance = evidence.ceiling_mib - evidence.quota_mib
    return f"; the enforcer tolerates up to {tolerance} MiB more" if tolerance > 0 else ""


def _of_instance(evidence: Evidence) -> tuple[Reason, str]:
    if evidence.processes is None:
        return Reason.UNKNOWN, GPU_UNREAD
    return Reason.IN_FORCE, "the memory of the MIG instance is the limit"


_VERIFIERS: Final = {
    Backend.MPS_V2: _of_mps,
    Backend.DRIVER_CGROUP: _of_cgroup,
    Backend.WATCH_ONLY: lambda _: (Reason.NOT_APPLIED, NO_LIMIT),
    Backend.MIG_INSTANCE: _of_instance,
}
