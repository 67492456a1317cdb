"""Borrowed memory: who must give how much of it back, by when, and who is killed for it. Pure.

A container with a ``limit_mib`` above its reservation may borrow memory that no share reserved. So at every sample each
GPU is to have, free, all that its shares reserved and do not hold. A share that grows into its own reservation changes
nothing about that, at any speed: only borrowers that grow do, and new shares. Two lines below which free memory must
not fall, both beyond what is reserved and not in use:

- Below ``SLACK_MIB`` the GPU is *short*: the largest borrowers, relative to their reservations, are warned to give back
  what is missing within ``DetectorConfig.notice`` seconds. Then those of them that are still needed are killed.
- Below ``LEAST_MIB`` they are killed at once. For this line the reservation of a pod that waits for its memory in
  Prepare does not count: it has no container yet.

What follows for speeds is in ``docs/reference/kills.md`` and ``tests/unit/enforcer/detection/test_lending.py``.

Who writes what this reads: the webhook and Prepare, within the namespace's maximum, reservation and limit; NVML what is
in use and free.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from enforcer.attribution.snapshot import ProcessUsage, UsageByContainer, total_mib
from enforcer.detection.targets import select_targets
from enforcer.detection.types import (
    Borrower,
    Decision,
    DetectorConfig,
    DetectorState,
    Key,
    KillDecision,
    Loans,
    Phase,
    key_of,
)
from enforcer.quota.types import Quota

PUT_OFF: Final = 2
"""Notices for which a kill is put off at most, however many take turns."""
SLACK_MIB: Final = 4096
LEAST_MIB: Final = 2048
KILL_SECONDS: Final = 1.0
"""For so long the memory of a container that is being killed counts as coming back; then the next one is killed."""


@dataclass(frozen=True, slots=True)
class _Loan:
    """A container that holds borrowed memory: how much in all, how much borrowed, and in which processes."""

    quota: Quota
    used_mib: int
    borrowed_mib: int
    holders: tuple[ProcessUsage, ...]
    known: Borrower

    @property
    def key(self) -> Key:
        return key_of(self.quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One GPU: MiB missing to each of the two lines but for ``coming_mib`` of kills, and the loans."""

    missing_mib: int
    coming_mib: int
    urgent_mib: int
    loans: tuple[_Loan, ...]
    may_end: tuple[_Loan, ...]


def reclaim(
    state: DetectorState, quotas: Sequence[Quota], readings: Mapping[str, UsageByContainer | None],
    free_mib: Mapping[str, int], waiting: AbstractSet[str], now: float, rules: DetectorConfig,
) -> tuple[DetectorState, tuple[KillDecision, ...]]:  # fmt: skip
    """Take in one sample of some GPUs, after ``evaluate`` did.

    Args:
        state: what the detector remembers.
        quotas: as ``evaluate`` got them.
        readings: by GPU UUID; what could not be read changes nothing.
        free_mib: by GPU UUID.
        waiting: UIDs of pods that wait in Prepare for memory to be given back.
        now: as everywhere.
        rules: the detector's.
    """
    decisions, lending = list[KillDecision](), {quota.gpu for quota in quotas if quota.may_borrow}
    known = {quota.gpu for quota in quotas}
    state = replace(state, loans={gpu: loans for gpu, loans in state.loans.items() if gpu in known})
    for gpu, reading in readings.items():
        if reading is None or not (gpu in lending or gpu in state.loans):
            continue
        here = [quota for quota in quotas if quota.gpu == gpu]
        spare = [free_mib[gpu] - needed_mib(here, reading, without) for without in (frozenset[str](), waiting)]
        sample = _look(state, here, reading, (spare[0], spare[1]), now, rules)
        decisions += [_lent(each) for each in sample.loans if each.known.samples == rules.samples]
        state, more = _decided(state, gpu, sample, now, rules)
        decisions += more
    return state, tuple(decisions)


def seconds_of_need(before: DetectorState, after: DetectorState) -> list[float]:
    """Return for how many seconds a GPU lacked what its shares reserved, of each that has it since the last sample."""
    needed = {gpu: loans.needed for gpu, loans in before.loans.items() if loans.needed is not None}
    loans = {gpu: after.loans[gpu] for gpu in needed if gpu in after.loans}
    return [each.at - needed[gpu] for gpu, each in loans.items() if each.needed is None]


def short_gpus(state: DetectorState, now: float, rules: DetectorConfig) -> frozenset[str]:
    """Return the UUIDs of GPUs that have to be read often: a borrower may be killed at any time."""
    if state.open:
        return frozenset()
    most = PUT_OFF * rules.notice
    return frozenset(gpu for gpu, loans in state.loans.items() if loans.short is not None and now - loans.short <= most)


def seconds_to_return(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float | None:
    """Return the seconds that a container has left to give memory back; ``None`` where it was not warned to."""
    loans = state.loans.get(quota.gpu, Loans())
    warned = loans.borrowers.get(key_of(quota), Borrower()).warned
    return None if warned is None else _seconds_left(warned, loans.short, now, rules)


def needed_mib(quotas: Sequence[Quota], reading: UsageByContainer, without: AbstractSet[str] = frozenset()) -> int:
    """Return the MiB of one GPU that its shares reserved and do not hold.

    Args:
        quotas: on this GPU.
        reading: of this GPU.
        without: UIDs of pods that do not count.
    """
    pods = defaultdict[str, list[Quota]](list)
    for quota in quotas:
        pods[quota.pod_uid].append(quota)
    return sum(_unused_mib(rows, reading) for pod, rows in pods.items() if pod not in without)


def _unused_mib(rows: Sequence[Quota], reading: UsageByContainer) -> int:
    """Return what a pod reserved and does not hold. What a container borrowed holds nothing of another's."""
    own = [each for each in rows if not each.whole_pod]
    claimed = [each.reserved_mib or 0 for each in rows if each.whole_pod]
    reserved = sum(claimed) if claimed else sum(each.memory_mib for each in own)
    return max(0, reserved - sum(min(each.memory_mib, total_mib(_holders(each, reading))) for each in own))


def borrowed_mib(quota: Quota, used_mib: int) -> int:
    """Return the MiB that a container holds beyond its reservation; within the tolerance there is no loan."""
    beyond = quota.may_borrow and used_mib > quota.without_loan().ceiling_mib
    return used_mib - quota.memory_mib if beyond else 0


def unreturned_mib(
    quotas: Sequence[Quota], reading: UsageByContainer, free_mib: int, without: AbstractSet[str] = frozenset()
) -> int:
    """Return how many MiB borrowers of a GPU have to give back still before all shares have what they reserved.

    The pods ``without`` do not count: those that came later.
    """
    missing = needed_mib(quotas, reading, without) + LEAST_MIB - free_mib
    return max(0, min(missing, sum(borrowed_mib(each, total_mib(_holders(each, reading))) for each in quotas)))


def _holders(quota: Quota, reading: UsageByContainer) -> tuple[ProcessUsage, ...]:
    return () if quota.whole_pod else reading.get(quota.container_id or "", ())


def _look(
    state: DetectorState, quotas: Sequence[Quota], reading: UsageByContainer, spare_mib: tuple[int, int],
    now: float, rules: DetectorConfig,
) -> _Sample:  # fmt: skip
    """Sort the loans of a GPU with these quotas; ``spare_mib``: free beyond all needs, and but for waiting pods."""
    before = state.loans.get(quotas[0].gpu, Loans())
    known = before.borrowers if now - before.at <= rules.max_gap else {}
    found = [_loan(state, quota, reading, known, now) for quota in quotas if quota.may_borrow]
    loans = tuple(sorted((each for each in found if each.borrowed_mib), key=_relative, reverse=True))
    coming = sum(each.borrowed_mib for each in loans if _is_coming(state, each, now))
    busy = {pod for ((pod, _), _), case in state.cases.items() if case.phase is Phase.KILLING}
    may_end = tuple(each for each in loans if each.quota.pod_uid not in busy and _may_end(state, each, now, rules))
    return _Sample(
        missing_mib=SLACK_MIB - spare_mib[0] - coming,
        urgent_mib=LEAST_MIB - spare_mib[1] - coming,
        coming_mib=coming,
        loans=loans,
        may_end=may_end,
    )


def _loan(
    state: DetectorState, quota: Quota, reading: UsageByContainer, known: Mapping[Key, Borrower], now: float
) -> _Loan:
    holders, before = _holders(quota, reading), known.get(key_of(quota), Borrower())
    used, killed = total_mib(holders), before.killed
    if killed is None and state.of(quota).phase is Phase.KILLING:
        killed = now  # for its quota
    after = replace(before, samples=before.samples + 1, killed=killed)
    return _Loan(quota, used, borrowed_mib(quota, used), holders, after)


def _relative(loan: _Loan) -> tuple[float, Key]:
    return loan.borrowed_mib / max(1, loan.quota.memory_mib), loan.key


def _is_coming(state: DetectorState, loan: _Loan, now: float) -> bool:
    ended = loan.known.killed
    return ended is not None and now - ended <= KILL_SECONDS and state.of(loan.quota).phase is Phase.KILLING


def _may_end(state: DetectorState, loan: _Loan, now: float, rules: DetectorConfig) -> bool:
    """Tell whether a borrower was seen often enough, as a worker and its successor look like one for a moment."""
    return loan.known.samples >= rules.samples and state.of(loan.quota).spared_until <= now


def _chosen(loans: Sequence[_Loan], missing_mib: int) -> dict[Key, int]:
    """Choose who must give back how many MiB: the largest relative to its reservation first, and nobody more."""
    chosen = dict[Key, int]()
    for loan in loans:
        if missing_mib <= 0:
            break
        chosen[loan.key] = min(loan.borrowed_mib, missing_mib)
        missing_mib -= loan.borrowed_mib
    return chosen


def _decided(
    state: DetectorState, gpu: str, sample: _Sample, now: float, rules: DetectorConfig
) -> tuple[DetectorState, list[KillDecision]]:
    """Tell and kill as one sample of a GPU demands, and note it."""
    before = state.loans.get(gpu, Loans())
    is_short = sample.missing_mib > 0 and bool(sample.loans)
    is_needed = sample.missing_mib + sample.coming_mib > 0 and bool(sample.loans)
    short = _since(before.short, now, still=is_short)
    back = _chosen(sample.may_end, sample.missing_mib)
    at_once = _chosen(sample.may_end, sample.urgent_mib)
    cases, decisions = dict(state.cases), list[KillDecision]()
    borrowers, killed = dict[Key, Borrower](), set[str]()
    for loan in sample.loans:
        known = loan.known if is_short else replace(loan.known, warned=None)
        mib = max(back.get(loan.key, 0), at_once.get(loan.key, 0))
        warned = now if known.warned is None and mib else known.warned
        left = 0.0 if loan.key in at_once else _seconds_left(warned, short, now, rules)
        if mib and left <= 0 and not state.open and loan.quota.pod_uid not in killed:
            decisions.append(_kill(loan, mib, warned, now))
            cases[loan.key] = replace(state.of(loan.quota), phase=Phase.KILLING)
            killed.add(loan.quota.pod_uid)
            known = replace(known, killed=now)
        elif mib and known.warned is None:
            decisions.append(_decision(Decision.RECLAIM_NOTICE, loan, mib, kill_in=None if state.open else left))
        borrowers[loan.key] = replace(known, warned=warned)
    needed = _since(before.needed, now, still=is_needed)
    loans = {**state.loans, gpu: Loans(short=short, needed=needed, at=now, borrowers=borrowers)}
    return replace(state, cases=cases, loans=loans), decisions


def _since(before: float | None, now: float, *, still: bool) -> float | None:
    return (now if before is None else before) if still else None


def _seconds_left(warned: float | None, short: float | None, now: float, rules: DetectorConfig) -> float:
    if warned is None or short is None:
        return rules.notice
    return max(0.0, min(warned + rules.notice, short + PUT_OFF * rules.notice) - now)


def _lent(loan: _Loan) -> KillDecision:
    return KillDecision(decision=Decision.LENT, quota=loan.quota, used_mib=loan.used_mib)


def _kill(loan: _Loan, mib: int, warned: float | None, now: float) -> KillDecision:
    quota = loan.quota.without_loan()
    decision = _decision(Decision.KILL, loan, mib, kill_in=0.0)
    return replace(
        decision, targets=select_targets(quota, loan.holders), at=now, over_for=0.0 if warned is None else now - warned
    )


def _decision(decision: Decision, loan: _Loan, mib: int, *, kill_in: float | None) -> KillDecision:
    return KillDecision(
        decision=decision, quota=loan.quota.without_loan(), used_mib=loan.used_mib, kill_in=kill_in, reclaim_mib=mib
    )
