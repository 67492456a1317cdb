"""What the judge must not forget when the enforcer starts again: running grace periods, cool-downs, recent kills. Pure.

Times are seconds since boot and hold for one boot only. What cannot be read counts as nothing remembered, which gives
everybody a full grace period.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from enforcer.judge import Case, State

NAME: Final = "judge.json"
VERSION: Final = 1


def encode(state: State, boot_id: str) -> bytes:
    """Write what is worth remembering; a container that is within its quota is not."""
    cases = [
        {"containerId": key[0], "gpu": key[1], "overFor": case.over_for, "last": case.last, "warned": case.warned}
        for key, case in state.cases.items()
        if case.samples or case.over_for
    ]
    cooling = [{"podUid": uid, "container": name, "until": until} for (uid, name), until in state.cooling.items()]
    content = {"version": VERSION, "bootId": boot_id, "cases": cases, "cooling": cooling, "kills": list(state.kills)}
    return json.dumps(content).encode() + b"\n"


def decode(data: bytes, boot_id: str, now: float) -> State | None:
    """Read it back; ``None`` where it is not what ``encode`` writes, or of another boot.

    Samples are not remembered: a new enforcer believes its own eyes. Times that lie ahead are cut to now, so that a
    file that lies can shorten nobody's grace period.
    """
    try:
        content = json.loads(data)
        if content["version"] != VERSION or content["bootId"] != boot_id:
            return None
        cases = {(_text(row, "containerId"), _text(row, "gpu")): _case(row, now) for row in content["cases"]}
        cooling = {(_text(row, "podUid"), _text(row, "container")): _number(row["until"]) for row in content["cooling"]}
        return State(cases=cases, kills=tuple(min(_number(each), now) for each in content["kills"]), cooling=cooling)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _case(row: Mapping[str, Any], now: float) -> Case:
    last = None if row["last"] is None else min(_number(row["last"]), now)
    return Case(over_for=_number(row["overFor"]), last=last, warned=row["warned"] is True)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError(value)
    return float(value)
