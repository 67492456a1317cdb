"""What the detector must not forget when the enforcer starts again: running grace periods, debts, recent kills. Pure.

Times are seconds since boot and hold for one boot only. Of each container over its quota there are its id, its cgroup's
inode, the samples in a row, for how long it was over and when it was last seen so: the detector takes up there, unless
that is too long ago or the cgroup another one. What cannot be read counts as nothing remembered, which gives everybody
a full grace period.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from enforcer.detection.debt import Debt, DebtKey
from enforcer.detection.doubt import Threshold
from enforcer.detection.kill_history import ContainerKey, RecentKill, Tenant
from enforcer.detection.storm import Opening
from enforcer.detection.types import DetectorConfig, DetectorState, Key, ViolationState

NAME: Final = "detector.json"
VERSION: Final = 4
MAX_BYTES: Final = 4 * 1024 * 1024
"""A longer file is none of ours."""


def encode(state: DetectorState, boot_id: str) -> bytes:
    """Write what is worth remembering; a container that is within its quota is not."""
    cases = [_row(key, case) for key, case in state.cases.items() if case.samples]
    content = {
        "version": VERSION, "bootId": boot_id, "cases": cases,
        "cooling": [{"podUid": uid, "container": name, "until": until} for (uid, name), until in state.cooling.items()],
        "kills": [_kill_row(kill) for kill in state.kills], "ended": [_kill_row(kill) for kill in state.ended],
        "debts": [_debt_row(key, debt) for key, debt in state.debts.items()],
        "opening": None if state.opening is None else _opening_row(state.opening),
        "trips": [{**_whose(tenant), "at": at} for tenant, at in state.trips.items()],
        "within": [{"podUid": uid, "container": name, "since": at} for (uid, name), at in (state.within or {}).items()],
        "thresholds": [_threshold_row(key, threshold) for key, threshold in state.thresholds.items()],
    }  # fmt: skip
    return json.dumps(content).encode() + b"\n"


def _whose(tenant: Tenant) -> dict[str, Any]:
    namespace, (uid, name) = tenant
    return {"namespace": namespace, "podUid": uid, "container": name}


def _kill_row(kill: RecentKill) -> dict[str, Any]:
    return {**_whose(kill.tenant), "at": kill.at, "free": kill.free}


def _debt_row(key: DebtKey, debt: Debt) -> dict[str, Any]:
    (uid, name), gpu = key
    return {
        "podUid": uid, "container": name, "gpu": gpu, "seconds": debt.seconds, "at": debt.at, "samples": debt.samples,
        "rate": debt.rate, "paused": debt.paused, "warned": debt.warned, "killed": debt.killed,
    }  # fmt: skip


def _threshold_row(key: DebtKey, threshold: Threshold) -> dict[str, Any]:
    (uid, name), gpu = key
    return {"podUid": uid, "container": name, "gpu": gpu, "mib": threshold.mib, "lowered": threshold.lowered}


def _opening_row(opening: Opening) -> dict[str, Any]:
    by = [_whose(tenant) for tenant in sorted(opening.by)]
    return {"by": by, "pods": sorted(opening.pods), "calm": opening.calm}


def _row(key: Key, case: ViolationState) -> dict[str, Any]:
    return {
        "containerId": key[0], "gpu": key[1], "cgroupInode": case.cgroup_inode, "samples": case.samples,
        "overFor": case.over_for, "last": case.last, "blind": case.blind, "warned": case.warned,
        "lenient": case.lenient,
    }  # fmt: skip


def decode(data: bytes, boot_id: str, now: float) -> DetectorState | None:
    """Read it back; ``None`` where it is not what ``encode`` writes, or of another boot.

    Times that lie ahead are cut to now, so that a file that lies can shorten nobody's grace period by them, and
    cool-downs to the longest there are, so that it lets nobody be for ever.
    """
    try:
        content = json.loads(data)
        if content["version"] != VERSION or content["bootId"] != boot_id:
            return None
        cases = {(_text(row, "containerId"), _text(row, "gpu")): _case(row, now) for row in content["cases"]}
        cooling = {_place(row): _until(row, now) for row in content["cooling"]}
        return DetectorState(
            cases=cases, kills=tuple(_kill(row, now) for row in content["kills"]),
            ended=tuple(_kill(row, now) for row in content["ended"]), cooling=cooling,
            debts=dict(_debt(row, now) for row in content["debts"]), opening=_opening(content["opening"], now),
            trips={_tenant(row): min(_number(row["at"]), now) for row in content["trips"]},
            within={_place(row): min(_number(row["since"]), now) for row in content["within"]},
            thresholds=dict(_threshold(row, now) for row in content["thresholds"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _case(row: Mapping[str, Any], now: float) -> ViolationState:
    inode, samples = row["cgroupInode"], _whole(row["samples"])
    last, over_for = min(_number(row["last"]), now), _number(row["overFor"])
    if over_for > last or not samples:
        raise ValueError
    return ViolationState(
        samples=samples, over_for=over_for, last=last, blind=row["blind"] is True, warned=row["warned"] is True,
        lenient=row["lenient"] is True, cgroup_inode=None if inode is None else _whole(inode),
    )  # fmt: skip


def _kill(row: Mapping[str, Any], now: float) -> RecentKill:
    return RecentKill(min(_number(row["at"]), now), *_tenant(row), free=row["free"] is True)


def _tenant(row: Mapping[str, Any]) -> Tenant:
    return _text(row, "namespace"), _place(row)


def _place(row: Mapping[str, Any]) -> ContainerKey:
    return _text(row, "podUid"), _text(row, "container")


def _threshold(row: Mapping[str, Any], now: float) -> tuple[DebtKey, Threshold]:
    lowered = None if row["lowered"] is None else min(_number(row["lowered"]), now)
    return (_place(row), _text(row, "gpu")), Threshold(_whole(row["mib"]), lowered)


def _debt(row: Mapping[str, Any], now: float) -> tuple[DebtKey, Debt]:
    killed = None if row["killed"] is None else min(_number(row["killed"]), now)
    debt = Debt(
        seconds=_number(row["seconds"]), at=min(_number(row["at"]), now), samples=_whole(row["samples"]),
        rate=_number(row["rate"]), paused=row["paused"] is True, warned=row["warned"] is True, killed=killed,
    )  # fmt: skip
    return (_place(row), _text(row, "gpu")), debt


def _opening(row: Mapping[str, Any] | None, now: float) -> Opening | None:
    if row is None:
        return None
    calm = None if row["calm"] is None else min(_number(row["calm"]), now)
    return Opening(by=frozenset(_tenant(each) for each in row["by"]), pods=_texts(row["pods"]), calm=calm)


def _until(row: Mapping[str, Any], now: float) -> float:
    longest = DetectorConfig()
    return min(_number(row["until"]), now + max(longest.cool_down, longest.kill_interval))


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _texts(values: Sequence[Any]) -> frozenset[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError
    return frozenset(values)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError
    return float(value)
