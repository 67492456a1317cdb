"""Recorded answers of NVML and MPS, read again by our own parsers; and what shape they have.

A recording is a folder: ``origin.json`` (``{"origin": "recorded" | "documentation", "driver": ...}``), ``nvml.json``
(call to answer, failures as ``{"error": number, "name": ...}``) and ``mps.json`` (command to ``{status, out, err}``),
whose keys are the commands with their numbers named: ``get_client_list <server>``.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pynvml  # noqa: TID251 - recorded errors are raised as the library's own

from enforcer.mps import protocol
from enforcer.nvml.reader import NvmlReader
from gpushare.errors import GpuShareError, MpsError
from tests.gpu.kit.setup import ROOT

FIXTURES: Final = ROOT / "tests" / "fixtures" / "gpu"
RECORDED, DOCUMENTED = "recorded", "documentation"


class ReplayedNvml:
    """Answers like ``pynvml`` from a recording of one GPU; what was not recorded, the driver does not have."""

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self._recorded = recorded

    def nvmlInitWithFlags(self, _: int) -> None:  # noqa: N802 - NVML's name
        """Nothing to do."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Nothing to do."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """The one that was measured."""
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        """Any handle will do."""
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """Likewise."""
        return uuid

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*arguments: Any, **more: Any) -> Any:
            numbers = [each for each in (*arguments, *more.values()) if isinstance(each, int)]
            return _revived(self._recorded.get(key_of(name, *numbers), {"error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}))

        return answer


def key_of(name: str, *numbers: int) -> str:
    """How a call is called in a recording."""
    return ":".join([name, *map(str, numbers)])


def problems_with_nvml(recorded: Mapping[str, Any], gpu: str) -> list[str]:
    """What our reader does not understand of it."""
    reader = NvmlReader(ReplayedNvml(recorded))
    asked: dict[str, Callable[[], Any]] = {
        "gpus": reader.gpus, "sample": lambda: reader.sample(gpu), "compute mode": lambda: reader.compute_mode(gpu)
    }  # fmt: skip
    found = []
    for name, ask in asked.items():
        try:
            ask()
        except GpuShareError as error:
            found.append(f"NVML, {name}: {error.message}")
    return found


def problems_with_mps(recorded: Mapping[str, Any]) -> list[str]:
    """What our parsers do not understand of it."""
    found = []
    for command, said in recorded.items():
        parse = PARSERS.get(command)
        try:
            if parse is not None and not parse(said["out"]):
                found.append(f"MPS, {command}: {said['out']!r} is not what was expected")
        except MpsError as error:
            found.append(f"MPS, {command}: {error.message}")
    return found


def _one_or_more(answer: str) -> bool:
    return bool(protocol.parse_pids(answer))


def _limit(answer: str) -> bool:
    protocol.check_limit(answer, LIMIT_MIB)
    return True


COLUMNS: Final = 5
"""Those of ``ps`` before the program's name, which is whatever it is."""
LIMIT_MIB: Final = 4608
"""The default limit that is in force while a recording is made."""
PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    protocol.GET_PERCENTAGE: protocol.parse_percentage,
    protocol.GET_SERVERS: _one_or_more,
    "get_client_list <server>": _one_or_more,
    "get_server_status <server>": lambda answer: protocol.parse_status(answer) in {None, protocol.ServerStatus.ACTIVE},
    protocol.get_limit(): _limit,
    "terminate_client <server> <client>": protocol.parse_terminated,
    "terminate_client <server> <nobody>": lambda answer: not protocol.parse_terminated(answer),
    "get_server_status <nobody>": lambda answer: not _is_active(answer),
}
"""What our product reads, and what it has to find in it."""


def _is_active(answer: str) -> bool:
    try:
        return protocol.parse_status(answer) is protocol.ServerStatus.ACTIVE
    except MpsError:
        return False


def shape(value: Any) -> Any:
    """The same without what changes from one machine and moment to the next: numbers, UUIDs, names."""
    if isinstance(value, Mapping):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    if isinstance(value, str):
        named = re.sub(
            r"NVIDIA [A-Z][A-Z0-9-]+(?: [A-Z0-9]+)*", "MODEL", re.sub(r"GPU-[0-9a-f][0-9a-f-]*", "GPU", value)
        )
        # One line stands for many: lists of pids are as long as there are clients.
        lines = [" ".join(re.sub(r"[0-9]+(?:\.[0-9]+)?", "N", line).split()[:COLUMNS]) for line in named.splitlines()]
        return list(dict.fromkeys(lines))
    return type(value).__name__


def recordings() -> dict[str, Path]:
    """The folders with recordings, by name."""
    return {folder.parent.name: folder.parent for folder in sorted(FIXTURES.glob("*/origin.json"))}


def load(folder: Path, name: str) -> dict[str, Any]:
    """One file of a recording; empty where it was not recorded."""
    file = folder / f"{name}.json"
    values: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return values


def _revived(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        if "error" in answer:
            raise _error(answer)
        return SimpleNamespace(**answer)
    return [_revived(each) for each in answer] if isinstance(answer, list) else answer


def _error(answer: Mapping[str, Any]) -> Exception:
    mismatch = str(answer.get("name", "")).startswith("NVMLLibraryMismatchError")
    error: Exception = (
        pynvml.NVMLLibraryMismatchError(answer["name"]) if mismatch else pynvml.NVMLError(answer["error"])
    )
    return error
