"""Asks NVML from a process of its own: LD_LIBRARY_PATH counts only before exec, so tests cannot load it themselves.

Reads JSON lines ``[what, *arguments]`` from standard input and answers each with one JSON line: ``{"value": ...}``, or
``{"error": message, "reason": reason}``. ``gpus``, ``sample``, ``mode``, ``set_mode``, ``close`` and
``ON_CGROUPS`` go to the product's reader, ``raw`` calls a function of nvidia-ml-py (``"@GPU-..."`` stands for that
GPU's handle).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pynvml  # noqa: TID251 - the library under test

from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import ComputeMode, Gpu, GpuProcess, GpuSample
from gpushare.errors import NvmlError
from tests.fakes.gpu.state import Sim

ROOT = Path(__file__).parents[3]
ON_CGROUPS = ("limits_cgroups", "cgroup_limit_mib", "set_cgroup_limit")


class Probe:
    """The other process, seen from a test."""

    def __init__(self, sim: Sim, library: Path) -> None:
        # The interpreter's own environment is left out: nothing else may decide which library is loaded.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.gpu.probe"],
            env=sim.environment(library), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *question: Any) -> Any:
        """The value answered. Raises ``LookupError`` with (reason, message) where the answer is an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise LookupError(answer["reason"], answer["error"])
        return answer["value"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)


def answer(reader: NvmlReader, what: str, *arguments: Any) -> Any:
    """One question to the reader or to the library."""
    if what == "raw":
        return _raw(*arguments)
    if what == "mode":
        return int(reader.compute_mode(*arguments))
    if what in ON_CGROUPS:
        return getattr(reader, what)(*arguments)
    if what == "set_mode":
        return reader.set_compute_mode(arguments[0], ComputeMode(arguments[1]))
    return plain(getattr(reader, what)(*arguments))


def _raw(name: str, *arguments: Any) -> Any:
    handle = [
        pynvml.nvmlDeviceGetHandleByUUID(a[1:]) if isinstance(a, str) and a.startswith("@") else a for a in arguments
    ]
    return plain(getattr(pynvml, name)(*handle))


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    if isinstance(value, Gpu | GpuSample | GpuProcess):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return vars(value)
    fields = getattr(value, "_fields_", None)
    return value if fields is None else {name: str(getattr(value, name)) for name, _ in fields}


def main() -> None:
    """Answer until standard input ends."""
    reader = NvmlReader()
    for line in sys.stdin:
        question = json.loads(line)
        if question == ["afresh"]:  # a reader remembers what is lost
            reader.close()
            reader, question = NvmlReader(), ["close"]
        try:
            reply: dict[str, Any] = {"value": answer(reader, *question)}
        except NvmlError as error:
            reply = {"error": error.message, "reason": error.reason}
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
            reply = {"error": type(error).__name__, "reason": getattr(error, "value", 0)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
