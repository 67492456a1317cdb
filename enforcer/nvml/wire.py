"""Messages between the enforcer and the NVML worker process: one JSON object a line, either way. Pure.

A question is ``{"n": 7, "ask": "sample", "with": ["GPU-..."]}``, its answer ``{"n": 7, "value": ...}`` or
``{"n": 7, "error": "...", "reason": "GpuLost"}``. The number tells an answer that comes late from the one waited for.
"""

import json
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any, Final

from enforcer.nvml.types import ComputeMode, Gpu, GpuProcess, GpuSample
from gpushare.errors import NvmlError
from gpushare.reasons import Reason


def encode_request(number: int, what: str, arguments: tuple[Any, ...]) -> bytes:
    """Write a question."""
    return json.dumps({"n": number, "ask": what, "with": arguments}).encode() + b"\n"


def encode_result(number: int, value: Any) -> bytes:
    """Write an answer: GPUs and samples as lists of their fields."""
    return json.dumps({"n": number, "value": value}).encode() + b"\n"


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
        gpu._replace(compute_capability=_pair(gpu.compute_capability), cuda_version=_pair(gpu.cuda_version))
        for gpu in starmap(Gpu, rows)
    )


def _sample(found: Any) -> GpuSample:
    uuid, total, used, processes, clients = found
    return GpuSample(uuid, total, used, tuple(starmap(GpuProcess, processes)), tuple(clients))


def _pair(found: Any) -> tuple[Any, Any]:
    one, other = found
    return one, other


QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gpus": _gpus,
    "sample": _sample,
    "compute_mode": ComputeMode,
    "set_compute_mode": _same,
    "limits_cgroups": bool,
    "cgroup_limit_mib": _same,
    "set_cgroup_limit": _same,
    "ailment": lambda found: None if found is None else Reason(found),
    "critical_errors": lambda rows: list(map(_pair, rows)),
    "utilization": lambda rows: None if rows is None else tuple(map(_pair, rows)),
}
"""What can be asked, by the reader's own names, and how the answer is read."""
