"""What the detector must not forget when the enforcer starts again: budgets, violations, recent kills. Pure.

Times are seconds since boot and hold for one boot only. What cannot be read counts as nothing remembered, which gives
everybody a full budget.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from enforcer.detection.budget import Account, AccountKey
from enforcer.detection.types import ContainerKey, ContainerState, DetectorConfig, DetectorState, Key, Phase
from gpushare.errors import ConfigError
from gpushare.formats import BUDGETS

NAME: Final = "detector.json"
MAX_BYTES: Final = 4 * 1024 * 1024
"""A longer file is none of ours."""
_AFTER: Final = {Phase.KILLING: Phase.OVER, Phase.POSTPONED: Phase.OVER}
"""What a new enforcer makes of a phase: no kill is under way, and a reason to wait is given again."""


def encode(state: DetectorState, boot_id: str) -> bytes:
    """Write what is worth remembering; when a GPU was read last only while somebody is over quota."""
    over = any(case.phase is not Phase.WITHIN for case in state.cases.values())
    content = {
        "version": BUDGETS.version,
        "bootId": boot_id,
        "containers": [_row(key, case) for key, case in state.cases.items()],
        "accounts": [_account_row(key, account) for key, account in state.accounts.items()],
        "sampled": dict(state.sampled) if over else {},
        "blind": sorted(state.blind) if over else [],
        "kills": [{"podUid": uid, "container": name, "at": at} for (uid, name), at in state.kills.items()],
    }
    return json.dumps(content).encode() + b"\n"


def _row(key: Key, case: ContainerState) -> dict[str, Any]:
    (uid, name), gpu = key
    return {
        "podUid": uid, "container": name, "gpu": gpu, "state": str(case.phase), "overFor": case.over_for,
        "used": case.used, "at": case.at, "samples": case.samples, "killed": case.killed,
        "sparedUntil": case.spared_until, "thresholdMib": case.threshold_mib, "lowered": case.lowered,
    }  # fmt: skip


def _account_row(key: AccountKey, account: Account) -> dict[str, Any]:
    return {
        "namespace": key[0], "gpu": key[1], "used": account.used, "at": account.at, "size": account.size,
        "over": account.over,
    }  # fmt: skip


def decode(data: bytes, boot_id: str, now: float) -> DetectorState | None:
    """Read it back; ``None`` where it is not what ``encode`` writes, or of another boot.

    Times that lie ahead are cut to now, and pauses to the longest there are, so that a file that lies lets nobody be
    for ever.
    """
    try:
        BUDGETS.check(data)
        content = json.loads(data)
        if content["bootId"] != boot_id:
            return None
        return DetectorState(
            cases={(_place(row), _text(row, "gpu")): _case(row, now) for row in content["containers"]},
            accounts=dict(_account(row, now) for row in content["accounts"]),
            sampled={gpu: min(_number(at), now) for gpu, at in content["sampled"].items()},
            blind=_texts(content["blind"]),
            kills={_place(row): min(_number(row["at"]), now) for row in content["kills"]},
        )
    except (ConfigError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _case(row: Mapping[str, Any], now: float) -> ContainerState:
    phase, longest, at = Phase(row["state"]), DetectorConfig(), min(_number(row["at"]), now)
    if max(_number(row["overFor"]), _number(row["used"])) > at:  # longer than the machine runs
        raise ValueError
    return ContainerState(
        phase=_AFTER.get(phase, phase), over_for=_number(row["overFor"]), used=_number(row["used"]),
        at=at, samples=_whole(row["samples"]), killed=row["killed"] is True,
        spared_until=min(_number(row["sparedUntil"]), now + max(longest.cool_down, longest.kill_interval)),
        threshold_mib=None if row["thresholdMib"] is None else _whole(row["thresholdMib"]),
        lowered=None if row["lowered"] is None else min(_number(row["lowered"]), now),
    )  # fmt: skip


def _account(row: Mapping[str, Any], now: float) -> tuple[AccountKey, Account]:
    account = Account(
        used=_number(row["used"]), at=min(_number(row["at"]), now), size=_number(row["size"]), over=row["over"] is True
    )
    return (_text(row, "namespace"), _text(row, "gpu")), account


def _place(row: Mapping[str, Any]) -> ContainerKey:
    return _text(row, "podUid"), _text(row, "container")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _texts(values: Any) -> frozenset[str]:
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
