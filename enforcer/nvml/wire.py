"""Messages between the enforcer and the NVML worker process: one JSON object a line, either way. Pure.

A question is ``{"n": 7, "ask": "sample", "with": ["GPU-..."]}``, its answer ``{"n": 7, "value": ...}`` or
``{"n": 7, "error": "...", "reason": "GpuLost"}``. The number tells an answer that comes late from the one waited for.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from enforcer.nvml.types import ComputeMode, Gpu, GpuProcess, GpuSample, Utilization
from gpushare.errors import NvmlError
from gpushare.reasons import Reason


def encode_request(number: int, what: str, arguments: tuple[Any, ...]) -> bytes:
    """Write a question."""
    return json.dumps({"n": number, "ask": what, "with": arguments}).encode() + b"\n"


def encode_result(number: int, what: str, value: Any) -> bytes:
    """Write an answer."""
    return json.dumps({"n": number, "value": _WRITE.get(what, _same)(value)}).encode() + b"\n"


def encode_error(number: int, error: NvmlError) -> bytes:
    """Write that there is none, and why."""
    return json.dumps({"n": number, "error": error.message, "reason": error.reason}).encode() + b"\n"


def decode_request(line: bytes) -> tuple[int, str, tuple[Any, ...]]:
    """Read a question: its number, a name of ``QUESTIONS``, and what goes with it."""
    found = json.loads(line)
    return found["n"], found["ask"], tuple(found["with"])


def request_id(line: bytes) -> tuple[int, Mapping[str, Any]]:
    """Read an answer's number, and the rest for ``value``. Raises ``ValueError``: these are no words of ours."""
    found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found.get("n"), int):
        raise ValueError(f"the NVML worker sent {line[:60]!r} instead of an answer")  # noqa: TRY004 - the line is wrong, not the type of an argument
    return found["n"], found


def decode_value(what: str, found: Mapping[str, Any]) -> Any:
    """Read what an answer says.

    Raises:
        NvmlError: it says why there is none.
        ValueError: it is of another shape than that question's answers.
    """
    if "error" in found:
        raise NvmlError(str(found["error"]), Reason(found["reason"]))
    try:
        return QUESTIONS[what](found["value"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the NVML worker sent an invalid answer to {what}: {error!r:.200}") from error


def _same(given: Any) -> Any:
    return given


def _gpus(rows: Any) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(**row | {name: tuple(row[name]) for name in ("compute_capability", "cuda_version")}) for row in rows
    )


def _sample(found: Any) -> GpuSample:
    uuid, total, used, processes, clients = found
    found = tuple(GpuProcess(pid, mib) for pid, mib in processes)
    return GpuSample(uuid=uuid, total_mib=total, used_mib=used, processes=found, clients=tuple(clients))


def _rows(sample: GpuSample) -> list[Any]:
    found = [[each.pid, each.used_mib] for each in sample.processes]
    return [sample.uuid, sample.total_mib, sample.used_mib, found, sample.clients]


def _ailment(found: Any) -> Reason | None:
    return None if found is None else Reason(found)


def _errors(rows: Any) -> list[tuple[str, int]]:
    return [(uuid, number) for uuid, number in rows]


def _utilization(rows: Any) -> Utilization | None:
    return None if rows is None else tuple((pid, percent) for pid, percent in rows)


QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gpus": _gpus,
    "sample": _sample,
    "compute_mode": ComputeMode,
    "set_compute_mode": _same,
    "limits_cgroups": bool,
    "cgroup_limit_mib": _same,
    "set_cgroup_limit": _same,
    "ailment": _ailment,
    "critical_errors": _errors,
    "utilization": _utilization,
}
"""What can be asked, by the reader's own names, and how the answer is read."""
_WRITE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gpus": lambda gpus: [gpu._asdict() for gpu in gpus],
    "sample": _rows,
    "compute_mode": int,
}
